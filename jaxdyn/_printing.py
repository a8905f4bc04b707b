"""How results show themselves: first what a person asks, in few lines, as text and as a table in notebooks.

A class takes `one_line`, `text` and `table` as its `__repr__`, `__str__` and `_repr_html_`, and has a method `printed`
that returns `Facts`. The method may raise for objects without values: then the name of the class is all that shows.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxdyn._status import Status

type Facts = tuple[str, Mapping[str, str]]
"""A line that says how it ended, or what it is, and further facts by name."""

_MOST_FACTS = 11


def one_line(self: Any) -> str:
    """The name of the class with the first line of its facts."""
    return f"{type(self).__name__}({_facts(self)[0]})"


def text(self: Any) -> str:
    """The facts, one a line."""
    first, facts = _facts(self)
    width = max(map(len, facts), default=0)
    return "\n".join([f"{type(self).__name__}: {first}", *(f"  {name:<{width}}  {x}" for name, x in facts.items())])


def table(self: Any) -> str:
    """The facts as a table of HTML."""
    first, facts = _facts(self)
    return html_table(f"{type(self).__name__}: {first}", facts)


def html_table(title: str, facts: Mapping[str, str]) -> str:
    """A small table of HTML, without scripts; names and values are escaped."""
    cells = [(html.escape(name), html.escape(x)) for name, x in facts.items()]
    rows = "".join(f"<tr><th style='text-align:left'>{name}</th><td>{x}</td></tr>" for name, x in cells)
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


def lines_as_table(title: str, lines: Iterable[str]) -> str:
    """Lines of text as HTML, escaped, with their spaces."""
    return f"<div><b>{html.escape(title)}</b><pre>{html.escape(chr(10).join(lines))}</pre></div>"


def _facts(self: Any) -> Facts:
    # JAX prints pytrees in its errors, also those that hold tracers, shapes or other objects in the place of arrays.
    try:
        first, facts = self.printed()
        return str(first), {name: str(facts[name]) for name in list(facts)[:_MOST_FACTS]}
    except Exception:
        return "without values", {}


def is_concrete(x: Any) -> bool:
    """Whether `x` is a number or an array with values, which is not so under transformations."""
    return isinstance(x, int | float | np.generic | np.ndarray | jax.Array) and not isinstance(x, Tracer)


def number(value: Any, unit: str = "") -> str:
    """A number in words, or the range and the median of several."""
    x = np.asarray(value, float)
    end = f" {unit}" if unit else ""
    if not x.ndim or x.size == 1:
        return "not measured" if np.isnan(x).all() else f"{float(x.ravel()[0]):.6g}{end}"
    known = x[~np.isnan(x)]
    if not known.size:
        return "not measured"
    words = f"{known.min():.4g} to {known.max():.4g}{end}, median {np.median(known):.4g}"
    return words if known.size == x.size else f"{words}; NaN in {x.size - known.size} of {x.size}"


def percent(part: float) -> str:
    """A part of one in percent, with three digits."""
    return f"{100 * part:.3g} %"


def numbers(values: Any, unit: str = "", most: int = 7) -> str:
    """The first of some numbers, as a list."""
    x = np.asarray(values, float).ravel()
    shown = ", ".join(f"{y:.4g}" for y in x[:most]) + (f", ... ({x.size})" if x.size > most else "")
    return f"{shown}{' ' + unit if unit else ''}"


def state_facts(rows: Mapping[str, Any]) -> Facts:
    """The facts of arrays `[*batch, n]` of a state, by name; None and arrays without numbers are left out."""
    arrays = {name: np.asarray(x, float) for name, x in rows.items() if x is not None}
    batch = np.broadcast_shapes(*(x.shape[:-1] for x in arrays.values()))
    shown = {name: numbers(x) if x.ndim == 1 else f"{x.shape[-1]}: {number(x)}" for name, x in arrays.items() if x.size}
    sizes = ", ".join(f"{name} [{x.shape[-1]}]" for name, x in arrays.items() if x.size)
    return sizes + (f", batch {batch}" if batch else ""), shown


def names(words: Sequence[str], most: int = 7) -> str:
    """The first of some names, as a list."""
    return ", ".join(words[:most]) + (f", ... ({len(words)})" if len(words) > most else "")


def kinds(things: Iterable[Any]) -> str:
    """The names of the classes of some objects, with their numbers."""
    found = Counter(type(x).__name__ for x in things)
    return ", ".join(f"{n} {name}" for name, n in found.items()) or "none"


def status(code: Any) -> str:
    """A `Status` in words; for a batch, how many have converged."""
    codes = np.asarray(code)
    if codes.ndim:
        return f"{(codes == Status.CONVERGED).sum()} of {codes.size} converged"
    return Status(int(codes)).text


def intervals(found: Any, most: int = 6, choose: Callable[[str], bool] = lambda name: True) -> dict[str, str]:
    """Values with their intervals by name, of the first parameters that `choose` takes. `found` is an `Intervals`."""
    rows = zip(found.names, found.value, found.lower, found.upper, strict=True)
    chosen = [(name, f"{x:.4g} ({low:.4g} to {high:.4g})") for name, x, low, high in rows if choose(name)]
    return dict(chosen[:most])
