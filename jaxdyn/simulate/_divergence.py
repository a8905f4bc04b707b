"""Roll-outs that stop being finite: the element, the step, and the error that names them."""

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
    """The step after which each element of the batch stopped being finite, `[*batch]`."""

    first: Any
    """The number of steps after which the state was first not finite; 0 for the start, -1 for never."""
    inputs: Any
    """Whether the torques or the external wrenches of that step were not finite."""

    @staticmethod
    def of_start(state: State) -> "Report":
        finite = _finite(state)
        return Report(jnp.where(finite, -1, 0).astype(jnp.int32), jnp.zeros_like(finite))

    def after(self, state: State, tau, f_ext, k) -> "Report":
        """The report after step `k`, under `tau` and `f_ext`, that ended in `state`."""
        bad = ~jnp.isfinite(tau).all(axis=-1)
        if f_ext is not None:
            bad = bad | ~jnp.isfinite(f_ext).all(axis=(-2, -1))
        now = (self.first < 0) & ~_finite(state)
        return Report(jnp.where(now, jnp.asarray(k + 1, jnp.int32), self.first), jnp.where(now, bad, self.inputs))


def _finite(state: State):
    return jnp.isfinite(state.q).all(axis=-1) & jnp.isfinite(state.v).all(axis=-1)


def raise_divergence[T](result: T, report: Report, dt) -> T:
    """Return `result`, or raise `DivergenceError` if the report has one: at once in eager mode; under transformations
    when the program runs, as a run-time error of JAX with the same text."""
    if not any(isinstance(x, Tracer) for x in (*report, dt)):
        for first, inputs, offset in _local_parts(report):
            _raise_first(first, inputs, dt, offset)
        return result
    report, dt = jax.tree.map(lax.stop_gradient, (report, dt))

    def look(*values):
        result = jax.ShapeDtypeStruct((), jnp.bool_)
        return jax.pure_callback(_raise_on_host, result, *values, vmap_method="broadcast_all")

    def depend(x):
        # `seen` is always false. Keys of random numbers cannot be selected like this.
        return x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else jnp.where(seen, jnp.zeros_like(x), x)

    # The callback runs only if something diverged. The result depends on its output, so that the compiler keeps it.
    seen = lax.cond((report.first >= 0).any(), look, lambda *_: jnp.zeros((), jnp.bool_), *report, dt)
    return jax.tree.map(depend, result)


def _raise_on_host(first, inputs, dt):
    first = np.asarray(first)
    _raise_first(first, np.asarray(inputs), float(np.ravel(dt)[0]), (0,) * first.ndim)
    return np.zeros(np.shape(dt), bool)


def _local_parts(report: Report):
    """The report's values on this host, with the offset of each part in the whole batch."""
    if report.first.is_fully_addressable:
        yield np.asarray(report.first), np.asarray(report.inputs), (0,) * report.first.ndim
        return
    for shard, inputs in zip(report.first.addressable_shards, report.inputs.addressable_shards, strict=True):
        yield np.asarray(shard.data), np.asarray(inputs.data), tuple(i.start or 0 for i in shard.index)


def _raise_first(first: np.ndarray, inputs: np.ndarray, dt, offset: tuple[int, ...]) -> None:
    """Raise `DivergenceError` with the earliest elements that diverged, if there are any."""
    bad = np.argwhere(first >= 0)
    if not len(bad):
        return
    bad = bad[np.argsort(first[tuple(bad.T)], kind="stable")] if first.ndim else bad
    lines = [_line(tuple(i), first, inputs, float(dt), offset) for i in bad[:_SHOWN]]
    more = f"\n... and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    raise DivergenceError(
        f"{len(bad)} of {first.size} roll-outs stopped being finite:\n" + "\n".join(lines) + more + "\nIf the start "
        "is finite, try a smaller dt, more substeps, or integrator='implicit_velocity' for stiff damping, and look at "
        "the torques."
    )


def _line(index: tuple[int, ...], first: np.ndarray, inputs: np.ndarray, dt: float, offset: tuple[int, ...]) -> str:
    k = int(first[index])
    whole = tuple(int(i) + int(o) for i, o in zip(index, offset, strict=True))
    what = f"batch element {whole[0] if len(whole) == 1 else whole}" if whole else "the roll-out"
    if k == 0:
        return f"{what}: the initial state is not finite"
    why = "; the torques or wrenches of that step were not finite" if inputs[index] else ""
    return f"{what}: first not finite after step {k - 1} (from 0), t = {k * dt:.6g} s{why}"
