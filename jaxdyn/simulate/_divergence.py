"""Roll-outs that stop being numbers: where and when, and how that is reported."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn._errors import JaxdynError
from jaxdyn.simulate._state import State

_SHOWN = 5


class DivergenceError(JaxdynError, ArithmeticError):
    """A roll-out has a state that is NaN or infinite."""


class Report(NamedTuple):
    """What went wrong in each element of the batch, `[*batch]`."""

    first: Any
    """The number of steps after which the state was first not finite; 0 for the start, -1 for never."""
    torque: Any
    """Whether the torques of that step were not finite."""

    @staticmethod
    def of_start(state: State) -> Report:
        bad = ~_finite(state)
        return Report(jnp.where(bad, 0, -1).astype(jnp.int32), jnp.zeros_like(bad))

    def after(self, state: State, tau, k) -> Report:
        """With step `k`, under `tau`, that ended in `state`."""
        now = (self.first < 0) & ~_finite(state)
        first = jnp.where(now, jnp.asarray(k + 1, jnp.int32), self.first)
        return Report(first, jnp.where(now, ~jnp.isfinite(tau).all(axis=-1), self.torque))


def _finite(state: State):
    return jnp.isfinite(state.q).all(axis=-1) & jnp.isfinite(state.v).all(axis=-1)


def checked[T](result: T, report: Report, dt) -> T:
    """`result`, with a `DivergenceError` where the report has one: at once in eager mode; under transformations when
    the program runs, as a run-time error of JAX with the same text."""
    values = (report.first, report.torque, dt)
    if not any(isinstance(x, Tracer) for x in values):
        for first, torque, at in _local_parts(report):
            _raise_if_bad(first, torque, dt, at)
        return result
    report = jax.tree.map(lax.stop_gradient, report)
    dt = lax.stop_gradient(jnp.asarray(dt))

    def look(first, torque, dt):
        return jax.pure_callback(
            _on_host, jax.ShapeDtypeStruct((), jnp.bool_), first, torque, dt, vmap_method="broadcast_all"
        )

    # The callback is entered only where it has something to say; a result that needs it keeps it in the program.
    seen = lax.cond((report.first >= 0).any(), look, lambda *_: jnp.zeros((), jnp.bool_), *report, dt)
    leaves, structure = jax.tree.flatten(result)
    return jax.tree.unflatten(structure, [_after(seen, x) for x in leaves])


def _after(seen, x):
    # `seen` is always false. Keys of random numbers cannot be selected so.
    return x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else jnp.where(seen, jnp.zeros_like(x), x)


def _on_host(first, torque, dt):
    first = np.asarray(first)
    _raise_if_bad(first, np.asarray(torque), float(np.ravel(dt)[0]), (0,) * first.ndim)
    return np.zeros(np.shape(dt), bool)


def _local_parts(report: Report):
    """The report's values on this host, with the place of each part in the whole batch."""
    if report.first.is_fully_addressable:
        yield np.asarray(report.first), np.asarray(report.torque), (0,) * report.first.ndim
        return
    for shard, torque in zip(report.first.addressable_shards, report.torque.addressable_shards, strict=True):
        at = tuple(i.start or 0 for i in shard.index)
        yield np.asarray(shard.data), np.asarray(torque.data), at


def _raise_if_bad(first: np.ndarray, torque: np.ndarray, dt, at: tuple[int, ...]) -> None:
    bad = np.argwhere(first >= 0)
    if not len(bad):
        return
    # The earliest first.
    bad = bad[np.argsort(first[tuple(bad.T)], kind="stable")] if first.ndim else bad
    lines = [_line(tuple(i), first, torque, float(dt), at) for i in bad[:_SHOWN]]
    more = f"\n... and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    raise DivergenceError(
        f"{len(bad)} of {first.size} roll-outs stopped being finite:\n" + "\n".join(lines) + more + "\nWhere the start "
        "is given as finite numbers, try a smaller dt, more substeps, or integrator='implicit_velocity' for stiff "
        "damping; see also the torques."
    )


def _line(index: tuple[int, ...], first: np.ndarray, torque: np.ndarray, dt: float, at: tuple[int, ...]) -> str:
    k = int(first[index])
    whole = tuple(int(i) + int(o) for i, o in zip(index, at, strict=True))
    what = f"batch element {whole[0] if len(whole) == 1 else whole}" if whole else "the roll-out"
    if k == 0:
        return f"{what}: the initial state is not finite"
    why = "; the torques of that step were not finite" if torque[index] else ""
    return f"{what}: first not finite after step {k - 1} (from 0), t = {k * dt:.6g} s{why}"
