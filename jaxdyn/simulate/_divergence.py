"""Roll-outs that stop being finite, or whose contacts are not solved: the element, the step, and the error that names
them."""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn._errors import DivergenceWarning, JaxdynError, warn
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.solve import SolverReport

_SHOWN = 5


class DivergenceError(JaxdynError, ArithmeticError):
    """A roll-out has a state that is NaN or infinite, or contacts that were not solved to their tolerance."""


class Report(NamedTuple):
    """The step after which each element of the batch stopped being finite, `[*batch]`."""

    first: Any
    """The number of steps after which the state was first not finite; 0 for the start, -1 for never."""
    inputs: Any
    """Whether the torques or the external wrenches of that step were not finite."""
    unsolved: Any
    """The number of steps after the first whose contacts were not solved to their tolerance; -1 for never."""

    @staticmethod
    def of_start(state: State) -> "Report":
        finite = _finite(state)
        first = jnp.where(finite, -1, 0).astype(jnp.int32)
        return Report(first, jnp.zeros_like(finite), jnp.full_like(first, -1))

    def after(self, state: State, tau, f_ext, k, contact: SolverReport | None) -> "Report":
        """The report after step `k`, under `tau` and `f_ext`, that ended in `state`, and whose contacts were solved as
        `contact` says."""
        bad = ~jnp.isfinite(tau).all(axis=-1)
        if f_ext is not None:
            bad = bad | ~jnp.isfinite(f_ext).all(axis=(-2, -1))
        now = (self.first < 0) & ~_finite(state)
        after = jnp.asarray(k + 1, jnp.int32)
        unsolved = self.unsolved
        if contact is not None:
            # NaN is above the tolerance too, and what is not finite has its own line.
            unsolved = jnp.where((unsolved < 0) & (self.first < 0) & ~now & ~contact.converged, after, unsolved)
        return Report(jnp.where(now, after, self.first), jnp.where(now, bad, self.inputs), unsolved)


def _finite(state: State):
    # A control that is not finite reaches the activation of a filter first.
    rows = (x for x in (state.q, state.v, state.activation) if x is not None)
    return functools.reduce(operator.and_, (jnp.isfinite(x).all(axis=-1) for x in rows))


def raise_divergence[T](result: T, report: Report, dt) -> T:
    """Return `result`, or raise `DivergenceError` if the report has one: at once in eager mode; under transformations
    when the program runs, as a run-time error of JAX with the same text."""
    if not any(isinstance(x, Tracer) for x in (*report, dt)):
        for part, offset in _local_parts(report):
            _raise_first(part, dt, offset)
        return result
    report, dt = jax.tree.map(lax.stop_gradient, (report, dt))

    def look(*values):
        result = jax.ShapeDtypeStruct((), jnp.bool_)
        return jax.pure_callback(_raise_on_host, result, *values, vmap_method="broadcast_all")

    def depend(x):
        # `seen` is always false. Keys of random numbers cannot be selected like this.
        return x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else jnp.where(seen, jnp.zeros_like(x), x)

    # The callback runs only if something diverged. The result depends on its output, so that the compiler keeps it.
    found = ((report.first >= 0) | (report.unsolved >= 0)).any()
    seen = lax.cond(found, look, lambda *_: jnp.zeros((), jnp.bool_), *report, dt)
    return jax.tree.map(depend, result)


def _raise_on_host(first, inputs, unsolved, dt):
    report = Report(*map(np.asarray, (first, inputs, unsolved)))
    _raise_first(report, float(np.ravel(dt)[0]), (0,) * report.first.ndim)
    return np.zeros(np.shape(dt), bool)


def _local_parts(report: Report):
    """The report's values on this host, with the offset of each part in the whole batch."""
    if report.first.is_fully_addressable:
        yield Report(*map(np.asarray, report)), (0,) * report.first.ndim
        return
    for shards in zip(*(x.addressable_shards for x in report), strict=True):
        yield Report(*(np.asarray(x.data) for x in shards)), tuple(i.start or 0 for i in shards[0].index)


def _earliest(first: np.ndarray) -> np.ndarray:
    """Return the indices of the elements that have a step, the earliest first."""
    bad = np.argwhere(first >= 0)
    return bad[np.argsort(first[tuple(bad.T)], kind="stable")] if first.ndim else bad


def _raise_first(report: Report, dt, offset: tuple[int, ...]) -> None:
    """Raise `DivergenceError` with the earliest elements that diverged or whose contacts were not solved, if there are
    any."""
    bad = _earliest(report.first)
    if not len(bad):
        _raise_unsolved(report.unsolved, dt, offset)
        return
    raise DivergenceError(_text(report, bad, dt, offset))


def _text(report: Report, bad: np.ndarray, dt, offset: tuple[int, ...]) -> str:
    lines = [_line(tuple(i), report.first, report.inputs, float(dt), offset) for i in bad[:_SHOWN]]
    more = f"\n... and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return (
        f"{len(bad)} of {report.first.size} roll-outs stopped being finite:\n" + "\n".join(lines) + more + "\nIf the "
        "start is finite, try a smaller dt or more substeps, integrator='implicit_velocity' for stiff damping and "
        "friction, or 'rk4' for fast motions without them, in a world a smaller time step, and look at the torques."
    )


def warn_of_divergence(trajectory: Trajectory, dt, every: int) -> None:
    """Warn of roll-outs whose last of the samples, one in `every` steps, is not finite, as `DivergenceError` says it.

    Nothing is said about values that are traced, or on an accelerator, for which the program would have to wait: the
    steps of a CPU take the time of the program in any case."""
    q, v = trajectory.q, trajectory.v
    if isinstance(q, Tracer) or not q.is_fully_addressable or any(x.platform != "cpu" for x in q.devices()):
        return
    q, v = np.asarray(q), np.asarray(v)
    if np.isfinite(q[..., -1, :]).all() and np.isfinite(v[..., -1, :]).all():
        return
    finite = np.isfinite(q).all(axis=-1) & np.isfinite(v).all(axis=-1)
    sample = np.where(finite.all(axis=-1), -1, finite.argmin(axis=-1))
    inputs = np.zeros(sample.shape, bool)
    acted = trajectory.control if trajectory.tau is None else trajectory.tau
    if acted is not None and acted.shape[-2]:
        tau = np.isfinite(np.asarray(acted)).all(axis=-1)
        inputs = ~np.take_along_axis(tau, np.maximum(sample - 1, 0)[..., None], axis=-1)[..., 0]
    report = Report(np.where(sample > 0, every * sample, sample), inputs, None)
    text = _text(report, _earliest(report.first), dt, (0,) * sample.ndim)
    note = f" Samples are {every} steps apart, and the steps named are the last before one." if every > 1 else ""
    warn(text + note, DivergenceWarning)


def _raise_unsolved(first: np.ndarray, dt, offset: tuple[int, ...]) -> None:
    bad = _earliest(first)
    if not len(bad):
        return
    lines = [f"{_name(i, offset)}: step {first[tuple(i)] - 1} (from 0), t = {first[tuple(i)] * dt:.6g} s" for i in bad]
    more = f"\n... and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    raise DivergenceError(
        f"{len(bad)} of {first.size} roll-outs have contacts that were not solved to their tolerance, first in:\n"
        + "\n".join(lines[:_SHOWN])
        + f"{more}\nTry a smaller dt, or more iterations or a larger tolerance in SolverOptions; Trajectory.contact "
        "has the errors of all steps."
    )


def _name(index, offset: tuple[int, ...]) -> str:
    whole = tuple(int(i) + int(o) for i, o in zip(index, offset, strict=True))
    return f"batch element {whole[0] if len(whole) == 1 else whole}" if whole else "the roll-out"


def _line(index: tuple[int, ...], first: np.ndarray, inputs: np.ndarray, dt: float, offset: tuple[int, ...]) -> str:
    k = int(first[index])
    what = _name(index, offset)
    if k == 0:
        return f"{what}: the initial state is not finite"
    why = "; the torques or wrenches of that step were not finite" if inputs[index] else ""
    return f"{what}: first not finite after step {k - 1} (from 0), t = {k * dt:.6g} s{why}"
