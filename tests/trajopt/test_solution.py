"""Solutions and their histories in words, tables and plots, and what limits a trajectory."""

import io
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxdyn import ModelError
from jaxdyn.trajopt import (
    Constraint,
    ControlResidual,
    DiscreteDynamics,
    Gains,
    History,
    IterationRecord,
    Multipliers,
    Problem,
    QuadraticCost,
    Residuals,
    Selected,
    Solution,
    StateResidual,
    Status,
    TimeVarying,
    progress_line,
)
from jaxdyn.trajopt._history import report_iteration

HORIZON = 6


def step(x, u, t, params):
    return jnp.array([x[0] + x[1], x[1] + u[0]])


def problem() -> Problem:
    return Problem(
        DiscreteDynamics(step, 2, 1),
        np.zeros(2),
        HORIZON,
        stage_costs=[QuadraticCost(ControlResidual())],
        stage_constraints=[
            Constraint(ControlResidual(), -5.0, 5.0),
            TimeVarying(Constraint(Selected(StateResidual(), [1]), -np.full(HORIZON, np.inf), np.ones(HORIZON))),
        ],
        terminal_constraints=[Constraint(StateResidual(np.array([3.0, 0.0])))],
        control_lower=-np.inf,
        control_upper=1.0,
    )


def solution(p, us, xs=None, status=Status.OUT_OF_ITERATIONS, multipliers=None) -> Solution:
    us = jnp.asarray(us)[:, None]
    xs = p.rollout(us) if xs is None else xs
    gap = jnp.abs(p.gaps(xs, us)).max()
    residuals = Residuals(gap, jnp.asarray(jnp.nan), p.violation(xs, us))
    numbers = jnp.asarray(int(status)), jnp.asarray(17)
    return Solution(xs, us, p.total_cost(xs, us), *numbers, residuals, None, multipliers)


US = [1.0, 1.0, 0.5, 1.0, -1.0, -2.5]
"""Velocities 0, 1, 2, 2.5, 3.5, 2.5, and zero at the end, where the position is 11.5."""


def test_what_limits_a_solution_is_named():
    p = problem()
    multipliers = Multipliers(None, jnp.zeros((HORIZON, 2)).at[3, 1].set(4.5), jnp.array([0.5, -2.0]))
    text = solution(p, US, multipliers=multipliers).describe(p)
    assert "out of iterations" in text
    assert (
        "at most 8.5, above its upper bound, at the end, terminal_constraints[0] (StateResidual), component 0" in text
    )
    assert "at most 4.5, at stage 3, stage_constraints[1] (Selected of StateResidual), component 0" in text
    assert "control 0     at its upper bound in 3 of 6 stages (0-1, 3)" in text
    assert "lower bound in" not in text
    assert "gap           at most" not in text
    # Now the largest violation is at stage 4, where the velocity is too large, and a state has a gap.
    near = eqx.tree_at(lambda p: p.terminal_constraints[0].residual.target, p, jnp.array([11.4, 0.0]))
    xs = p.rollout(jnp.asarray(US)[:, None]).at[2, 0].add(0.25)
    text = solution(near, US, xs).describe(near)
    assert "at most 2.5, above its upper bound, at stage 4, stage_constraints[1]" in text
    assert "at most 0.25, before state 2, component 0" in text
    assert "multiplier" not in text


def test_states_that_are_not_finite_are_found():
    p = problem()
    xs = p.rollout(jnp.asarray(US)[:, None]).at[3].set(jnp.nan)
    text = solution(p, US, xs, Status.DIVERGED).describe(p)
    assert "violation     not finite, at stage 3, stage_constraints[1]" in text
    assert "gap           not finite, before state 3" in text


def test_a_solution_without_limits():
    p = problem()
    free = Problem(p.dynamics, p.x0, HORIZON, stage_costs=p.stage_costs)
    assert solution(free, np.zeros(HORIZON), status=Status.CONVERGED).describe(free).endswith("limited by\n  nothing")


def test_solutions_are_words_not_shapes():
    p = problem()
    one = solution(p, US, multipliers=Multipliers(None, None, jnp.array([0.5, -2.0])))
    assert repr(one) == "Solution(out of iterations, cost 5.25, 17 iterations)"
    text = str(one)
    assert text.startswith("out of iterations")
    assert "iterations    17" in text
    assert "stationarity  not measured" in text
    assert "at most 2, at the end, row 1 of its constraints" in text
    many = jax.tree.map(lambda a: jnp.stack([a, a]), one)
    many = eqx.tree_at(lambda s: s.status, many, jnp.array([Status.CONVERGED, Status.STALLED]))
    assert repr(many) == "Solution(1 of 2 converged)"
    assert "1 of 2 stalled" in str(many)
    assert "median 5.25" in str(many)
    with pytest.raises(ModelError, match="describe needs one solution"):
        many.describe(p)
    seen = []
    jax.jit(lambda s: seen.append((repr(s), str(s))) or s.cost)(one)
    assert seen == [("Solution(without values)",) * 2]
    assert "float" not in repr(jax.eval_shape(lambda s: s, one))


def test_solutions_stay_pytrees():
    one = solution(problem(), US)
    gains = Gains(jnp.zeros((HORIZON, 1, 2)), jnp.zeros((HORIZON, 1)))
    more = eqx.tree_at(lambda s: s.gains, one, gains, is_leaf=lambda x: x is None)
    assert len(jax.tree.leaves(more)) == len(jax.tree.leaves(one)) + 2
    np.testing.assert_array_equal(jax.jit(lambda s: s)(more).us, one.us)


def newton(start, length=8, progress=None):
    """Newton's method for a root of `x^2 - 2`, with its history, in a compiled loop."""

    def iterate(state):
        x, i, status, history = state
        error = jnp.abs(x * x - 2)
        record = IterationRecord(cost=error, gap=jnp.where(i == 1, 0.0, error), step_length=1.0)
        after = jnp.where(error < 1e-9, Status.CONVERGED, Status.RUNNING)
        report_iteration(progress, i, record, after, running=status == Status.RUNNING)
        return x - (x * x - 2) / (2 * x), i + 1, after, history.stored(i, record)

    start = jnp.asarray(start), jnp.zeros((), int), jnp.asarray(int(Status.RUNNING)), History.empty(length)
    return lax.while_loop(lambda s: s[2] == Status.RUNNING, iterate, start)[3]


def test_histories_are_stored_in_compiled_loops():
    history = jax.jit(newton)(1.0)
    n = int(history.iterations)
    assert n == 5
    np.testing.assert_allclose(history.cost[:3], [1, 0.25, (17 / 12) ** 2 - 2], rtol=1e-12)
    assert np.isnan(history.cost[n:]).all()
    assert np.isnan(history.barrier).all()
    assert float(history.record(1).cost) == 0.25
    lines = str(history).splitlines()
    assert len(lines) == n + 1
    assert lines[0].split() == ["iter", "cost", "gap", "step"]
    assert lines[2].split() == ["1", "2.50000e-01", "0.00e+00", "1.0000"]
    assert len({len(line) for line in lines}) == 1
    assert repr(history) == "History(5 iterations)"


def test_histories_that_are_too_short_or_of_a_batch():
    short = newton(1.0, length=2)
    np.testing.assert_allclose(short.cost, [1, 0.25])
    assert str(short).endswith("and 3 more iterations, which are not recorded")
    batch = jax.vmap(newton)(jnp.array([1.0, 10.0]))
    np.testing.assert_array_equal(batch.iterations, [5, 8])
    assert "jax.tree.map(lambda a: a[i], history)" in str(batch)
    np.testing.assert_allclose(jax.tree.map(lambda a: a[0], batch).cost, newton(1.0).cost)
    with pytest.raises(ModelError, match="a batch of"):
        batch.plot()
    with pytest.raises(ModelError, match="the length of a history is 0"):
        History.empty(0)
    with pytest.raises(ModelError, match="no iterations to plot"):
        History.empty(3).plot()


def test_a_plot_shows_everything(tmp_path):
    """A logarithmic axis has crosses for zeros, and a panel without numbers is left out."""
    figure = newton(1.0).plot(tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 5000
    cost, gap, step = figure.axes
    assert {axis.get_yscale() for axis in figure.axes} == {"log"}
    np.testing.assert_allclose(cost.lines[0].get_ydata()[:2], [1, 0.25])
    assert [list(line.get_xdata()) for line in gap.lines if line.get_marker() == "x"] == [[1]]
    assert step.get_xlabel() == "iteration"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_progress(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    jax.block_until_ready(jax.jit(lambda x: newton(x, progress=progress_line))(1.0).cost)
    jax.effects_barrier()
    text = stream.getvalue()
    assert text.endswith("converged: the tolerances are met\n")
    if isinstance(stream, Terminal):
        assert text.count("\r\x1b[K") == 5
        assert text.count("\n") == 2
        assert "1: cost 0.25, gap 0, step length 1" in text
    else:
        lines = text.splitlines()
        assert [line.split()[0] for line in lines] == ["iter", "0", "4", "converged:"]
        assert lines[0].split()[:2] == ["iter", "cost"]


def test_a_long_solve_writes_a_row_of_progress_every_ten_seconds(monkeypatch):
    stream, clock = io.StringIO(), iter(4.0 * np.arange(100))
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    for i in range(20):
        progress_line(i, IterationRecord(cost=1.0 / (1 + i)), Status.RUNNING if i < 19 else Status.CONVERGED)
    rows = [int(line.split()[0]) for line in stream.getvalue().splitlines()[1:-1]]
    assert rows[0] == 0
    assert rows[-1] == 19
    assert 4 < len(rows) < 12
    assert np.diff(rows)[:-1].min() > 1


def test_elements_of_a_batch_that_have_ended_report_no_more():
    seen = []

    def progress(iteration, record, status):
        seen.append((int(iteration), float(record.cost), int(status)))

    jax.block_until_ready(jax.vmap(lambda x: newton(x, progress=progress))(jnp.array([1.0, 10.0])))
    jax.effects_barrier()
    assert len(seen) == 5 + 8
    assert sum(status == Status.CONVERGED for *_, status in seen) == 2
