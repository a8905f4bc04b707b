"""Settings of the whole test session: double precision, on the CPU unless JAX_PLATFORMS says otherwise, and compilation
without optimizations."""

import collections
import gc
import os
from pathlib import Path

import jaxlib.version
import pytest

# Compilation takes most of the suite's time, and takes half as long without the backend's optimizations, also that of
# native programs, which follow this flag. Products of matrices by YNNPACK take longer to compile than XLA's own; XLA
# ends on flags that it does not know, so only versions that are known to have this one get it. If the environment sets
# XLA_FLAGS, its flags are kept.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0"
    + (" --xla_cpu_experimental_ynn_fusion_type=" if (0, 11) <= jaxlib.version.__version_info__ < (0, 13) else ""),
)
# The matrices of the tests are small: threads of OpenBLAS would mostly wait for each other. The processes that run
# the tests (`-n 2`) and those that tests start read the variable; this one may have imported NumPy already.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax

from tests import shape_checks
from tests.cost_table import CostTable

# The library never enables double precision by itself, but the tests compare with double-precision oracles. They test
# single precision with `model.astype(float32)`.
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
# JAX would take its own frames out of the traceback of each error that a test expects, file by file.
jax.config.update("jax_traceback_filtering", "off")

# Tracing makes many objects that live long: looking through all of them often takes a twentieth of the time.
gc.set_threshold(200_000, 20, 50)

LONG_FILES = (
    "test_trajopt_ddp", "test_batching", "test_rotations", "test_native", "test_rollout_fit", "test_integrators",
    "test_actuators", "test_manifold", "test_trajopt_terms", "test_world_collisions", "test_natively",
    "test_formulations", "test_array_programs", "test_derivatives", "test_recording_checks", "test_world_forces",
    "test_parametrization", "test_geometry", "test_contact", "test_urdf_writer", "test_urdf_fuzz", "test_mpc",
)  # fmt: skip
"""The files that took longest, from the table at the end of a run. They run first, so that the processes of a run end
together: pytest-xdist starts with the files that have most tests, and would leave some of these for the end."""


def pytest_configure(config: pytest.Config) -> None:
    """Check the shapes of annotations, end the run with a table of costs, and keep a cache of compiled programs.

    The processes of a run, the programs that tests start, and later runs share the cache. A filled cache saves two
    thirds of the time; `--cache-clear` empties it.
    """
    shape_checks.install()
    config.pluginmanager.register(CostTable())
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or getattr(config, "cache", None) is None:
        return
    folder = str(config.cache.mkdir("compiled"))
    # The processes that tests start read the variable; JAX in this process has already read its environment.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, and files with most tests first among the others."""
    counts = collections.Counter(item.path for item in items)
    ranks = {name: rank for rank, name in enumerate(LONG_FILES)}

    def place(file: Path) -> tuple[int, int, str]:
        return ranks.get(file.stem, len(ranks)), -counts[file], str(file)

    items.sort(key=lambda item: place(item.path))
