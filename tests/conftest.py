"""Settings of the whole test session: double precision on the CPU, and a compiler that hurries."""

import os

import pytest

# Most of the time of the suite is compilation, and without the backend's optimizations that takes half as long. An
# environment that sets XLA_FLAGS keeps its own.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import shape_checks
from cost_table import CostTable

# The library never does this by itself; tests compare with double-precision oracles. Single precision is tested with
# `model.astype(float32)`.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")


def pytest_configure(config: pytest.Config) -> None:
    """Check the shapes of annotations, end the run with a table of costs, and keep a cache of compiled programs.

    The processes of a run, the programs that tests start, and later runs share the cache; a warm one takes away two
    thirds of the time, and `--cache-clear` begins anew.
    """
    shape_checks.install()
    config.pluginmanager.register(CostTable())
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or config.cache is None:
        return
    folder = str(config.cache.mkdir("compiled"))
    # For the processes that tests start; this one has read its environment.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
