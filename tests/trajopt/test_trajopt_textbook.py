"""Textbook problems whose costs have no curvature in the controls, whose motion is unstable, or whose guess is far from
any motion that meets the constraints, against IPOPT."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments._optimal_control._ipopt import Ipopt
from jaxdyn.trajopt import (
    Constraint,
    ContinuousDynamics,
    ControlResidual,
    DiscreteDynamics,
    FreeTimeDynamics,
    FunctionCost,
    FunctionResidual,
    Problem,
    QuadraticCost,
    Selected,
    StateResidual,
    ddp,
)
from tests.trajopt.optimality import assert_optimal


def largest_orbit() -> Problem:
    """Return the transfer to the largest circular orbit with a given small thrust, whose direction is the control
    (Bryson & Ho, Applied Optimal Control, 1975, section 2.5)."""

    def rate(x, u, t, params):
        radius, outward, along = x
        push = 0.1405 / (1 - 0.0749 * t)
        return jnp.array(
            [
                outward,
                (along**2 - 1 / radius) / radius + push * jnp.sin(u[0]),
                push * jnp.cos(u[0]) - outward * along / radius,
            ]
        )

    def off_circle(x, u, t, params):
        return jnp.array([x[1], x[2] - jax.lax.rsqrt(x[0])])

    return Problem(
        ContinuousDynamics(rate, 3, 1, dt=3.32 / 60),
        np.array([1.0, 0.0, 1.0]),
        60,
        terminal_costs=[FunctionCost(lambda x, u, t, params: -x[0])],
        terminal_constraints=[Constraint(FunctionResidual(off_circle, of_state=True))],
    )


def unstable_regulator() -> Problem:
    """Return a problem in which an error grows by 1e21 over the horizon, and costates that are not exact as well."""

    def rate(x, u, t, params):
        return jnp.array([x[1], 6 * x[0] + x[1] + u[0]])

    return Problem(
        ContinuousDynamics(rate, 2, 1, dt=0.1),
        np.array([1.0, 0.0]),
        160,
        stage_costs=[QuadraticCost(StateResidual(), 0.1), QuadraticCost(ControlResidual(), 0.01)],
        stage_constraints=[
            Constraint(FunctionResidual(lambda x, u, t, params: x[:1] + x[1:], of_state=True), -1.0, 2.0)
        ],
        terminal_constraints=[Constraint(StateResidual(np.array([0.5, 0.0])))],
    )


def least_time() -> Problem:
    """Return the double integrator that comes to rest in least time (Bryson & Ho, section 3.9)."""

    def rate(x, u, t, params):
        return jnp.array([x[1], u[0]])

    dynamics = FreeTimeDynamics(ContinuousDynamics(rate, 2, 1, dt=0.1))
    lower, upper = dynamics.control_box(-1.0, 1.0)
    return Problem(
        dynamics,
        np.array([3.0, 1.0]),
        40,
        stage_costs=[FunctionCost(lambda x, u, t, params: 0.1 * u[1])],
        terminal_constraints=[Constraint(StateResidual())],
        control_lower=lower,
        control_upper=upper,
    )


def turn_past_cone() -> Problem:
    """Return the turn of a spacecraft, with an axis that has to stay 20 degrees away from a direction. Its attitude is
    in modified Rodrigues parameters (Schaub & Junkins, Analytical Mechanics of Space Systems, 2003, section 3.5)."""
    inertia, direction = np.array([1.0, 2.0, 3.0]), np.array([0.4, 0.9, 0.1])

    def rate(x, u, t, params):
        p, w = x[:3], x[3:]
        turning = 0.25 * ((1 - p @ p) * w + 2 * jnp.cross(p, w) + 2 * p * (p @ w))
        return jnp.concatenate([turning, (u - jnp.cross(w, inertia * w)) / inertia])

    def alignment(x, u, t, params):
        p, axis = x[:3], jnp.array([1.0, 0.0, 0.0])
        across, square = jnp.cross(p, axis), p @ p
        turned = axis + (8 * jnp.cross(p, across) + 4 * (1 - square) * across) / (1 + square) ** 2
        return (turned @ direction / np.linalg.norm(direction))[None]

    return Problem(
        ContinuousDynamics(rate, 6, 3, dt=0.25),
        np.zeros(6),
        80,
        stage_costs=[QuadraticCost(ControlResidual(), 0.25)],
        stage_constraints=[
            Constraint(FunctionResidual(alignment, of_state=True), -np.inf, np.cos(np.deg2rad(20))),
            Constraint(Selected(StateResidual(), (3, 4, 5)), -0.3, 0.3),
        ],
        terminal_constraints=[Constraint(StateResidual(np.array([0.1, 0.3, 0.55, 0.0, 0.0, 0.0])))],
        control_lower=-0.25,
        control_upper=0.25,
    )


def mars_landing() -> Problem:
    """Return the descent to Mars with least fuel, in SI units: squared thrusts are a hundred thousand times as large as
    heights (Acikmese & Ploen, Convex programming approach to powered descent guidance for Mars landing, J. Guid.
    Control Dyn. 2007, section V). The thrust is between bounds, and the path above a cone of 4 degrees."""
    cosine, duration = np.cos(np.deg2rad(27)), 75.0
    least, most = 6 * 3100.0 * cosine * np.array([0.3, 0.8])
    fuel = 1 / (225 * 9.807 * cosine)

    def rate(x, u, t, params):
        return jnp.concatenate([x[3:6], u / x[6] - jnp.array([3.7114, 0, 0]), -fuel * jnp.sqrt(u @ u + 1e-12)[None]])

    def height_above_cone(x, u, t, params):
        return (x[0] - np.tan(np.deg2rad(4)) * jnp.sqrt(x[1] ** 2 + x[2] ** 2 + 1e-6))[None]

    return Problem(
        ContinuousDynamics(rate, 7, 3, dt=duration / 60),
        np.array([1500.0, 0, 2000, -75, 0, 100, 1905]),
        60,
        terminal_costs=[FunctionCost(lambda x, u, t, params: -x[6])],
        stage_constraints=[
            Constraint(FunctionResidual(lambda x, u, t, params: (u @ u)[None]), least**2, most**2),
            Constraint(FunctionResidual(height_above_cone, of_state=True), 0.0, np.inf),
        ],
        terminal_constraints=[
            Constraint(Selected(StateResidual(), tuple(range(6)))),
            Constraint(Selected(StateResidual(), (6,)), 1505.0, np.inf),
        ],
    )


def hand_on_a_line() -> Problem:
    """Return the motion of three links, driven by accelerations, whose end stays on a vertical line."""
    dt, start = 0.05, np.array([0.3, 0.9, 0.5])

    def hand(q):
        angles = jnp.cumsum(q)
        return jnp.stack([jnp.cos(angles).sum(), jnp.sin(angles).sum()])

    def step(x, u, t, params):
        v = x[3:] + dt * u
        return jnp.concatenate([x[:3] + dt * v, v])

    def off(x, u, t, first):
        return hand(x[:3]) - first

    first = hand(start)
    sideways = FunctionResidual(lambda x, u, t, first: off(x, u, t, first)[:1], first, of_state=True)
    limits = Selected(StateResidual(), (0, 1, 2))
    return Problem(
        DiscreteDynamics(step, 6, 3, dt=dt),
        np.concatenate([start, np.zeros(3)]),
        40,
        stage_costs=[QuadraticCost(ControlResidual(), 0.1 * dt)],
        stage_constraints=[
            Constraint(sideways),
            Constraint(limits, np.array([-1.5, 0.1, 0.1]), np.array([1.5, 2.5, 2.5])),
        ],
        terminal_constraints=[
            Constraint(FunctionResidual(off, first - jnp.array([0.0, 2.0]), of_state=True)),
            Constraint(Selected(StateResidual(), (3, 4, 5))),
        ],
        control_lower=-10.0,
        control_upper=10.0,
    )


def two_bends() -> Problem:
    """Return a small race car's way through two bends, with limits of its accelerations: the car of acados'
    `race_cars` (Kloeser et al., NMPC for racing using a singularity-free path-parametric model with obstacle avoidance,
    IFAC 2020). Its position is the distance along the track and from its middle. At the center of a bend, outside of
    the bounds, the rate along the track is infinite."""

    def curvature(s):
        return 3.0 * jnp.exp(-(((s - 1.0) / 0.35) ** 2)) - 3.5 * jnp.exp(-(((s - 2.2) / 0.3) ** 2))

    def force(x):
        return (0.28 - 0.05 * x[3]) * x[4] - 0.006 * x[3] ** 2 - 0.011 * jnp.tanh(5 * x[3])

    def rate(x, u, t, params):
        s, off, angle, v, _, steering = x
        along = v * jnp.cos(angle + 0.5 * steering) / (1 - curvature(s) * off)
        turn = 15.5 * v * steering - curvature(s) * along
        push = force(x) / 0.043 * jnp.cos(0.5 * steering)
        return jnp.stack([along, v * jnp.sin(angle + 0.5 * steering), turn, push, u[0], u[1]])

    def accelerations(x, u, t, params):
        sideways = 15.5 * x[3] ** 2 * x[5] + force(x) * jnp.sin(0.5 * x[5]) / 0.043
        return jnp.stack([force(x) / 0.043, sideways])

    dt, edges = 0.03, np.array([0.12, 1.0, 0.4])
    return Problem(
        ContinuousDynamics(rate, 6, 2, dt=dt),
        np.array([0, 0.05, 0, 0.8, 0, 0]),
        50,
        stage_costs=[
            QuadraticCost(StateResidual(), dt * np.array([0, 1e-2, 1e-2, 0, 1e-3, 5e-3])),
            QuadraticCost(ControlResidual(), dt * np.array([1e-3, 5e-3])),
            FunctionCost(lambda x, u, t, params: -dt * x[0]),
        ],
        terminal_costs=[FunctionCost(lambda x, u, t, params: -x[0])],
        stage_constraints=[
            Constraint(Selected(StateResidual(), (1, 4, 5)), -edges, edges),
            Constraint(FunctionResidual(accelerations, of_state=True), -4.0, 4.0),
        ],
        control_lower=np.array([-10.0, -2.0]),
        control_upper=np.array([10.0, 2.0]),
    )


solve = jax.jit(ddp)


@functools.cache
def prepared(make) -> tuple[Problem, Ipopt]:
    """Return a problem and IPOPT for it, compiled once for all guesses."""
    problem = make()
    return problem, Ipopt(problem)


def solutions(make, guess):
    """Return the solutions of `ddp`, which is judged, and of IPOPT from the same guess."""
    problem, ipopt = prepared(make)
    us, xs = problem.guess(jnp.asarray(guess))[::-1]
    found = solve(problem, us, xs)
    assert_optimal(problem, found)
    return found, ipopt(us, xs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "guess"),
    [
        (largest_orbit, 0.0),
        (largest_orbit, 1.0),
        (unstable_regulator, 0.0),
        (least_time, (0.5, 0.3)),
    ],
)
def test_optimum_is_that_of_ipopt(make, guess):
    found, expected = solutions(make, guess)
    np.testing.assert_allclose(found.cost, expected.cost, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "scale"), [(mars_landing, (8e3, 8e3, 8e3)), (hand_on_a_line, (10.0, 10.0, 10.0)), (two_bends, (10.0, 2.0))]
)
def test_most_random_guesses_lead_to_the_optimum(make, scale):
    """Penalties in the unit of another constraint solve the first problem from no guess, penalties that grow while a
    problem is not solved the second one from a quarter of the guesses, and inequalities that are soft in all new
    beginnings the third one from no guess."""
    problem, ipopt = prepared(make)
    guesses = np.random.default_rng(0).uniform(-1, 1, (8, 1, len(scale))) * scale * np.ones((8, problem.horizon, 1))
    found = [solve(problem, *problem.guess(jnp.asarray(us))[::-1]) for us in guesses]
    solved = [s for s in found if s.success]
    assert len(solved) >= 6
    best = min(float(s.cost) for s in solved)
    for s in solved:
        assert_optimal(problem, s)
        np.testing.assert_allclose(s.cost, best, rtol=1e-3)
    # IPOPT may end in a local minimum, but finds nothing better.
    other = ipopt(guesses[0])
    assert not other.success or best <= other.cost + 1e-6 * abs(other.cost)


@pytest.mark.slow
def test_turn_past_a_cone_from_a_guess_that_spins():
    """From this guess IPOPT ends in a local minimum with a larger cost."""
    found, other = solutions(turn_past_cone, (0.2, -0.25, 0.2))
    assert found.cost <= other.cost


def two_poles_on_a_cart() -> Problem:
    """Return the swing-up of a double pendulum on a cart of limited travel by a limited force, at rest at both ends."""
    mass, length, gravity = 0.3, 0.5, 9.81

    def rate(x, u, t, params):
        (_, a, b), v = x[:3], x[3:]
        coupling = mass * length**2 * jnp.cos(a - b)
        matrix = jnp.array(
            [
                [1 + 2 * mass, 2 * mass * length * jnp.cos(a), mass * length * jnp.cos(b)],
                [2 * mass * length * jnp.cos(a), 2 * mass * length**2, coupling],
                [mass * length * jnp.cos(b), coupling, mass * length**2],
            ]
        )
        turning = mass * length**2 * jnp.sin(a - b)
        forces = jnp.array(
            [
                u[0] + 2 * mass * length * jnp.sin(a) * v[1] ** 2 + mass * length * jnp.sin(b) * v[2] ** 2,
                -turning * v[2] ** 2 - 2 * mass * gravity * length * jnp.sin(a),
                turning * v[1] ** 2 - mass * gravity * length * jnp.sin(b),
            ]
        )
        return jnp.concatenate([v, jnp.linalg.solve(matrix, forces)])

    return Problem(
        ContinuousDynamics(rate, 6, 1, dt=0.03),
        np.zeros(6),
        100,
        stage_costs=[QuadraticCost(ControlResidual(), 3e-4)],
        stage_constraints=[Constraint(Selected(StateResidual(), (0,)), -1.5, 1.5)],
        terminal_constraints=[Constraint(StateResidual(np.array([0, np.pi, np.pi, 0, 0, 0])))],
        control_lower=-30.0,
        control_upper=30.0,
    )


@pytest.mark.slow
@pytest.mark.parametrize("force", [0.0, -13.8])
def test_two_poles_swing_up(force):
    """From these guesses steps that trade infeasibility for a lower cost, without a limit, lead where nothing helps."""
    problem = two_poles_on_a_cart()
    us, xs = problem.guess(force)[::-1]
    assert_optimal(problem, solve(problem, us, xs))
