"""The exceptions of the library, and the checks that raise them."""

import difflib
import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping

import numpy as np

_WRAPPED = (
    (re.compile(r"\bnp\.(?:float|int|uint|complex|longdouble|str|datetime|timedelta)\w*\(([^()]*)\)"), r"\1"),
    (re.compile(r"\bnp\.(True|False)_\b"), r"\1"),
    (re.compile(r"\b[Aa]rray\(([^()]*?)(?:, (?:dtype=\w+|weak_type=\w+|shape=\w+))*\)"), r"\1"),
)
"""How NumPy and JAX show numbers, such as `np.float64(1.5)`, and what is left of it in messages."""


def plain_numbers(text: str) -> str:
    """Return a message with numbers as they are read, without the names of their types."""
    for pattern, number in _WRAPPED:
        text = pattern.sub(number, text)
    return text


class JaxdynError(Exception):
    """Base of every exception that the library raises on purpose."""

    def __init__(self, *args: object):
        super().__init__(*(plain_numbers(x) if isinstance(x, str) else x for x in args))


class ModelError(JaxdynError, ValueError):
    """A model cannot be built from what was given."""


class RobotFileError(ModelError):
    """A robot's file is missing, malformed, or says something that no model can mean."""


class ShapeError(JaxdynError, ValueError):
    """An array has the wrong shape or dtype."""


class UnknownNameError(JaxdynError, KeyError):
    """A name that the model does not have."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would escape quotes and newlines.
        return str(self.args[0]) if self.args else ""


class DataError(JaxdynError, ValueError):
    """A recording or a configuration file cannot be used as given."""


class PhysicalityWarning(UserWarning):
    """An inertia that no distribution of mass has."""


class NotConvergedWarning(UserWarning):
    """Derivatives are wanted of a solution that a solver did not reach; they are NaN."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the caller outside the library."""
    warnings.warn(plain_numbers(message), category, skip_file_prefixes=(os.path.dirname(__file__),))


def look_up(name: str, names: Iterable[str], kind: str) -> int:
    """The index of `name` in `names`; raises `UnknownNameError` with the nearest names."""
    names = tuple(names)
    if name in names:
        return names.index(name)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        shown = ", ".join(repr(n) for n in names[:20])
        hint = f"known: {shown}{', ...' if len(names) > 20 else ''}" if names else f"the model has no {kind}"
    raise UnknownNameError(f"no {kind} named {name!r}: {hint}")


def require_last_axes(array, shape: tuple[int, ...], what: str, meaning: str) -> None:
    """Raise `ShapeError` unless `array` ends with the axes `shape`; shapes are known while tracing."""
    got = tuple(array.shape)
    if len(got) < len(shape) or got[len(got) - len(shape) :] != shape:
        axes = ", ".join(str(n) for n in shape)
        raise ShapeError(f"{what} has shape {got}, but [..., {axes}] is needed: {meaning}")


def require_shape(array, shape: tuple[int, ...], what: str, meaning: str) -> None:
    """Raise `ShapeError` unless `array` has just this shape: where a single thing is meant, not a batch."""
    if tuple(array.shape) != shape:
        raise ShapeError(f"{what} has shape {tuple(array.shape)}, but {list(shape)} is needed: {meaning}")


def broadcast_batches(batches: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the common batch axes of named arrays. **Raises** `ShapeError` where they do not broadcast."""
    try:
        return np.broadcast_shapes(*batches.values())
    except ValueError:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in batches.items())
        raise ShapeError(f"the leading batch axes do not broadcast: {shown}") from None


def require_positive_integer(value, what: str, *, least: int = 1, error: type[JaxdynError] = ModelError) -> None:
    """Raise `error` unless `value` is a Python or NumPy integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        needed = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise error(f"{what} is {value!r}; {needed} is needed")


def require_positive(value, what: str, *, zero: bool = False, error: type[JaxdynError] = ModelError) -> None:
    """Raise `error` unless every number in `value` is finite and positive, or zero where `zero` allows it."""
    numbers = np.asarray(value, float)
    if not (np.isfinite(numbers) & (numbers >= 0 if zero else numbers > 0)).all():
        raise error(f"{what} is {value}; {'zero or ' if zero else ''}a positive, finite number is needed")


def require_finite(value, what: str, *, error: type[JaxdynError] = ModelError) -> None:
    """Raise `error` unless every number in `value` is finite."""
    if not np.isfinite(np.asarray(value, float)).all():
        raise error(f"{what} is not finite: {value}")


def require_choice(value, choices: Collection, what: str, *, error: type[JaxdynError] = ModelError) -> None:
    """Raise `error` unless `value` is one of `choices`."""
    if value not in choices:
        raise error(f"{what} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
