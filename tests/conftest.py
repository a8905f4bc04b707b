"""Settings of the whole test session: double precision on the CPU, and a compiler that hurries."""

import os

# Most of the time of the suite is compilation, and without the backend's optimizations that takes half as long. An
# environment that sets XLA_FLAGS keeps its own.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax

# The library never does this by itself; tests compare with double-precision oracles. Single precision is tested with
# `model.astype(float32)`.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")
