"""The packages are in layers (floors); each package imports only from floors below its own."""

import ast
import graphlib
import pathlib

import jaxdyn

PACKAGE = pathlib.Path(jaxdyn.__file__).parent
FLOORS = {
    "_signatures": -1,
    "_types": 1,
    "_waits": 0,
    "_messages": -1,
    "_digests": 0,
    "_durable_files": 0,
    "_errors": 0,
    "_extras": 0,
    "_status": 0,
    "_printing": 1,
    "_compile": 1,
    "native": 0.5,
    "_least_squares": 2,
    "_roots": 2,
    "friction": 2,
    "spatial": 2,
    "geometry": 4,
    "laws": 3,
    "tree": 3,
    "joints": 4,
    "model": 5,
    "constraints": 6,
    "io": 6,
    "algorithms": 7,
    "rows": 8,
    "solve": 9,
    "contact": 10,
    "simulate": 11,
    "worlds": 12,
    "viz": 13,
    "sysid": 14,
    "trajopt": 14,
    "estimation": 15,
    "learn": 15,
    # `__init__` re-exports the public names.
    "samples": 15,
    "__init__": 16,
    "cli": 17,
    "__main__": 18,
}


def imported(file: pathlib.Path) -> set[str]:
    """The packages of the library that a file imports from."""
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            parts = (node.module or "").split(".")
            if parts[0] == "jaxdyn":
                rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("jaxdyn.")}
            assert all(alias.name != "jaxdyn" for alias in node.names), f"{file}: imports the whole package"
    return rooms


def test_imports_point_down():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    for file in files:
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        assert room in FLOORS, f"{file} is not on any floor"
        for other in imported(file) - {room}:
            assert other in FLOORS, f"{file} imports {other}"
            assert FLOORS[other] < FLOORS[room], (
                f"{file} (floor {FLOORS[room]}) imports {other} (floor {FLOORS[other]})"
            )


def file_imports() -> dict[str, set[str]]:
    """The modules that each module imports, also inside of functions and for annotations only."""
    names = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = (PACKAGE.name, *file.relative_to(PACKAGE).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph = {}
    for name, file in names.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE.name:
                modules = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= {module if module in names else node.module for module in modules} - {name}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules along one circle of imports; none for layers."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


ANNOTATED = {("jaxdyn.worlds._states", "jaxdyn.worlds._world"), ("jaxdyn.worlds._steps", "jaxdyn.worlds._world")}
"""Imports for annotations against the layers, a list that may only shrink."""


def test_files_import_in_layers():
    graph = file_imports()
    assert len(graph) > 20
    for file, other in ANNOTATED:
        graph[file].remove(other)
    assert not circle(graph), " imports ".join(reversed(circle(graph)))


def test_modules_are_private_and_names_public():
    for file in PACKAGE.rglob("*.py"):
        inside = len(file.relative_to(PACKAGE).parts) > 1
        assert not inside or file.name.startswith("_"), f"{file}: modules inside a room begin with an underscore"
    for name in jaxdyn.__all__:
        assert hasattr(jaxdyn, name)


def test_no_global_configuration_on_import():
    """Only the command line, which is a program, configures JAX, and only when it is called."""
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if file.relative_to(PACKAGE).parts[0] != "cli":
            assert "jax.config.update" not in text, file
        outside_functions = [x for x in ast.parse(text).body if not isinstance(x, ast.FunctionDef | ast.ClassDef)]
        assert not any("jax.config.update" in ast.unparse(x) for x in outside_functions), file
