"""Run-time checks that arrays have the shapes of their annotations, by jaxtyping's import hook."""

import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable

import beartype
import jax
import jaxtyping
import numpy as np
import pytest

PACKAGES = ("jaxdyn.simulate", "jaxdyn.sysid", "jaxdyn.trajopt")
"""The packages whose annotations are checked."""
SHAPED = re.compile(r"\b(Float|Int|Bool|Shaped)\[|\b(Configuration|Velocity|Wrenches)\b")


def has_shape(hint) -> bool:
    """Whether an annotation, or its source text, contains the type of an array with a shape."""
    if isinstance(hint, str):
        return bool(SHAPED.search(hint))
    if isinstance(hint, typing.TypeAliasType):
        return has_shape(hint.__value__)
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(has_shape(part) for part in typing.get_args(hint))


def of_any_array(hint):
    """Return the annotation of a parameter without its dtype, for both JAX's and NumPy's arrays."""
    if isinstance(hint, types.UnionType):
        return functools.reduce(operator.or_, map(of_any_array, hint.__args__))
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return jaxtyping.Shaped[jax.Array | np.ndarray, hint.dim_str]
    return hint


def checker(function: Callable) -> Callable:
    """Check the shapes of parameters, and the shapes and dtypes of results; pyright checks other annotations.

    Parameters may be NumPy arrays or integers, which the library converts.
    """
    hints = {name: hint for name, hint in function.__annotations__.items() if has_shape(hint)}
    function.__annotations__ = {name: hint if name == "return" else of_any_array(hint) for name, hint in hints.items()}
    return beartype.beartype(function)


def install() -> None:
    """Install the checks of the packages, which must not have been imported yet.

    Functions and classes without shapes in their annotations stay as they are, which saves time. Nothing is checked
    inside `pytest.raises`, where the library itself has to refuse the arrays.
    """
    decorate = jaxtyping.jaxtyped

    def decorate_those_with_shapes(*, typechecker):
        def decorator(function_or_class):
            hints = getattr(function_or_class, "__annotations__", {}).values()
            return (
                decorate(function_or_class, typechecker=typechecker)
                if any(map(has_shape, hints))
                else function_or_class
            )

        return decorator

    jaxtyping.jaxtyped = decorate_those_with_shapes
    jaxtyping.install_import_hook(PACKAGES, "tests.shape_checks.checker")

    enter, leave = pytest.RaisesExc.__enter__, pytest.RaisesExc.__exit__

    def enter_unchecked(context):
        jaxtyping.config.update("jaxtyping_disable", True)
        return enter(context)

    def leave_unchecked(context, *error):
        jaxtyping.config.update("jaxtyping_disable", False)
        return leave(context, *error)

    pytest.RaisesExc.__enter__, pytest.RaisesExc.__exit__ = enter_unchecked, leave_unchecked
