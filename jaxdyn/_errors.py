"""The exceptions of the library, and the checks that raise them."""

import collections.abc
import contextlib
import difflib
import functools
import inspect
import math
import os
import re
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

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
    """An inertia that no distribution of mass has, or joints that can move without moving anything with inertia."""


class NotConvergedWarning(UserWarning):
    """Derivatives are wanted of a solution that a solver did not reach, or that is not unique; they are NaN."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the caller outside the library."""
    warnings.warn(plain_numbers(message), category, skip_file_prefixes=(os.path.dirname(__file__),))


def look_up(name: str, names: Iterable[str], kind: str) -> int:
    """The index of `name` in `names`; raises `UnknownNameError` with the nearest names."""
    names = tuple(names)
    if not isinstance(name, str):
        raise UnknownNameError(f"no {kind} named {_shown(name)}: a name is a text")
    if name in names:
        return names.index(name)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        shown = ", ".join(repr(n) for n in names[:20])
        hint = f"known: {shown}{', ...' if len(names) > 20 else ''}" if names else f"the model has no {kind}"
    raise UnknownNameError(f"no {kind} named {name!r}: {hint}")


def require_numbers(value, what: str, needed: str = "an array of real numbers") -> None:
    """Raise `ShapeError` unless `value` is a real number, an array of them, or lists that make one; also where it is
    traced. An array of booleans counts as one of numbers."""
    if isinstance(value, float | int):
        return
    if isinstance(value, list | tuple):
        problem = _problem_of_list(value)
    elif hasattr(value, "dtype"):
        # The floating-point types that NumPy does not know have the kind V, and no fields.
        kind = getattr(value.dtype, "kind", "O")
        real = kind in "fiub" or (kind == "V" and getattr(value.dtype, "names", None) is None)
        problem = "" if real else f"an array of {_KINDS.get(kind, 'objects')} (dtype {value.dtype})"
    elif hasattr(value, "__jax_array__") or hasattr(value, "__array__"):
        problem = ""
    else:
        problem = _shown(value)
    if problem:
        raise ShapeError(f"{what} is {problem}; {needed} is needed")


_KINDS = {"c": "complex numbers", "U": "texts", "S": "texts", "M": "dates", "m": "durations"}


def _problem_of_list(value: list | tuple) -> str:
    """Return what is wrong with lists that should make an array of real numbers, or nothing."""
    for x in value:
        if isinstance(x, list | tuple):
            if problem := _problem_of_list(x):
                return problem
            continue
        try:
            require_numbers(x, "")
        except ShapeError:
            return f"a {type(value).__name__} with {_shown(x)}"
    try:
        # Only the shapes are known of what is traced.
        np.stack([_placeholder(x) for x in value] or [np.zeros(0)])
    except ValueError:
        return f"a {type(value).__name__} whose rows have different lengths"
    return ""


def _placeholder(x) -> np.ndarray:
    if isinstance(x, list | tuple):
        return np.stack([_placeholder(y) for y in x] or [np.zeros(0)])
    return np.zeros(np.shape(x))


def _shown(value) -> str:
    """Return the kind of a value that is not an array of numbers, and a short value itself."""
    if value is None:
        return "None"
    text = repr(value) if isinstance(value, str | bytes | complex | float | int) else ""
    return _with_article(type(value).__name__) + (f" ({text})" if 0 < len(text) <= 40 else "")


def _with_article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def naming_arguments[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that raises the library's errors for arguments that are not what their annotations say: arrays
    of real numbers, and objects of the library. Annotations are read only for what is not an array of real numbers, and
    after another exception: calls cost no more."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for x in (*args, *kwargs.values()):
            if (x is None or isinstance(x, str | complex | list)) or (
                isinstance(x, np.ndarray | jax.Array) and getattr(x.dtype, "kind", "f") in "cOUS"
            ):
                require_arguments(function, args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            # Other errors of the library say what is wrong already.
            if isinstance(error, JaxdynError) and not isinstance(error, ShapeError):
                raise
            problem = wrong_argument(function, args, kwargs)
            if problem is None:
                raise
        raise problem from None

    return call


def checking_arguments[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that checks its arguments, as `naming_arguments` does, before every call: for constructors that
    keep what they are given."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        require_arguments(function, args, kwargs)
        return function(*args, **kwargs)

    return call


def wrong_argument(function: Callable, args: tuple, kwargs: Mapping[str, Any]) -> Exception | None:
    """Return the error about an argument that is missing, unknown, or not what its annotation says, or None."""
    try:
        require_arguments(function, args, kwargs)
    except (JaxdynError, TypeError) as problem:
        return problem
    return None


def require_arguments(function: Callable, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Raise `ShapeError`, which names the function and the argument, for one that is not what its annotation says, and
    `TypeError` for one that is missing or that the function does not have."""
    signature, hints = _annotations(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{_name_of(function)}: {error}") from None
    sizes = next((x for x in bound.arguments.values() if hasattr(x, "nv") and hasattr(x, "nq")), None)
    for name, value in bound.arguments.items():
        _require_kind(value, hints.get(name), f"{_name_of(function)}: `{name}`", sizes)


def _name_of(function: Callable) -> str:
    return function.__qualname__.removesuffix(".__init__")


@functools.cache
def _annotations(function: Callable) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return the signature of a function and the annotations of its parameters; those that cannot be read are Any."""
    signature = inspect.signature(function)
    try:
        hints = typing.get_type_hints(inspect.unwrap(function))
    except (NameError, TypeError):
        hints = dict.fromkeys(signature.parameters, Any)
    # An algorithm has another signature than the function that it decorates.
    return signature, {name: hints.get(name, x.annotation) for name, x in signature.parameters.items()}


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """Return the annotations of a class."""
    return typing.get_type_hints(kind)


def _require_kind(value, hint, what: str, sizes, fields: bool = True) -> None:
    """Raise `ShapeError` unless `value` is what an annotation says, as far as arrays and classes of the library go."""
    options = _options(hint)
    if (value is None and type(None) in options) or (callable(value) and Callable in options):
        return
    shapes = [x.dim_str for x in options if hasattr(x, "dim_str")]
    classes = tuple(x for x in options if isinstance(x, type) and x.__module__.startswith("jaxdyn"))
    classes = tuple(x for x in classes if not getattr(x, "_is_protocol", False))
    if isinstance(value, classes):
        for name, kind in _fields(type(value)).items() if fields and classes else ():
            if isinstance(value, tuple) or any(hasattr(x, "dim_str") for x in _options(kind)):
                _require_kind(getattr(value, name), kind, f"{what[:-1]}.{name}`", sizes, fields=False)
    elif shapes or "ArrayLike" in options:
        if Any not in options:
            require_numbers(value, what, _needed(shapes, sizes))
    elif classes and all(x in (*classes, type(None)) for x in options):
        needed = " or ".join(_with_article(x.__name__) for x in classes)
        raise ShapeError(f"{what} is {_shown(value)}; {needed} is needed")
    elif needed := _plain_kind(value, options, classes):
        raise ShapeError(f"{what} is {_shown(value)}; {needed} is needed")
    elif isinstance(value, list | tuple | np.ndarray):
        for kind in (x for x in options if typing.get_origin(x) is collections.abc.Sequence):
            for i, item in enumerate(value):
                _require_kind(item, typing.get_args(kind)[0], f"{what[:-1]}[{i}]`", sizes, fields)


def _plain_kind(value, options: list, classes: tuple[type, ...]) -> str:
    """Return the words for what the options of plain Python and the library's classes allow, if `value` is none of
    it."""
    plain = [x for x in options if x is not type(None) and x not in classes]
    kinds = [_PLAIN.get(x) or _PLAIN.get(typing.get_origin(x)) or _literal(x) for x in plain]
    known = [x for x in kinds if x is not None]
    if not known or len(known) < len(kinds) or any(fits(value) for _, fits in known):
        return ""
    return " or ".join([*dict(known), *(_with_article(x.__name__) for x in classes)])


def _literal(option) -> tuple[str, Callable[[Any], bool]] | None:
    """Return the words for the choices of a `Literal`, and whether a value is of the kind of one."""
    if typing.get_origin(option) is not typing.Literal:
        return None
    kinds = tuple(type(x) for x in typing.get_args(option))
    return "a text" if str in kinds else "an integer", lambda value: isinstance(value, kinds)


def _is_number(value) -> bool:
    with contextlib.suppress(ShapeError):
        require_numbers(value, "")
        return True
    return False


def _is_whole(value) -> bool:
    return _is_number(value) and (isinstance(value, Tracer) or not (np.asarray(value) % 1).any())


_PATH = "a path", lambda value: isinstance(value, str | os.PathLike)
_PLAIN: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    float: ("a number", _is_number),
    int: ("an integer", _is_whole),
    str: ("a text", lambda value: isinstance(value, str)),
    os.PathLike: _PATH,
    Path: _PATH,
    jax.Array: ("an array", lambda value: isinstance(value, jax.Array | np.ndarray)),
    collections.abc.Mapping: ("a mapping", lambda value: isinstance(value, Mapping)),
    collections.abc.Sequence: ("a list", lambda value: isinstance(value, Iterable) and not isinstance(value, Mapping)),
    Callable: ("a function", callable),
    tuple: ("a tuple", lambda value: isinstance(value, list | tuple)),
}
"""The kinds of annotations of plain Python, each with its words and whether a value is of that kind."""


def _options(hint) -> list:
    """Return the kinds that an annotation allows."""
    if isinstance(hint, typing.TypeAliasType):
        return [hint.__name__] if hint.__name__ == "ArrayLike" else _options(hint.__value__)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [x for part in typing.get_args(hint) for x in _options(part)]
    return [Callable if origin is collections.abc.Callable else hint]


def _needed(shapes: list[str], sizes) -> str:
    """Return the words for an array of the shape of an annotation, such as `"*#batch nq"`."""
    if not shapes:
        return "an array of real numbers"
    axes = [x.replace("#", "") for x in shapes[0].split()]
    known = [f"{x} = {getattr(sizes, x)}" for x in dict.fromkeys(axes) if x in ("nq", "nv", "nb") and sizes is not None]
    return f"an array of shape [{', '.join(axes)}]" + (f", with {', '.join(known)}," if known else "")


def require_last_axes(array, shape: tuple[int, ...], what: str, meaning: str) -> None:
    """Raise `ShapeError` unless `array` ends with the axes `shape`; shapes are known while tracing."""
    got = tuple(array.shape)
    if len(got) < len(shape) or got[len(got) - len(shape) :] != shape:
        axes = ", ".join(str(n) for n in shape)
        raise ShapeError(f"{what} has shape {got}, but [..., {axes}] is needed: {meaning}")


def require_floating(dtype) -> None:
    """Raise `ShapeError` unless `dtype` is a type of floating-point numbers."""
    if dtype is not None and not isinstance(dtype, list | tuple | dict):
        with contextlib.suppress(TypeError):
            if jnp.issubdtype(jax.dtypes.canonicalize_dtype(dtype), np.floating):
                return
    shown = str(dtype) if isinstance(dtype, type | np.dtype) else _shown(dtype)
    raise ShapeError(f"dtype is {shown}; a type of floating-point numbers is needed, such as jnp.float32")


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
    require_numbers(value, what)
    numbers = np.asarray(value, float)
    if not (np.isfinite(numbers) & (numbers >= 0 if zero else numbers > 0)).all():
        raise error(f"{what} is {value}; {'zero or ' if zero else ''}a positive, finite number is needed")


def require_time_step(dt, what: str = "dt") -> None:
    """Raise `ModelError` unless a time step is a positive, finite number of seconds, or `ShapeError` for what is not
    one number. Nothing is known about a step that is traced."""
    if isinstance(dt, Tracer) or (type(dt) is float and 0.0 < dt < math.inf):
        return
    require_numbers(dt, what, "a positive, finite number of seconds")
    if np.shape(dt) != ():
        shape = np.shape(dt)
        raise ShapeError(f"{what} has shape {shape}, but all elements of a batch share one step: give a number (s)")
    if not 0.0 < float(dt) < math.inf:
        raise ModelError(f"{what} is {dt!r}; a positive, finite number is needed (s)")


def require_finite(value, what: str, *, error: type[JaxdynError] = ModelError) -> None:
    """Raise `error` unless every number in `value` is finite."""
    require_numbers(value, what)
    if not np.isfinite(np.asarray(value, float)).all():
        raise error(f"{what} is not finite: {value}")


def require_suffix(path: str | os.PathLike, suffixes: Collection[str], what: str) -> Path:
    """Return the path of a file to be written. **Raises** `DataError` unless it ends with one of `suffixes`, such as
    `.png`, and its folder exists: before long work, not after it."""
    out = Path(path)
    if out.suffix.lower() not in suffixes or out.is_dir():
        known = ", ".join(suffixes)
        named = f"ends with {out.suffix!r}" if out.suffix else "has no ending such as .png"
        raise DataError(f"{what} {str(path)!r} {'is a folder' if out.is_dir() else named}; it must end with {known}")
    if not out.parent.is_dir():
        raise DataError(f"{what} {str(path)!r}: there is no folder {str(out.parent)!r}; make it, or give another path")
    return out


def require_choice(value, choices: Collection, what: str, *, error: type[JaxdynError] = ModelError) -> None:
    """Raise `error` unless `value` is one of `choices`."""
    try:
        known = value in choices
    except (TypeError, ValueError):
        # Arrays are compared number by number, and lists cannot be looked up in sets.
        known = False
    if not known:
        raise error(f"{what} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
