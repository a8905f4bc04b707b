"""Importing the library loads few modules, and no optional ones."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import jaxdyn

OPTIONAL = {"mujoco", "matplotlib", "viser", "trimesh", "diffrax", "pooch"}
"""Modules that the extras install."""
HEAVY = {"scipy", "optax", "tyro", "tqdm", "PIL", "pandas"}
"""Modules that load slowly and that only some functions need."""
PACKAGES = (
    "algorithms",
    "contact",
    "geometry",
    "io",
    "learn",
    "model",
    "samples",
    "worlds",
    "simulate",
    "spatial",
    "sysid",
    "trajopt",
    "estimation",
    "viz",
)


STAGES = (
    "import jaxdyn",
    f"for name in set(jaxdyn.__all__) - set({PACKAGES}): getattr(jaxdyn, name)",
    *(f"jaxdyn.{name}.__name__" for name in PACKAGES),
)
PROGRAM = """
import sys, json, jax
seen = set(sys.modules)
for stage in json.loads(sys.argv[1]):
    exec(stage)
    print(json.dumps(sorted(set(sys.modules) - seen)))
    seen = set(sys.modules)
"""


@pytest.fixture(scope="module")
def loaded() -> list[set[str]]:
    """The modules that a new process, which has imported JAX, loads in each of the stages."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(STAGES)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return [set(json.loads(line)) for line in out.stdout.splitlines()]


def roots(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_importing_the_library_loads_nothing_else(loaded):
    assert {name for name in loaded[0] if name.startswith("jaxdyn")} == {"jaxdyn"}
    assert not roots(loaded[0]) & (OPTIONAL | HEAVY | {"equinox", "jaxtyping"})


def test_dynamics_need_neither_extras_nor_what_fits_and_plans(loaded):
    assert {"equinox", "jaxdyn"} <= roots(loaded[1])
    assert not roots(loaded[1]) & (OPTIONAL | HEAVY)
    assert not {"jaxdyn.sysid", "jaxdyn.trajopt", "jaxdyn.viz"} & loaded[1]


def test_packages_are_there_and_need_no_extra(loaded):
    """The packages are attributes of the library before they have been imported."""
    assert {f"jaxdyn.{name}" for name in PACKAGES} <= set().union(*loaded)
    assert not roots(set().union(*loaded)) & OPTIONAL


def test_names_are_those_that_type_checkers_see():
    """The names in the stub are loaded on first use, from the modules in the stub."""
    names = {}
    for node in ast.walk(ast.parse(Path(jaxdyn.__file__).with_suffix(".pyi").read_text())):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name: node.module for alias in node.names}
    assert set(names) == set(jaxdyn.__all__) <= set(dir(jaxdyn))
    for name, module in names.items():
        source = importlib.import_module(f"jaxdyn.{module or name}")
        assert getattr(jaxdyn, name) is (getattr(source, name) if module else source), name


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="abba"):
        jaxdyn.abba  # noqa: B018
    with pytest.raises(ImportError, match="abba"):
        from jaxdyn import abba  # noqa: F401
