"""Every public name has a docstring that names the errors it raises, and a place in the reference."""

import ast
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import jaxdyn

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *(
        "",
        "contact",
        "geometry",
        "samples",
        "io",
        "worlds",
        "simulate",
        "spatial",
        "sysid",
        "trajopt",
        "estimation",
        "learn",
    ),
    "viz",
)
ERRORS = {name for name in jaxdyn.__all__ if name.endswith("Error")} | {"ImportError"}


def public() -> dict[str, Any]:
    """Every public object once, under its first name."""
    out, seen = {}, set()
    for package in PACKAGES:
        module = importlib.import_module(f"jaxdyn.{package}" if package else "jaxdyn")
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) not in seen and not inspect.ismodule(value):
                seen.add(id(value))
                out[f"{package}.{name}".lstrip(".")] = value
    return out


PUBLIC = public()
CLASSES = {k: v for k, v in PUBLIC.items() if inspect.isclass(v)}


def doc_of(value: Any) -> str:
    return (inspect.cleandoc(value.__doc__) if value.__doc__ else "").strip()


@functools.cache
def tree_of(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value)))).body[0]


def raised(node: ast.AST) -> set[str]:
    """The errors of the library that a function's body raises by `raise Name(...)`."""
    calls = [x.exc.func for x in ast.walk(node) if isinstance(x, ast.Raise) and isinstance(x.exc, ast.Call)]
    return {call.id for call in calls if isinstance(call, ast.Name) and call.id in ERRORS}


def methods(cls: type) -> dict[str, Any]:
    """The public functions and properties that a class defines and does not inherit."""
    out = {}
    for name, value in vars(cls).items():
        value = getattr(value, "__func__", value)
        value = getattr(value, "method", value)  # equinox wraps methods of modules
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            out[name] = value
    return out


def test_every_name_has_a_docstring():
    bad = []
    for name, value in PUBLIC.items():
        if callable(value):
            text = doc_of(value)
            # A constant's docstring is beside it in the source; dataclasses generate a docstring `Name(field, ...)`.
            if len(text) < 20 or text.startswith(f"{name.rpartition('.')[2]}("):
                bad.append(name)
    assert not bad


def test_every_member_has_a_docstring():
    bad = [f"{n}.{m}" for n, cls in CLASSES.items() for m in methods(cls) if not inspect.getdoc(getattr(cls, m))]
    assert not bad


def test_errors():
    """The docstring of a function, constructor or method names the errors that its body raises."""
    bad = []
    for name, value in PUBLIC.items():
        if not callable(value):
            continue
        documented, tree = doc_of(value), tree_of(value)
        if not inspect.isclass(value):
            bad += [(name, error) for error in raised(tree) if error not in documented]
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                if node.name in ("__init__", "__check_init__", "__post_init__"):
                    text = documented + (ast.get_docstring(node) or "")
                elif node.name.startswith("_"):
                    continue
                else:
                    text = documented + (inspect.getdoc(getattr(value, node.name)) or "")
                bad += [(f"{name}.{node.name}", error) for error in raised(node) if error not in text]
    assert not bad


def test_the_reference_has_every_name_once():
    text = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
    places = re.findall(r"^::: jaxdyn\.([\w.]+)$", text, flags=re.MULTILINE)
    shown = {}
    for place in places:
        # A function with the name of its package, such as `trajopt.ddp`, is shown as `trajopt.ddp.ddp`.
        value = functools.reduce(getattr, dict.fromkeys(place.split(".")), jaxdyn)
        if place not in ("inverse_dynamics", "forward_dynamics", "mass_matrix"):
            assert id(value) not in shown, f"{place} is {shown[id(value)]}"
            shown[id(value)] = place
    missing = [name for name, value in PUBLIC.items() if id(value) not in shown]
    assert not missing, f"docs/reference lacks {missing}"
    assert {"inverse_dynamics", "forward_dynamics", "mass_matrix"} <= set(places)
