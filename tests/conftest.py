"""Settings of the whole test session: double precision, and no compiled function shared between processes."""

import jax

# The library never does this by itself; tests compare with double-precision oracles. Single precision is tested with
# `model.astype(float32)`.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")
