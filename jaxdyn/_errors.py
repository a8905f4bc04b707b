"""The exceptions of the library, and the checks that raise them."""

import collections.abc
import contextlib
import dataclasses
import difflib
import functools
import math
import os
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._messages import LONG, plain_message
from jaxdyn._signatures import advice, annotations_of, look_at_configurations, options_of


class JaxdynError(Exception):
    """Base of every exception that the library raises on purpose."""

    def __init__(self, *args: object):
        super().__init__(*(plain_message(x) if isinstance(x, str) else x for x in args))


class ArgumentError(JaxdynError, TypeError):
    """An argument that is missing, or that the function does not have."""


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
    """An inertia that no distribution of mass has, joints that can move without moving anything with inertia, or a
    configuration far beyond the limits of a joint."""


class DivergenceWarning(UserWarning):
    """A roll-out stopped being finite, a time step is longer than is stable, or gradients through a roll-out grow until
    they are of no use."""


class NotConvergedWarning(UserWarning):
    """Derivatives are wanted of a solution that a solver did not reach, or that is not unique; they are NaN."""


_INSIDE = tuple(os.path.dirname(file) for file in (__file__, str(equinox.__file__)))
"""The folders of the library, and of the one that calls the methods of its classes."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the caller outside the library."""
    warnings.warn(plain_message(message), category, skip_file_prefixes=_INSIDE)


def look_up(name: str, names: Iterable[str], kind: str) -> int:
    """The index of `name` in `names`; raises `UnknownNameError` with the nearest names."""
    names = tuple(names)
    if not isinstance(name, str):
        raise UnknownNameError(f"no {kind} named {_shown(name)}: a name is a text")
    if name in names:
        return names.index(name)
    near = difflib.get_close_matches(name[:LONG], names, n=3, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
    else:
        shown = ", ".join(repr(n) for n in names[:20])
        hint = f"known: {shown}{', ...' if len(names) > 20 else ''}" if names else f"the model has no {kind}"
    raise UnknownNameError(f"no {kind} named {name!r}: {hint}")


def require_numbers(value, what: str, needed: str = "an array of real numbers") -> None:
    """Raise `ShapeError` unless `value` is a real number, an array of them, or lists that make one; also where it is
    traced. An array of booleans counts as one of numbers."""
    if isinstance(value, float) or (isinstance(value, int) and -_HUGE <= value <= _HUGE):
        return
    if isinstance(value, int):
        problem = "an integer beyond the range of floating-point numbers"
    elif isinstance(value, list | tuple):
        problem = _problem_of_list(value)
    elif hasattr(value, "dtype") and not hasattr(value.dtype, "kind") and hasattr(value, "__dlpack__"):
        advice = "jax.dlpack.from_dlpack(x) makes an array of JAX of it (in PyTorch, of x.detach())"
        problem = f"{_with_article(type(value).__name__)} of {type(value).__module__.partition('.')[0]}: {advice}"
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        # The floating-point types that NumPy does not know have the kind V, and no fields.
        kind = getattr(value.dtype, "kind", "O")
        real = kind in "fiub" or (kind == "V" and getattr(value.dtype, "names", None) is None)
        problem = "" if real else f"an array of {_KINDS.get(kind, 'objects')} (dtype {value.dtype})"
    elif hasattr(value, "__jax_array__") or hasattr(value, "__array__"):
        problem = ""
    else:
        inside = [x for x in ("q", "tau") if hasattr(value, x)]
        problem = _shown(value) + (f", which has arrays such as its `{inside[0]}`" if inside else "")
    if problem:
        raise ShapeError(f"{what} is {problem}; {needed} is needed")


_HUGE = int(np.finfo(np.float64).max)
"""The largest integer that has a place among the floating-point numbers."""
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
    after another exception: calls cost no more. Models look at their configurations first."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        look_at_configurations(function, args, kwargs)
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
    except JaxdynError as problem:
        return problem
    return None


def require_arguments(function: Callable, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Raise `ShapeError`, which names the function and the argument, for one that is not what its annotation says, and
    `ArgumentError` for one that is missing or that the function does not have."""
    signature, hints = annotations_of(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        constructs = function.__qualname__.endswith(".__init__")
        reason = _advice_on_fields(type(args[0]), signature.parameters, kwargs) if constructs else None
        reason = reason or advice(signature, args, kwargs) or error
        raise ArgumentError(f"{_name_of(function)}: {reason}") from None
    sizes = next((x for x in bound.arguments.values() if hasattr(x, "nv") and hasattr(x, "nq")), None)
    for name, value in bound.arguments.items():
        _require_kind(value, hints.get(name), f"{_name_of(function)}: `{name}`", sizes)


def _advice_on_fields(kind: type, parameters: Collection[str], kwargs: Mapping[str, Any]) -> str | None:
    """Return what to do instead of `dataclasses.replace`, where a constructor is given fields of its class that it does
    not take; None for other calls."""
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    if not (given := [name for name in kwargs if name in fields and name not in parameters]):
        return None
    methods = ", ".join(name for name in dir(kind) if name.startswith("with_"))
    return (
        f"{', '.join(given)} are fields that the constructor does not take, so dataclasses.replace makes no other "
        f"{kind.__name__}; take equinox.tree_at(lambda x: x.{given[0]}, ...)" + (f", or {methods}" if methods else "")
    )


def _name_of(function: Callable) -> str:
    return function.__qualname__.removesuffix(".__init__")


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """Return the annotations of a class."""
    return typing.get_type_hints(kind)


def require_kind(
    value,
    kind: type | tuple[type, ...],
    what: str,
    *others: str,
    advice: str = "",
    error: type[JaxdynError] = ShapeError,
) -> None:
    """Raise `error` unless `value` is of one of some classes; `others` says what may be given besides."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds):
        words = ["None" if x is type(None) else _with_article(x.__name__) for x in kinds]
        inside = [x for x in ("model", "actuation") if isinstance(getattr(value, x, None), kinds[0])]
        advice = f"it has one: give its `{inside[0]}`" if inside else advice
        end = f"; {advice}" if advice else ""
        raise error(f"{what} is {_shown(value)}; {' or '.join([*words, *others])} is needed{end}")


def _require_kind(value, hint, what: str, sizes, fields: bool = True) -> None:
    """Raise `ShapeError` unless `value` is what an annotation says, as far as arrays and classes of the library go."""
    options = options_of(hint)
    if (value is None and type(None) in options) or (callable(value) and Callable in options):
        return
    shapes = [x.dim_str for x in options if hasattr(x, "dim_str")]
    classes = tuple(x for x in options if isinstance(x, type) and x.__module__.startswith("jaxdyn"))
    classes = tuple(x for x in classes if not getattr(x, "_is_protocol", False))
    if isinstance(value, classes):
        for name, kind in _fields(type(value)).items() if fields and classes else ():
            if isinstance(value, tuple) or any(hasattr(x, "dim_str") for x in options_of(kind)):
                _require_kind(getattr(value, name), kind, f"{what[:-1]}.{name}`", sizes, fields=False)
    elif shapes or "ArrayLike" in options:
        if Any not in options:
            require_numbers(value, what, _needed(shapes, sizes))
    elif classes and all(x in (*classes, type(None)) for x in options):
        require_kind(value, classes, what)
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
        return jnp.broadcast_shapes(*batches.values())
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
