"""Steps and roll-outs of models with closed loops, against exact and published solutions."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from jax import lax

import jaxdyn
from experiments.benchmark_loops import standing_quadruped
from jaxdyn import BodyInertia, Joint, ModelBuilder, State
from jaxdyn.native._specialize import specialize
from jaxdyn.simulate import RolloutOptions, Trajectory
from jaxdyn.simulate.integrators import RUNGE_KUTTA_STEPS
from jaxdyn.simulate.integrators._closed_loops import closed
from jaxdyn.spatial import SE3
from jaxdyn.trajopt import (
    ControlResidual,
    FramePoseResidual,
    FrameVelocityResidual,
    ModelDynamics,
    Problem,
    QuadraticCost,
    StateResidual,
    TimeVarying,
    ddp,
)
from tests.constraints import squeezer as andrews
from tests.loop_robots import LEGS, admissible_velocity, biped, bricard, close_four_bar, five_bar, four_bar, jansen_leg


@functools.cache
def four_bars(n: int) -> tuple[jaxdyn.Model, np.ndarray]:
    """Rods of 1 m and 1 kg: `n + 1` cranks in a row with `n` bars between their ends (library of benchmarks of IFToMM,
    problem A02), and the velocity at which the ends of the cranks, upright, move at 1 m/s. At every turn the mechanism
    passes configurations in which the bars and cranks are on one line and can move in other ways, too."""
    y, builder = Joint(axis=(0, 1, 0)), ModelBuilder()
    crank, bar = BodyInertia.rod(1.0, (0, 0, 0), (0, 0, 1)), BodyInertia.rod(1.0, (0, 0, 0), (1, 0, 0))
    for k in range(n + 1):
        builder.add_body(f"crank{k}", "world", y, (float(k), 0, 0), crank)
    for k in range(n):
        builder.add_body(f"bar{k}", f"crank{k}", y, (0, 0, 1), bar)
        builder.add_loop(f"pin{k}", "connect", f"bar{k}", f"crank{k + 1}", (1, 0, 0), (0, 0, 1))
    model = builder.build()
    return model, np.array([1.0 if name.startswith("crank") else -1.0 for name in model.joint_names])


def crank(n: int, t: float) -> np.ndarray:
    """The exact angle and rate of the parallel cranks."""
    c = 9.81 * ((3 * n + 1) / 2) / ((4 * n + 1) / 3)
    solution = scipy.integrate.solve_ivp(lambda _, x: [x[1], c * np.sin(x[0])], (0, t), [0, 1], rtol=1e-12, atol=1e-12)
    return solution.y[:, -1]


def end_of(angle):
    return np.array([np.sin(angle), np.cos(angle)])


@pytest.mark.slow
@pytest.mark.parametrize(("n", "tolerance", "lost"), [(1, 1e-7, 1e-8), (2, 1e-7, 1e-8), (40, 1e-3, 1e-4)])
def test_many_four_bars_turn_through_singular_configurations(n, tolerance, lost):
    """After 20 s the end of the crank is where the exact solution has it, and the energy is the same."""
    model, v = four_bars(n)
    start = State(np.zeros(model.nv), v)
    few = RolloutOptions(save_every=500)
    trajectory = jaxdyn.rollout(model, start, np.zeros((20000, model.nv)), 1e-3, integrator="rk4", options=few)
    angle, _ = crank(n, 20.0)
    assert np.abs(end_of(trajectory.q[-1, 0]) - end_of(angle)).max() < tolerance
    energy = np.asarray(jaxdyn.mechanical_energy(model, trajectory.q, trajectory.v))
    assert np.abs(energy / energy[0] - 1).max() < lost
    assert np.abs(jaxdyn.constraint_error(model, trajectory.q)).max() < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("n", [0, 2])
def test_the_midpoint_rule_keeps_the_energy(n):
    """Of a four-bar for 100 s, and of cranks for 20 s through singular configurations: it oscillates by a part of the
    order of the step's square, and does not drift; the step is symmetric in time."""
    if n:
        (model, v), seconds = four_bars(n), 20.0
        q = np.zeros(model.nv)
    else:
        model, q, seconds = four_bar().with_joint_friction(damping=0.0), close_four_bar(0.7), 100.0
        v = admissible_velocity(model, q, np.array([3.0, 0, 0]))
    start, swing = State(q, v), []
    for dt in (2e-3, 4e-3):
        few = RolloutOptions(save_every=20)
        steps = np.zeros((round(seconds / dt), model.nv))
        run = jaxdyn.rollout(model, start, steps, dt, integrator="midpoint", options=few)
        energy = np.asarray(jaxdyn.mechanical_energy(model, run.q, run.v))
        scale = np.asarray(jaxdyn.kinetic_energy(model, run.q, run.v)).max()
        swing.append(np.abs(energy - energy[0]).max() / scale)
        quarters = [x.mean() for x in np.array_split(energy[1:], 4)]
        assert np.ptp(quarters) / scale < 1e-5
        assert np.abs(jaxdyn.constraint_error(model, run.q)).max() < 1e-12
    assert swing[0] < 1e-4
    np.testing.assert_allclose(swing[1] / swing[0], 4, rtol=0.1)
    if n:
        angle, _ = crank(n, seconds)
        assert np.abs(run.q[-1, 0] - angle) < 2e-3
    end = jaxdyn.step(model, start, np.zeros(model.nv), 0.1, integrator="midpoint", substeps=25)
    back = jaxdyn.step(model, State(end.q, -end.v), np.zeros(model.nv), 0.1, integrator="midpoint", substeps=25)
    np.testing.assert_allclose(back.q, q, atol=1e-11)
    np.testing.assert_allclose(back.v, -v, atol=1e-10)


@pytest.mark.slow
def test_the_midpoint_rule_closes_the_loops_at_high_speeds():
    """A biped with rod loops whose joints move at up to 14 rad/s, with a step of 10 ms."""
    model, rng = biped(), np.random.default_rng(0)
    guess = model.integrate(model.neutral(), 0.1 * rng.normal(size=(24, model.nv)))
    q = jaxdyn.project_configuration(model, guess).q
    v = jaxdyn.project_velocity(model, q, 3.0 * rng.normal(size=(24, model.nv)))
    end = jaxdyn.step(model, State(q, v), np.zeros(model.nv), 0.1, integrator="midpoint", substeps=10)
    assert np.abs(jaxdyn.constraint_error(model, end.q)).max() < 1e-7


@pytest.mark.slow
@pytest.mark.parametrize(("n", "steps"), [(1, 4000), (1, 20000), (2, 20000), (40, 20000)])
def test_single_precision_keeps_the_energy_of_four_bars(n, steps):
    """Through all singular configurations, in each of which rounding errors had made any energy."""
    model, v = four_bars(n)
    trajectory = free_motion(model, v, steps, jnp.float32)
    energy = np.asarray(jaxdyn.mechanical_energy(model, trajectory.q, trajectory.v))
    assert np.abs(energy / energy[0] - 1).max() < 0.05
    assert np.abs(trajectory.q - v * trajectory.q[:, :1]).max() < 1e-2


def free_motion(model: jaxdyn.Model, v: np.ndarray, steps: int, dtype) -> Trajectory:
    """Every twentieth state of a roll-out from the neutral configuration, without torques, by Runge-Kutta steps of
    1 ms; its loops are closed."""
    start = State(*(jnp.asarray(x, dtype) for x in (model.neutral(), v)))
    options = RolloutOptions(save_every=20)
    controls = jnp.zeros((steps, model.nv), dtype)
    found = jaxdyn.rollout(model.astype(dtype), start, controls, 1e-3, integrator="rk4", options=options)
    assert found.q.dtype == found.v.dtype == dtype
    found = jax.tree.map(lambda x: np.asarray(x, float), found)
    assert np.abs(jaxdyn.constraint_error(model, found.q)).max() < 1e-4
    return found


def lost_energy(model: jaxdyn.Model, run: Trajectory) -> float:
    """The greatest change of the energy, as a part of the greatest kinetic energy."""
    energy = np.asarray(jaxdyn.mechanical_energy(model, run.q, run.v))
    return np.abs(energy - energy[0]).max() / np.asarray(jaxdyn.kinetic_energy(model, run.q, run.v)).max()


def without_friction(name: str) -> tuple[jaxdyn.Model, State]:
    """A mechanism in motion: its first joint turns at 8 rad/s, that of the fast one at 20 rad/s."""
    model = {"five-bar": five_bar, "leg": jansen_leg}.get(name, four_bar)()
    guess = close_four_bar(0.7) if name.endswith("four-bar") else 0.1 * np.arange(model.nq) * (name == "five-bar")
    q = np.asarray(jaxdyn.project_configuration(model, guess).q)
    v = admissible_velocity(model, q, np.eye(model.nv)[0])
    none = np.zeros(model.nv)
    model = dataclasses.replace(model, damping=none, friction=none)
    return model, State(q, v / v[0] * (20.0 if name == "fast four-bar" else 8.0))


@pytest.mark.parametrize("contact", [False, True])
def test_steps_of_first_order_keep_the_energy_of_a_fast_four_bar(contact):
    """The step along the velocity leaves the loops, and impulses bring it back; a projection without them had made the
    energy grow until NaN after 2.5 s. The contact is far from the ground."""
    model, start = without_friction("fast four-bar")
    ball = jaxdyn.ContactShape("rocker", jaxdyn.Sphere(0.02), (0.7, 0, 0))
    few = RolloutOptions(save_every=50)
    if contact:
        run = jaxdyn.World(model, [ball], jaxdyn.Plane((0, 0, 1), -5.0)).rollout(start, steps=2000, options=few)
    else:
        run = jaxdyn.rollout(model, start, np.zeros((2000, model.nv)), 1e-3, options=few)
    assert lost_energy(model, run) < 0.03
    assert np.abs(jaxdyn.constraint_error(model, run.q)).max() < 1e-11
    rates = np.einsum("sij,sj->si", jaxdyn.constraint_jacobian(model, run.q), run.v)
    assert np.abs(rates).max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["four-bar", "fast four-bar", "five-bar", "leg"])
@pytest.mark.parametrize("integrator", ["semi_implicit_euler", "implicit_velocity", "midpoint", "rk4"])
def test_the_energy_does_not_drift(name, integrator):
    """For 100 s, from the second tenth to the last. The five-bar moves chaotically, and Runge-Kutta steps lose a
    little."""
    model, start = without_friction(name)
    few = RolloutOptions(save_every=50)
    steps = np.zeros((100_000, model.nv))
    run = jaxdyn.rollout(model, start, steps, 1e-3, integrator=integrator, options=few)
    energy = np.asarray(jaxdyn.mechanical_energy(model, run.q, run.v))
    tenths = np.array([x.mean() for x in np.array_split(energy, 10)])
    assert np.abs(tenths - tenths[0]).max() / jaxdyn.kinetic_energy(model, start.q, start.v) < 5e-3
    assert lost_energy(model, run) < 0.1


def rods(n: int) -> tuple[jaxdyn.Model, np.ndarray]:
    """The cranks of `four_bars` with bars without mass, whose only equation vanishes where all are on one line."""
    builder = ModelBuilder()
    for k in range(n + 1):
        crank = BodyInertia.rod(1.0, (0, 0, 0), (0, 0, 1))
        builder.add_body(f"crank{k}", "world", Joint(axis=(0, 1, 0)), (float(k), 0, 0), crank)
    for k in range(n):
        builder.add_loop(f"rod{k}", "distance", f"crank{k}", f"crank{k + 1}", (0, 0, 1), (0, 0, 1), 1.0)
    return builder.build(), np.ones(n + 1)


def with_pin(kind: str, quaternion: np.ndarray) -> tuple[jaxdyn.Model, np.ndarray]:
    """One of `four_bars` with another pin, whose frames are turned."""
    model, v = four_bars(1)
    ends = (np.concatenate([place, quaternion]) for place in ([1.0, 0, 0], [0, 0, 1.0]))
    return model.without_loops().with_loop("pin", kind, "bar0", "crank1", *ends), v


QUARTER = np.sqrt([0.5, 0.5, 0, 0])  # takes z to -y, so the pin turns about the hinges' axes
OTHERS = {
    "rod": lambda: rods(1),
    "rods": lambda: rods(2),
    "connect": lambda: with_pin("connect", np.array([np.cos(0.4), 0, np.sin(0.4), 0])),
    "revolute": lambda: with_pin("revolute", QUARTER),
    "cylindrical": lambda: with_pin("cylindrical", QUARTER),
    "bricard": lambda: (bricard()[0], np.zeros(5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_single_precision_keeps_the_energy(name):
    """Of four-bars with other kinds of loops and of Bricard's mechanism; one with oblique axes stays near it."""
    model, v = OTHERS[name]()
    assert lost_energy(model, free_motion(model, v, 20000, jnp.float32)) < (0.6 if name == "connect" else 0.1)


@pytest.mark.slow
def test_a_quadruped_on_two_welded_feet_stays_finite_in_single_precision():
    """It moves among singular postures, in which its equations let it move in one way more, and its free legs whirl."""
    model = standing_quadruped()
    v = jaxdyn.project_velocity(model, model.neutral(), np.random.default_rng(0).normal(size=model.nv))
    free_motion(model, v, 2000, jnp.float32)


def test_open_loops_are_named_and_not_jumped():
    """At a start that is open by more than the bound; a roll-out says how far its loops are open."""
    model, start = without_friction("four-bar")
    tau, opened = np.zeros((5, 3)), State(start.q + np.array([[0, 0, 0], [0, 0, 0.02]]), start.v)
    text = r"element \(1,\) of the batch has 'pin' open by 0\.01.*project_configuration"
    with pytest.raises(jaxdyn.ModelError, match=text):
        jaxdyn.step(model, opened, tau[0], 1e-3)
    with pytest.raises(jaxdyn.ModelError, match=text):
        jaxdyn.rollout(model, opened, tau, 1e-3)
    checked = jax.jit(lambda x: jaxdyn.rollout(model, x, tau, 1e-3, options=RolloutOptions(check=True)).loop_error)
    with pytest.raises(Exception, match="loops that are open"):
        jax.block_until_ready(checked(opened))
    a_little = jax.tree.map(jnp.asarray, State(start.q + np.array([0, 0, 1e-5]), start.v))
    errors = np.asarray(checked(State(jnp.stack([a_little.q, start.q]), start.v)))
    assert errors.shape == (2, 6)
    assert 1e-6 < errors[0, 0] < 1e-5
    assert errors[:, 1:].max() < 1e-9
    assert (
        jaxdyn.rollout(jaxdyn.samples.pendulum(), State(np.zeros(1), np.zeros(1)), tau[:, :1], 1e-3).loop_error is None
    )
    # A half turn, at which the sine of the angle is zero.
    builder = ModelBuilder().add_body(
        "rod", "world", Joint(axis=(0, 1, 0)), inertia=BodyInertia.rod(1.0, (0, 0, 0), (1, 0, 0))
    )
    held = builder.add_loop("held", "weld", "rod", "world").build()
    with pytest.raises(jaxdyn.ModelError, match=r"'held' open by 3\.14"):
        jaxdyn.step(held, State(np.array([np.pi]), np.zeros(1)), np.zeros(1), 1e-3)


def test_steps_of_first_order_have_one_loop_of_newton_steps():
    """Written out one after the other, five steps took five times the operations of forward dynamics."""
    model = jaxdyn.samples.four_bar().astype(jnp.float32)

    def stepped(q, v, tau):
        end = jaxdyn.step(model, State(q, v), tau, 1e-3)
        return end.q, end.v

    def operations(function) -> int:
        shapes = [jax.ShapeDtypeStruct((n,), "float32") for n in (model.nq, model.nv, model.nv)]
        return sum(not n.uniform for n in specialize(function, shapes, [False] * 3, 32).nodes)

    assert operations(stepped) < 3.5 * operations(lambda q, v, tau: jaxdyn.aba(model, q, v, tau))


@pytest.mark.slow
def test_orders_of_steps():
    """The integrators keep their orders with the projection, and the midpoint rule that of its impulses; errors against
    a step of a tenth."""
    model = four_bar().with_joint_friction(damping=0.0)
    q = close_four_bar(0.7)
    start = State(q, admissible_velocity(model, q, np.array([3.0, 0, 0])))
    for integrator, order in (("semi_implicit_euler", 1), ("implicit_velocity", 1), ("midpoint", 2), ("rk4", 4)):
        run = functools.partial(jaxdyn.step, model, start, np.zeros(3), 0.2, integrator=integrator)
        exact = jaxdyn.step(model, start, np.zeros(3), 0.2, integrator="rk4", substeps=400).q
        coarse, fine = (np.abs(run(substeps=n).q - exact).max() for n in (20, 40))
        assert 0.7 < np.log2(coarse / fine) / order < 1.4, (integrator, coarse, fine)


@pytest.mark.slow
def test_squeezer_after_three_hundredths_of_a_second():
    """3000 Runge-Kutta steps, with the spring's force within each step."""
    model = andrews.squeezer()
    field = jaxdyn.vector_field(model, andrews.torque(model), lambda t, state, _: andrews.spring(model, state.q))

    def rate(state, t):
        rates = field(t, State(*state))
        return jnp.stack([rates.q, rates.v])

    def step(state, _):
        state = RUNGE_KUTTA_STEPS["rk4"](rate, state, 0.0, 1e-5)
        state = closed(model, State(*state))
        return jnp.stack([state.q, state.v]), None

    q = np.zeros(7)
    q[andrews.ORDER] = andrews.Q0
    q, v = jax.jit(lambda x: lax.scan(step, x, length=3000)[0])(jnp.stack([q, jnp.zeros(7)]))
    order = np.array(andrews.ORDER)
    np.testing.assert_allclose(q[order], andrews.Q1, rtol=1e-7)
    np.testing.assert_allclose(v[order], andrews.V1, rtol=1e-6)
    assert np.abs(jaxdyn.constraint_error(model, q)).max() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("integrator", "substeps"), [("rk4", 1), ("semi_implicit_euler", 2), ("midpoint", 1)])
def test_derivatives_of_steps(integrator, substeps):
    """Those that solvers use are those of the step, and of differences by torques."""
    model, q = four_bar(), close_four_bar(0.7)
    start, tau = (
        State(jnp.asarray(q), jnp.asarray(admissible_velocity(model, q, np.ones(3)))),
        jnp.array([0.3, 0, -0.2]),
    )
    options = {"integrator": integrator, "substeps": substeps}
    found = jaxdyn.simulate.step_derivatives(model, start, tau, 0.01, **options)

    def after(state, tau):
        state = jaxdyn.step(model, state, tau, 0.01, **options)
        return jnp.concatenate([state.q, state.v])

    by_state, by_tau = jax.jacrev(after, (0, 1))(start, tau)
    np.testing.assert_allclose(found.by_state, jnp.concatenate([by_state.q, by_state.v], axis=1), atol=1e-9)
    np.testing.assert_allclose(found.by_torque, by_tau, atol=1e-9)
    more, less = jax.vmap(lambda x: after(start, tau + x))(
        np.stack([1e-3 * np.eye(3), -1e-3 * np.eye(3)]).reshape(6, 3)
    ).reshape(2, 3, -1)
    np.testing.assert_allclose((more - less).T / 2e-3, by_tau, atol=1e-8)


@pytest.mark.slow
def test_a_vector_field_drifts_and_normalized_closes_the_loops():
    """The rates are those of `aba`, by whose errors of integration the loops open."""
    model, q = four_bar(), close_four_bar(0.7)
    field, start = jaxdyn.vector_field(model), State(jnp.asarray(q), admissible_velocity(model, q, np.ones(3)))

    def rate(state, t):
        rates = field(t, State(*state))
        return jnp.stack([rates.q, rates.v])

    def step(state, _):
        return RUNGE_KUTTA_STEPS["rk4"](rate, state, 0.0, 0.05), None

    @jax.jit
    def run(state):
        end = State(*lax.scan(step, jnp.stack([state.q, state.v]), length=40)[0])
        return (
            end,
            jaxdyn.simulate.normalized(model, end),
            field(0.0, state),
            jaxdyn.aba(model, state.q, state.v, jnp.zeros(3)),
        )

    end, mended, rates, a = run(start)
    np.testing.assert_array_equal(rates.v, a)
    assert 1e-6 < np.abs(jaxdyn.constraint_error(model, end.q)).max() < 1e-2
    assert np.abs(jaxdyn.constraint_error(model, mended.q)).max() < 1e-9
    assert np.abs(jaxdyn.constraint_jacobian(model, mended.q) @ mended.v).max() < 1e-9
    np.testing.assert_allclose(mended.q, end.q, atol=1e-2)


@pytest.mark.slow
def test_bricard_keeps_its_energy():
    model, q = bricard()
    assert np.abs(jaxdyn.constraint_error(model, q)).max() < 1e-15
    text = "5 equations, 1 of which say what others do: they leave 1 degree of freedom of 5"
    assert text in model.summary()
    trajectory = jaxdyn.rollout(
        model,
        State(q, np.zeros(5)),
        np.zeros((10000, 5)),
        1e-3,
        integrator="rk4",
        options=RolloutOptions(save_every=200),
    )
    energy = np.asarray(jaxdyn.mechanical_energy(model, trajectory.q, trajectory.v))
    assert np.abs(trajectory.q).max() > 0.5
    assert np.abs(energy - energy[0]).max() < 1e-6
    assert np.abs(jaxdyn.constraint_error(model, trajectory.q)).max() < 1e-11


@pytest.mark.slow
def test_optimal_control_of_a_four_bar():
    """The torque of its crank brings a four-bar to another closed configuration at rest."""
    model, q, goal = four_bar(), close_four_bar(0.7), np.concatenate([close_four_bar(1.2), np.zeros(3)])
    problem = Problem(
        ModelDynamics(model, 0.02, actuation=np.eye(3)[:, :1]),
        np.concatenate([q, np.zeros(3)]),
        25,
        stage_costs=[QuadraticCost(ControlResidual(), 1e-4)],
        terminal_costs=[QuadraticCost(StateResidual(goal), 100.0)],
    )
    solution = ddp(problem)
    assert solution.status == jaxdyn.Status.CONVERGED
    np.testing.assert_allclose(solution.xs[-1], goal, atol=1e-2)
    assert np.abs(jaxdyn.constraint_error(model, solution.xs[:, :3])).max() < 1e-8


def test_new_values_do_not_compile_again():
    model, q = four_bar(), close_four_bar(0.7)
    run = jax.jit(lambda model: jaxdyn.aba(model, q, jnp.zeros(3), jnp.zeros(3)))
    first = run(model)
    # For given coordinates the place of the pin on the coupler is a constant of the equation, the other one is not.
    longer = eqx.tree_at(lambda m: m.loop_placement2, model, model.loop_placement2.at[0, 0].set(0.71))
    assert np.abs(run(longer) - first).max() > 1e-4
    assert run._cache_size() == 1


@pytest.mark.slow
def test_a_stewart_platform_follows_a_path():
    """Six driven legs move a plate on a circle with a radius of 5 cm in a second, with its orientation kept."""
    model, steps, dt = jaxdyn.samples.stewart_platform(), 40, 0.025
    q = np.asarray(model.neutral())
    dynamics, zero = ModelDynamics(model, dt, actuation=LEGS), np.zeros(model.nv)
    still = jaxdyn.constrained_inverse_dynamics(model, q, zero, zero, actuated=LEGS)
    assert dynamics.actuation is not None
    hold = still.tau @ dynamics.actuation
    angle = np.pi * (1 - np.cos(np.linspace(0, np.pi, steps + 1)))
    path = q[:3] + 0.05 * np.stack([np.cos(angle) - 1, np.sin(angle), 0 * angle], axis=1)

    def at(position):
        # The coordinates are those from the home of the platform, at a height of 2 m.
        return QuadraticCost(FramePoseResidual("platform", SE3(jnp.eye(3), position + jnp.array([0, 0, 2.0]))), 1e6)

    problem = Problem(
        dynamics,
        np.concatenate([q, zero]),
        steps,
        stage_costs=[TimeVarying(jax.vmap(at)(path[:-1])), QuadraticCost(ControlResidual(hold), 1e-8)],
        terminal_costs=[at(jnp.asarray(path[-1])), QuadraticCost(FrameVelocityResidual("platform"), 1e3)],
    )
    solution = ddp(problem, jnp.tile(hold, (steps, 1)))
    assert solution.status == jaxdyn.Status.CONVERGED
    assert solution.us.shape == (steps, 6)
    assert np.linalg.norm(solution.xs[:, :3] - path, axis=1).max() < 5e-4
    assert np.abs(solution.xs[:, 4:7]).max() < 1e-3
    assert np.abs(jaxdyn.constraint_error(model, solution.xs[:, : model.nq])).max() < 1e-12
