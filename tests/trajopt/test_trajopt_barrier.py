"""Single iterations of the solver of problems with constraints, from states that a solve reaches seldom."""

import functools
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.trajopt import (
    Constraint,
    ControlResidual,
    DDPOptions,
    DiscreteDynamics,
    FunctionCost,
    Problem,
    QuadraticCost,
    StateResidual,
    Status,
)
from jaxdyn.trajopt.ddp._barrier import Sides
from jaxdyn.trajopt.ddp._batches import where_needed
from jaxdyn.trajopt.ddp._constrained import HARDEST, MEMORY, _initial_state, _iterate
from jaxdyn.trajopt.ddp._constrained_solution import constrained_solution
from jaxdyn.trajopt.ddp._constrained_state import (
    FAR,
    LONG_PATIENCE,
    PATIENCE,
    ConstrainedState,
    Watch,
    guess_cost_scale,
    row_scale,
)
from jaxdyn.trajopt.ddp._expansion import Stationarity, expand
from jaxdyn.trajopt.ddp._filter import Filter, Point, Trial, search
from jaxdyn.trajopt.ddp._newton_step import WATCHED, _prices, _watched

CONTROLS = jnp.array([[0.4], [0.2]])


@functools.cache
def problem() -> Problem:
    """Return two steps with curved dynamics, a limit of the state and bounds on the controls."""
    return Problem(
        DiscreteDynamics(lambda x, u, t, params: x + jnp.sin(u), 1, 1),
        np.zeros(1),
        2,
        stage_costs=[QuadraticCost(ControlResidual(), 0.1)],
        terminal_costs=[QuadraticCost(StateResidual(np.array([1.5])), 1.0)],
        terminal_constraints=[Constraint(StateResidual(), -np.inf, 1.0)],
        control_lower=-1.0,
        control_upper=1.0,
    )


@functools.cache
def options() -> DDPOptions:
    return DDPOptions().with_defaults(problem().dtype, robot=False)


compiled = eqx.filter_jit(lambda p, options, s: _iterate(p, options, None, s))


def iterate(s: ConstrainedState) -> ConstrainedState:
    # Plain numbers become arrays whose types are weak, with which the iteration would be compiled again.
    return compiled(problem(), options(), jax.tree.map(lambda x: jnp.asarray(x, x.dtype), s))


@functools.cache
def begun() -> ConstrainedState:
    """Return the state after an iteration, moved to a roll-out that is far from a solution of its barrier problem."""
    start = eqx.filter_jit(lambda p, options: _initial_state(p, options, CONTROLS, None, None))
    s = iterate(start(problem(), options()))
    assert s.iterations == 1
    xs = problem().rollout(CONTROLS)
    # No slope is within the tolerance of this barrier, so only the promised decrease may end it.
    return s._replace(xs=xs, us=CONTROLS, gaps=jnp.zeros_like(s.gaps), tolerance=jnp.asarray(1e-30))


@pytest.mark.slow
@pytest.mark.parametrize("regularized", [False, True])
def test_a_decrease_made_small_by_regularization_solves_no_barrier_problem(regularized):
    before = begun()._replace(promised=jnp.asarray(0.0), regularized=jnp.asarray(regularized))
    # The products of the bounds' multipliers and distances are those of the barrier.
    low, high = problem().control_box
    barrier = before.barrier
    before = before._replace(box=Sides(barrier / (before.us - low), barrier / (high - before.us)))
    after = iterate(before)
    assert after.updates == before.updates + (not regularized)
    if not regularized:
        assert after.barrier < before.barrier


@pytest.mark.slow
@pytest.mark.parametrize(("times", "after_times"), [(100.0, 10.0), (5.0, 1.0), (0.5, 0.5)])
def test_penalties_of_violated_inequalities_stop_growing(times, after_times):
    """`delta` is the inverse of the penalty, here in multiples of the least one that a violation leads to."""
    before, us = begun(), jnp.full((2, 1), 0.9)
    least = HARDEST * before.unit_of_delta()
    before = before._replace(
        xs=problem().rollout(us),
        us=us,
        promised=jnp.asarray(jnp.inf),
        waited=jnp.asarray(PATIENCE, jnp.int32),
        rows=before.rows._replace(delta=times * least),
    )
    after = iterate(before)
    np.testing.assert_allclose(after.rows.delta, after_times * least)
    assert (after.waited == 0) == (times > 1)


@eqx.filter_jit
def sizes_at_zero(p: Problem, widths) -> jax.Array:
    """The sizes of the constraints where all states and controls are zero, with controls of these ranges."""
    us, xs = jnp.zeros(widths.shape), jnp.zeros((len(widths) + 1, p.dynamics.nx))
    e, rows = expand(p, xs, us, p.gaps(xs, us))
    return row_scale(p, rows, e, xs, widths)


def moved_by_a_force(x, u, t, params):
    return x + 1e-6 * u


@pytest.mark.parametrize("highest", [2.0, 0.0])
def test_constraints_in_other_units_have_sizes_of_their_own(highest):
    """A force of a million newtons stands beside a height, which moves by 2 m in a step with a force that changes by
    its range. A height that has to be at most zero, and is zero at the guess, has this size, too."""
    p = Problem(
        DiscreteDynamics(moved_by_a_force, 1, 1),
        np.zeros(1),
        2,
        terminal_costs=[QuadraticCost(StateResidual())],
        stage_constraints=[
            Constraint(ControlResidual(), -1e6, 1e6),
            Constraint(StateResidual(), -np.inf, highest),
        ],
        control_lower=-1e6,
        control_upper=1e6,
    )
    np.testing.assert_allclose(sizes_at_zero(p, np.full((2, 1), 2e6)), [1e6, 2.0, 1e6, 2.0])


def test_rounding_is_not_the_size_of_a_constraint():
    """The second component is zero but for rounding, so its size is a small part of the other one's."""
    p = Problem(
        DiscreteDynamics(lambda x, u, t, params: x + jnp.array([1.0, 1e-17]) * u, 2, 1),
        np.zeros(2),
        2,
        stage_costs=[QuadraticCost(ControlResidual())],
        terminal_constraints=[Constraint(StateResidual(np.array([1.0, 0.0])))],
    )
    first, second = sizes_at_zero(p, np.ones((2, 1)))
    np.testing.assert_allclose(second, FAR * first)


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_no_solve_begins_anew_in_its_last_iteration(last):
    """Steps have been so short that a solve with iterations left begins anew."""
    iterations = int(options().max_iterations) - 1 if last else 7
    before = begun()._replace(mean_step_length=jnp.asarray(1e-9), iterations=jnp.asarray(iterations, jnp.int32))
    before = before._replace(scale=before.scale._replace(displacement=jnp.asarray(1e9)), filter=Filter.empty(float))
    before = before._replace(xs=problem().rollout(jnp.full((2, 1), 0.9)), us=jnp.full((2, 1), 0.9))
    after = iterate(before)
    assert int(after.restarts) == (0 if last else 1)
    assert after.status == (Status.OUT_OF_ITERATIONS if last else Status.RUNNING)
    assert (after.xs[1:] == 0).all() != last


@pytest.mark.slow
@pytest.mark.parametrize("violated", [False, True])
def test_tiny_steps_far_from_feasible_points_count_as_none(violated):
    """A step is tiny beside a displacement of 1e6 before it. Two controls of 0.9 violate the limit of the state, and
    two of 0.3 do not."""
    before, us = begun(), jnp.full((2, 1), 0.9 if violated else 0.3)
    displacement = jnp.asarray(1e6)
    before = before._replace(
        xs=problem().rollout(us),
        us=us,
        scale=before.scale._replace(displacement=displacement),
        filter=Filter.empty(float),
    )
    after = iterate(before)
    assert (after.xs != before.xs).any()
    before_mean, after_mean = float(before.mean_step_length), float(after.mean_step_length)
    if violated:
        assert after_mean == MEMORY * before_mean
    else:
        assert after_mean > MEMORY * before_mean


def growing(x, u, t, params):
    return params * x + u


def last_state(x, u, t, params):
    return x[0] + params


@eqx.filter_jit
def cost_scale(p: Problem, us) -> jax.Array:
    """The scale of the cost for these controls, where all states are zero and controls have the range one."""
    xs = jnp.zeros((len(us) + 1, p.dynamics.nx))
    guess = types.SimpleNamespace(xs=xs, us=us, gaps=p.gaps(xs, us))
    e, _ = expand(p, xs, us, guess.gaps)
    station, _ = Stationarity.of(e, e.stage.x, (e.stage.u,), e.terminal.x)
    return guess_cost_scale(p, guess, e, station.slopes, jnp.ones(us.shape))


@pytest.mark.parametrize(
    ("growth", "control", "constant", "expected"),
    # The way of one and of 40 gaps, with and without a constant in the cost; the way of one.
    [(10.0, 1.0, 0.0, 41.0), (10.0, 1.0, 2e6, 41.0), (1.0, 0.0, 0.0, 1.0)],
)
def test_the_scale_of_the_cost_is_not_that_of_an_unstable_motion(growth, control, constant, expected):
    """The last control changes the last state by one, the first one by the growth to the power of 39."""
    p = Problem(
        DiscreteDynamics(growing, 1, 1, jnp.asarray(growth)),
        np.zeros(1),
        40,
        terminal_costs=[FunctionCost(last_state, jnp.asarray(constant))],
    )
    np.testing.assert_allclose(cost_scale(p, np.full((40, 1), control)), expected, rtol=1e-9)


@pytest.mark.slow
def test_second_derivatives_of_functions_after_many_iterations_with_one_barrier():
    def policy(waited: int):
        before = begun()._replace(promised=jnp.asarray(jnp.inf), waited=jnp.asarray(waited, jnp.int32))
        return iterate(before).policy

    gauss_newton = policy(0)
    # The iteration that is under way counts.
    np.testing.assert_array_equal(policy(LONG_PATIENCE - 2).Quu, gauss_newton.Quu)
    assert jnp.abs(policy(LONG_PATIENCE - 1).Quu - gauss_newton.Quu).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("distance", "multiplier", "moved"), [(1e-8, 1e-3, True), (1e-3, 2e-3, False)])
def test_controls_far_from_their_bounds_stay_where_they_are(distance, multiplier, moved):
    """A multiplier that is as small as a control's distance from its bound does not say that the control is there;
    moving it would open a gap."""
    s = begun()
    us = jnp.array([[-1.0 + 2 * distance], [1.0 - 2 * distance]])
    box = Sides(jnp.array([[multiplier], [0.0]]), jnp.array([[0.0], [multiplier]]))
    s = s._replace(us=us, box=box, scale=s.scale._replace(cost=jnp.ones(())), status=jnp.asarray(Status.CONVERGED))
    found = eqx.filter_jit(lambda p, options, s: constrained_solution(p, options, s).us)(problem(), options(), s)
    np.testing.assert_array_equal(found, jnp.array([[-1.0], [1.0]]) if moved else us)


def test_prices_of_gaps_are_those_of_the_lagrangian_and_of_absolute_values():
    gaps, costates = jnp.array([[0.1, -0.2], [0.0, 0.3]]), jnp.array([[1.0, 2.0], [-4.0, 0.5]])
    linear, absolute = _prices(gaps, jnp.array([0.5, -1.0]), costates, jnp.array([2.0, 3.0]))
    np.testing.assert_allclose(linear, 0.1 - 0.4 + 0.15 + 1.0 - 3.0)
    np.testing.assert_allclose(absolute, 4.0 * 0.1 + 2.0 * 0.5 + 1.0 + 3.0)


def point_at(infeasibility, objective, lagrangian) -> Point:
    nothing = jnp.zeros(())
    merits = jnp.array([lagrangian, objective + 10 * infeasibility])
    return Point(nothing, nothing, nothing, jnp.asarray(infeasibility), jnp.asarray(objective), merits)


@jax.jit
def along_a_circle(watched, lagrangian, infeasibility) -> Trial:
    """A search where a whole step has this Lagrangian and infeasibility, and only its half is within the filter."""

    def step(alpha):
        far, near = point_at(infeasibility, 1.0, lagrangian), point_at(0.01, -0.5, -0.5)
        return jax.tree.map(lambda a, b: jnp.where(alpha > 0.7, a, b), far, near), -alpha

    start, empty = point_at(0.1, 0.0, 0.0), Filter.empty(jnp.zeros(()).dtype)
    rules = {"watched": watched, "priced": jnp.array(False), "forced": jnp.array(False)}
    return search(start, empty.with_point(start), 20.0, step, jnp.ones(()), jnp.array(True), 1.0, **rules)


@pytest.mark.parametrize(
    ("watched", "lagrangian", "infeasibility", "whole"),
    [(True, -1.0, 1.0, True), (False, -1.0, 1.0, False), (True, 0.0, 1.0, False), (True, -1.0, 3.0, False)],
)
def test_whole_steps_along_curved_constraints_need_the_lagrangian(watched, lagrangian, infeasibility, whole):
    """A whole step increases infeasibility and objective, as along a circle."""
    trial = along_a_circle(watched, lagrangian, infeasibility)
    assert bool(trial.accepted)
    assert (float(trial.alpha), bool(trial.by_lagrangian)) == ((1.0, True) if whole else (0.5, False))
    assert int(trial.filter.count) == (0 if whole else 2)


@jax.jit
def closing_gaps(priced, forced) -> Trial:
    """A search where a roll-out halves the infeasibility, and the objective becomes 1e25."""

    def step(alpha):
        costly = jnp.where(alpha > 0.07, 1e25, 0.0)
        return point_at(1 - 0.5 * alpha, costly, costly), alpha

    empty, yes = Filter.empty(jnp.zeros(()).dtype), jnp.array(True)
    rules = {"watched": jnp.array(False), "priced": priced, "forced": forced}
    return search(point_at(1.0, 0.0, 0.0), empty, 1.0, step, jnp.ones(()), yes, 1.0, **rules)


@pytest.mark.parametrize(("priced", "forced", "taken"), [(False, False, 1.0), (True, False, 0.0625), (True, True, 1.0)])
def test_roll_outs_that_close_gaps_at_any_cost_are_refused(priced, forced, taken):
    """Only a sixteenth of the roll-out is worth its objective at the multipliers; where steps need not be, or are taken
    whatever they lead to, the whole step is taken."""
    assert float(closing_gaps(priced, forced).alpha) == taken


def test_batches_compute_only_what_one_of_them_needs():
    calls = []

    def function(x):
        jax.debug.callback(lambda: calls.append(1))
        return x**2

    @jax.jit
    @jax.vmap
    def run(x, condition):
        return where_needed(condition, lambda: function(x), -x)

    x = jnp.arange(1.0, 4.0)
    np.testing.assert_array_equal(run(x, jnp.zeros(3, bool)), -x)
    jax.effects_barrier()
    assert not calls
    np.testing.assert_array_equal(run(x, jnp.array([False, True, False])), [-1.0, 4.0, -3.0])
    jax.effects_barrier()
    assert calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "infeasibility", "outcome"),
    [(1, 0.2, "goes on"), (1, 0.01, "improves"), (WATCHED - 1, 0.2, "goes back"), (-1, 0.2, "has ended")],
)
def test_steps_that_the_filter_refused_are_taken_back_unless_one_improves_upon_it(steps, infeasibility, outcome):
    here = begun()
    empty = here.filter
    old = here.watch.before._replace(xs=here.xs + 1.0, filter=empty.with_point(point_at(0.1, 0.0, 0.0)))
    here = here._replace(watch=Watch(old, jnp.asarray(steps)))
    there = point_at(infeasibility, 1.0, 0.0)
    trial = Trial(jnp.array(True), jnp.ones(()), there, empty, jnp.array(False))
    after, alpha = _watched(here, there, trial, here._replace(filter=empty), trial.alpha)
    back = outcome == "goes back"
    np.testing.assert_array_equal(after.xs, old.xs if back else here.xs)
    assert alpha == (0.0 if back else 1.0)
    assert after.filter.count == (1 if outcome in ("improves", "goes back") else 0)
    assert after.watch.steps == {"goes on": steps + 1, "improves": 0, "goes back": -1, "has ended": -1}[outcome]
