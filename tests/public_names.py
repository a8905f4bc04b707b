"""The public names of the library, for tests of docstrings and for the count of the functions that tests call."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

PACKAGES = (
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
    "viz",
)


@functools.cache
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


def methods(cls: type) -> dict[str, Any]:
    """The public functions and properties that a class defines and does not inherit."""
    out = {}
    for name, value in vars(cls).items():
        value = getattr(value, "__func__", value)
        value = getattr(value, "method", value)  # equinox wraps methods of modules
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            out[name] = value
    return out


def public_functions() -> dict[str, Callable]:
    """The public functions, and the public methods and properties of public classes that are not abstract."""
    out = {}
    for name, value in public().items():
        if inspect.isclass(value):
            members = {f"{name}.{key}": getattr(x, "fget", x) for key, x in methods(value).items()}
            out |= {key: x for key, x in members.items() if not getattr(x, "__isabstractmethod__", False)}
        elif callable(value):
            out[name] = value
    return out
