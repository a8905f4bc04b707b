"""Each `Solution` in words: what was reached, and what stands in the way."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._status import Status
from jaxdyn.trajopt.problem import (
    Constraint,
    PhasedDynamics,
    Problem,
    TimeVarying,
    WrappedDynamics,
    bound_excess,
    term_at_stage,
)

_NEAR = 1e-6
"""The distance from a bound, relative to `1 + |bound|`, within which a control counts as being there: interior point
methods stay inside."""
_ALSO, _SHOWN = 1e-3, 6
"""The part of the largest violation from which on other components count as violated, and how many of them are shown:
where constraints contradict each other, those that remain violated say which."""


def number_lines(solution: Any) -> list[str]:
    """The lines of a solution's cost, iterations and errors; for a batch, of their ranges."""
    residuals = solution.residuals
    numbers = {
        "cost": solution.cost,
        "iterations": solution.iterations,
        "violation": residuals.violation,
        "gap": residuals.gap,
        "stationarity": residuals.stationarity,
    }
    return [f"  {name:<13} {printing.number(value)}" for name, value in numbers.items()]


def multiplier_lines(solution: Any, problem: Problem | None = None) -> list[str]:
    """A line about the largest multiplier of a constraint; none for a batch, and without multipliers."""
    m = solution.multipliers
    if m is None or np.ndim(solution.status):
        return []
    best, text = 0.0, ""
    if m.stage is not None and np.size(m.stage):
        stage = np.nan_to_num(np.asarray(m.stage))
        k, i = np.unravel_index(np.abs(stage).argmax(), stage.shape)
        best, text = float(stage[k, i]), _place(problem, int(i), int(k))
    if m.terminal is not None and np.size(m.terminal):
        end = np.nan_to_num(np.asarray(m.terminal))
        i = int(np.abs(end).argmax())
        if abs(end[i]) > abs(best):
            best, text = float(end[i]), _place(problem, i, None)
    return [f"  multiplier    at most {abs(best):.4g}, at {text}"] if best else []


def _place(problem: Problem | None, i: int, k: int | None) -> str:
    """The words for row `i` of the constraints of stage `k`, or of the end for None."""
    where = "the end" if k is None else f"stage {k}"
    if problem is None:
        return f"{where}, row {i} of its constraints"
    terms = problem.terminal_constraints if k is None else problem.stage_constraints
    name = "terminal_constraints" if k is None else "stage_constraints"
    for j, (term, size) in enumerate(zip(terms, _sizes(problem, terms, k is None), strict=True)):
        if i < size:
            return f"{where}, {name}[{j}] ({_kind(term)}), component {i}"
        i -= size
    raise IndexError(i)


def _sizes(problem: Problem, terms, end: bool) -> list[int]:
    dynamics, dtype = problem.dynamics, problem.dtype

    def residual(term: Any, x, u):
        term = term.at(0) if isinstance(term, TimeVarying) else term
        return term.residual(dynamics, x, u, problem.horizon if end else 0)

    x = eqx.filter_eval_shape(lambda: problem.x0.astype(dtype))
    u = None if end else eqx.filter_eval_shape(lambda: problem.control_box[0][0])
    return [eqx.filter_eval_shape(residual, term, x, u).shape[0] for term in terms]


def _other_violations(problem: Problem, stage: np.ndarray, end: np.ndarray, largest: tuple[int, bool]) -> list[str]:
    """A line for each component that is violated by more than a small part of the largest violation, with its stages;
    the component `largest` has one only for further stages."""
    most = max(stage.max(initial=0.0), end.max(initial=0.0))
    components = [(i, True, sizes) for i, sizes in enumerate(stage.T)]
    components += [(i, False, sizes) for i, sizes in enumerate(end[:, None])]
    lines = []
    for i, of_stage, sizes in components:
        at, k = np.flatnonzero(sizes > _ALSO * most), int(sizes.argmax())
        if len(at) > ((i, of_stage) == largest):
            stages = f", in {len(at)} of {len(sizes)} stages ({_ranges(at)})" if of_stage else ""
            lines.append(f"                and {sizes[k]:.4g} at {_place(problem, i, k if of_stage else None)}{stages}")
    more = [f"                and {len(lines) - _SHOWN} more components"] if len(lines) > _SHOWN else []
    return lines[:_SHOWN] + more


def _kind(term) -> str:
    term = term.term if isinstance(term, TimeVarying) else term
    residual: Any = getattr(term, "residual", term)
    names = [type(residual).__name__]
    while (residual := getattr(residual, "residual", None)) is not None:
        names.append(type(residual).__name__)
    return " of ".join(names)


def describe(solution: Any, problem: Problem) -> list[str]:
    """The lines about where a solution is limited: its largest violation, those of the other constraints that are
    violated, its largest gap, what is not finite, controls at their bounds."""
    xs, us = solution.xs, solution.us
    stage, end, gaps, low, high = map(np.asarray, _distances(problem, xs, us))
    # NaN counts as the worst.
    worst_stage, worst_end, worst_gap = (_size(part).max(initial=0.0) for part in (stage, end, gaps))
    lines = []
    if max(worst_stage, worst_end) > 0:
        of_stage = worst_stage >= worst_end
        part = stage if of_stage else end[None]
        k, i = np.unravel_index(_size(part).argmax(), part.shape)
        side = "above its upper" if part[k, i] > 0 else "below its lower"
        what = f"at most {abs(part[k, i]):.4g}, {side} bound" if np.isfinite(part[k, i]) else "not finite"
        lines.append(f"  violation     {what}, at {_place(problem, int(i), int(k) if of_stage else None)}")
        lines += _other_violations(problem, _size(stage), _size(end), (int(i), of_stage))
    if worst_gap > 0:
        k, i = np.unravel_index(_size(gaps).argmax(), gaps.shape)
        what = f"at most {worst_gap:.4g}" if np.isfinite(worst_gap) else "not finite"
        lines.append(f"  gap           {what}, before state {k}, component {i}")
    if solution.status == Status.DIVERGED and np.isfinite(xs).all() and np.isfinite(us).all():
        lines += [f"  not finite    {line}" for line in values_not_finite(problem, xs, us)]
    lines += [*_contradicting_contacts(problem, xs, us), *multiplier_lines(solution, problem)]
    return [*lines, *_controls_at_bounds(np.asarray(us), low, high)]


def _contradicting_contacts(problem: Problem, xs, us) -> list[str]:
    """A line for each contact that does not hold where it should, because equations contradict each other."""

    def innermost(dynamics, x, u, k):
        while isinstance(dynamics, WrappedDynamics):
            dynamics, x, u = dynamics.inner_at(x, u, k), dynamics.inner_state(x), dynamics.inner_control(u)
        return dynamics, x, u

    phased, _, _ = innermost(problem.dynamics, xs[0], us[0], 0)
    if not isinstance(phased, PhasedDynamics):
        return []

    def errors(x, u, k):
        dynamics, x, u = innermost(problem.dynamics, x, u, k)
        assert isinstance(dynamics, PhasedDynamics)
        return dynamics.contact_errors(x, u, k)

    missed = np.abs(np.asarray(jax.vmap(errors)(xs[:-1], us, problem.stages))).max(axis=2)
    least = np.finfo(missed.dtype).eps ** 0.5 * max(1.0, np.abs(np.asarray(xs)).max())
    return [
        f"  contact       {name!r} moves by up to {missed[:, i].max():.2g} m/s or rad/s where it holds, at stage "
        f"{missed[:, i].argmax()}: its equations and those of others contradict each other"
        for i, (name, _) in enumerate(phased.contacts)
        if missed[:, i].max() > least
    ]


def values_not_finite(problem: Problem, xs, us) -> list[str]:
    """The costs, constraints and dynamics whose value or derivative along a trajectory is not finite, with the stages,
    in words."""
    dynamics, end = problem.dynamics, problem.horizon

    def of_dynamics(x, u, k):
        after = dynamics.step(x, u, k)
        return after, dynamics.linearize(x, u, k, after)

    def of_term(term):
        def evaluate(x, u, k):
            at = term_at_stage(term, k)
            if not isinstance(at, Constraint):
                expansion = at.gauss_newton(dynamics, x, u, k)
                return expansion.value, expansion[1:]
            r, low, high = at.evaluate(dynamics, x, u, k, problem.free_x0 is not None)
            has = jnp.isfinite(low) | jnp.isfinite(high)
            slopes = [J for J in at.residual.linearize(dynamics, x, u, k)[1:] if J is not None]
            return jnp.where(has, r, 0.0), [jnp.where(has[:, None], J, 0.0) for J in slopes]

        return evaluate

    stages, last = (xs[:-1], us, problem.stages), (xs[-1:],)
    parts: list[tuple[str, Any, Any]] = [("the dynamics", of_dynamics, stages)]
    for name in ("stage_costs", "stage_constraints", "terminal_costs", "terminal_constraints"):
        for j, term in enumerate(getattr(problem, name)):
            evaluate, of_end = of_term(term), name.startswith("terminal")
            function = (lambda x, f=evaluate: f(x, None, end)) if of_end else evaluate
            parts.append((f"{name}[{j}] ({_kind(term)})", function, last if of_end else stages))
    lines = []
    for what, function, arguments in parts:
        for kind, tree in zip(("value", "derivative"), jax.vmap(function)(*arguments), strict=True):
            finite = [np.isfinite(np.asarray(x)).reshape(len(x), -1).all(axis=1) for x in jax.tree.leaves(tree)]
            bad = np.flatnonzero(~np.all(finite, axis=0))
            if len(bad):
                where = "the end of the horizon" if arguments is last else f"stage {bad[0]} ({len(bad)} stages)"
                lines.append(f"the {kind} of {what} is not finite at {where}")
                break
    return lines


def _size(x: np.ndarray) -> np.ndarray:
    """The absolute values, infinite for what is not finite."""
    return np.where(np.isfinite(x), np.abs(x), np.inf)


@eqx.filter_jit
def _distances(problem: Problem, xs, us):
    """The excess of the constraints of stages and of the end, the gaps, and the bounds of the controls."""
    excess = bound_excess(*problem.constraints(xs, us))
    return *problem.split_rows(excess), problem.gaps(xs, us), *problem.control_box


def _controls_at_bounds(us: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[str]:
    lines = []
    for side, bound, distance in (("lower", low, us - low), ("upper", high, high - us)):
        at = np.isfinite(bound) & (distance <= _NEAR * (1 + np.abs(np.where(np.isfinite(bound), bound, 0))))
        for i in np.flatnonzero(at.any(axis=0)):
            text = f"{at[:, i].sum()} of {len(us)} stages ({_ranges(np.flatnonzero(at[:, i]))})"
            lines.append(f"  control {i:<5} at its {side} bound in {text}")
    return lines


def _ranges(numbers: np.ndarray) -> str:
    """Ascending integers as text: `0-3, 7, 9-12`."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return ", ".join(f"{p[0]}" if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
