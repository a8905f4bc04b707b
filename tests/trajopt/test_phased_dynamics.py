"""Steps in which contacts hold: closed forms, Pinocchio, derivatives, and residuals of the forces of contacts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

import jaxdyn
from jaxdyn import ModelError, Plane, ShapeError, UnknownNameError
from jaxdyn.trajopt import (
    AbstractDynamics,
    AbstractResidual,
    CenterOfPressureResidual,
    ContactForceResidual,
    ControlResidual,
    DDPOptions,
    DurationCost,
    FreeTimeDynamics,
    FrictionConeResidual,
    ModelDynamics,
    PhasedDynamics,
    Problem,
    QuadraticCost,
    Residuals,
    SoftConstraintCost,
    Solution,
    StateResidual,
    TerrainClearanceResidual,
    contact_schedule,
    ddp,
    static_guess,
)
from tests import draws, loop_robots, small_robots
from tests.compilations import compilations
from tests.oracles import to_pinocchio

FEET = ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT")
STEP, FREE, IMPACT = 0, 1, 2
"""The stages of `dynamics_of`: a step and an impact in which contacts hold, and a step in which none does."""


def dynamics_of(model, contacts, **options):
    names = list(contacts)
    holds = contact_schedule(names, [(1, names), (1, []), (1, names)])
    return PhasedDynamics(model, [0.01, 0.02, 0.0], contacts, holds, **options)


@functools.cache
def quadruped():
    """A quadruped with two point feet and a surface, which hold, and the gains of Crocoddyl's examples."""
    contacts = {FEET[0]: "point", FEET[1]: "surface", FEET[3]: "point"}
    return dynamics_of(jaxdyn.samples.quadruped(), contacts, gains=(0.0, 50.0))


@functools.cache
def hopper():
    """A hopper with springs and friction, which stands."""
    model = jaxdyn.samples.hopper()
    return dynamics_of(model, ["foot"], actuation=["hip", "slide"])


@functools.cache
def leg():
    """A free base with a surface, and a leg of four joints with a point."""
    box = jaxdyn.BodyInertia.box(1.0, (0.1, 0.2, 0.3), (0.05, 0.0, 0.1))
    builder = jaxdyn.ModelBuilder().add_body("base", joint=jaxdyn.Joint("free"), inertia=box)
    links = ["base", "hip", "thigh", "shank", "foot"]
    for i, axis in enumerate([(1, 0, 0), (0, 1, 0.3), (0, 1, 0), (1, 0, 0.2)]):
        builder.add_body(links[i + 1], links[i], jaxdyn.Joint(axis=axis), (0.1, 0.1, -0.2), box)
    builder.add_frame("sole", "base", (-0.1, 0.0, -0.2)).add_frame("toe", "foot", (0.0, 0.0, -0.1))
    return dynamics_of(builder.build(), {"toe": "point", "sole": "surface"}, actuation=np.eye(10))


@functools.cache
def mimic():
    model, *_ = small_robots.robot()
    return dynamics_of(
        model, {model.body_names[-1]: "surface", model.body_names[1]: "point"}, actuation=np.eye(model.nv)
    )


@functools.cache
def loops():
    model = loop_robots.four_bar()
    return dynamics_of(model, ["coupler"])


def drawn(dynamics, seed: int = 0):
    """A state and controls."""
    model = dynamics.model
    q, v, _, _ = draws.states(model, seed)
    return np.concatenate([q, v]), draws.normal(seed + 1, dynamics.nu)


@jax.jit
def stepped(dynamics, x, u, k):
    return dynamics.step(x, u, k)


@jax.jit
def forces_of(dynamics, x, u, k):
    return dynamics.contact_forces(x, u, k)


@jax.jit
def linearized(dynamics, x, u, k):
    after = dynamics.step(x, u, k)
    return after, *dynamics.linearize(x, u, k, after), *dynamics.linearized_contact_forces(x, u, k)


def test_a_leg_stands():
    """The foot of a hopper at rest carries its weight, and its velocity at the end of a step is zero; an impact takes
    the momentum that a rigid leg would have."""
    dynamics, model = hopper(), jaxdyn.samples.hopper()
    g = -float(model.gravity[2])
    x = np.concatenate([[0.0, 1.0, 0.0, 0.0, 0.0], np.zeros(5)])
    # The slide, whose coordinate grows as the body of 10 kg sinks, carries it.
    u = np.array([0.0, -10 * g])
    np.testing.assert_allclose(forces_of(dynamics, x, u, STEP)[0], [0, 0, 11 * g, 0, 0, 0], atol=1e-9)
    np.testing.assert_allclose(stepped(dynamics, x, u, STEP), x, atol=1e-12)
    np.testing.assert_array_equal(forces_of(dynamics, x, u, FREE), 0)
    falling = np.concatenate([x[:5], [0, -2.0, 0, 0, 0]])
    after = np.asarray(stepped(dynamics, falling, u, IMPACT))
    # The leg, of 1 kg, stops, and the body goes on: the slide is free.
    np.testing.assert_allclose(after, [*x[:5], 0, -2.0, 0, 0, 2.0], atol=1e-9)
    np.testing.assert_allclose(forces_of(dynamics, falling, u, IMPACT)[0, :3], [0, 0, 2.0], atol=1e-9)


def test_steps_are_those_of_pinocchio():
    """With gains, accelerations are those of Pinocchio's constraint dynamics, and impacts its impulse dynamics."""
    dynamics, (x, u) = quadruped(), drawn(quadruped())
    model = dynamics.model
    peer = to_pinocchio(model)
    q, v = np.array(x[: model.nq]), np.array(x[model.nq :])
    q = q[[0, 1, 2, 4, 5, 6, 3, *range(7, model.nq)]]
    J = np.concatenate([_jacobian(peer, q, name, kind) for name, kind in dynamics.contacts])
    data = peer.createData()
    tau = np.concatenate([np.zeros(6), u])
    # The term of kd is a part of the drift.
    gamma = np.concatenate([_bias(peer, q, v, name, kind) for name, kind in dynamics.contacts])
    expected = pin.forwardDynamics(peer, data, q, v, tau, J, gamma + 50 * J @ v, 0.0)
    after = np.asarray(stepped(dynamics, x, u, STEP))
    np.testing.assert_allclose((after[model.nq :] - v) / 0.01, expected, rtol=1e-7, atol=1e-7)
    impact = pin.impulseDynamics(peer, data, q, v, J, 0.0, 0.0)
    np.testing.assert_allclose(stepped(dynamics, x, u, IMPACT)[model.nq :], impact, rtol=1e-7, atol=1e-8)
    np.testing.assert_array_equal(stepped(dynamics, x, u, IMPACT)[: model.nq], x[: model.nq])
    free = jaxdyn.step(model, jaxdyn.State(x[: model.nq], x[model.nq :]), tau, 0.02, integrator="semi_implicit_euler")
    np.testing.assert_allclose(stepped(dynamics, x, u, FREE), np.concatenate([free.q, free.v]), rtol=1e-9, atol=1e-9)


def _jacobian(peer, q, name, kind):
    data = peer.createData()
    pin.computeJointJacobians(peer, data, q)
    pin.updateFramePlacements(peer, data)
    return pin.getFrameJacobian(peer, data, peer.getFrameId(name), pin.LOCAL_WORLD_ALIGNED)[
        : 3 if kind == "point" else 6
    ]


def _bias(peer, q, v, name, kind):
    data = peer.createData()
    pin.forwardKinematics(peer, data, q, v, np.zeros(peer.nv))
    pin.updateFramePlacements(peer, data)
    a = pin.getFrameClassicalAcceleration(peer, data, peer.getFrameId(name), pin.LOCAL_WORLD_ALIGNED)
    return np.concatenate([a.linear, a.angular])[: 3 if kind == "point" else 6]


@pytest.mark.parametrize(
    ("make", "stages"),
    [
        (quadruped, (STEP, IMPACT)),
        (hopper, (STEP, FREE)),
        pytest.param(loops, (FREE,), marks=pytest.mark.slow),
        pytest.param(mimic, (STEP, IMPACT), marks=pytest.mark.slow),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_derivatives_are_those_of_differences(make, stages):
    """The derivatives of steps and of forces by the state and the control are central differences, also in reverse,
    in one pass for both."""
    dynamics = make()
    x, u = drawn(dynamics, 4)
    if dynamics.model.topology.has_loops:
        x[:3] = loop_robots.close_four_bar(0.7)
        x[3:] = loop_robots.admissible_velocity(dynamics.model, x[:3], x[3:])
    n, m, eps = dynamics.ndx, dynamics.nu, 1e-6
    ends = jax.jit(jax.vmap(lambda z, k: _displaced(dynamics, x, u, z, k), in_axes=(0, None)))
    costate = draws.normal(9, n)
    of_force = draws.normal(10, len(dynamics.contacts), 6)

    @jax.jit
    def pulled(x, u, k, costate, of_force):
        def product(z):
            moved, held = dynamics.integrate(x, z[:n]), u + z[n:]
            at = dynamics.with_solution(dynamics.solution_at(moved, held, k, derivatives=False))
            after, forces = at.step(moved, held, k), at.contact_forces(moved, held, k)
            change = dynamics.difference(jax.lax.stop_gradient(after), after)
            return costate @ change + (of_force * forces).sum()

        return jax.grad(product)(jnp.zeros(n + m))

    for k in stages:
        _, A, B, forces, by_x, by_u = map(np.asarray, linearized(dynamics, x, u, k))
        np.testing.assert_allclose(forces, forces_of(dynamics, x, u, k), rtol=1e-9, atol=1e-9)
        unit = eps * np.eye(n + m)
        high, low = ends(unit, k), ends(-unit, k)
        states = jax.vmap(dynamics.difference)(low[0], high[0]) / (2 * eps)
        size = np.abs(states).max()
        np.testing.assert_allclose(np.concatenate([A, B], axis=1), states.T, rtol=1e-5, atol=1e-6 * size)
        of_forces = np.moveaxis(np.asarray(high[1] - low[1]) / (2 * eps), 0, -1)
        size = np.abs(of_forces).max()
        np.testing.assert_allclose(np.concatenate([by_x, by_u], axis=2), of_forces, rtol=1e-5, atol=1e-6 * size + 1e-9)
        left = pulled(x, u, k, costate, of_force)
        expected = costate @ np.concatenate([A, B], axis=1) + np.tensordot(of_force, np.concatenate([by_x, by_u], 2), 2)
        np.testing.assert_allclose(left, expected, rtol=1e-7, atol=1e-7)


def _displaced(dynamics, x, u, z, k):
    x, u = dynamics.integrate(x, z[: dynamics.ndx]), u + z[dynamics.ndx :]
    return dynamics.step(x, u, k), dynamics.contact_forces(x, u, k)


def test_a_loop_and_a_contact_hold_together():
    """A loop stays closed over a step, to third order in its length, and a contact stops the mechanism."""
    dynamics = loops()
    model = dynamics.model
    x = np.concatenate([loop_robots.close_four_bar(0.7), np.zeros(3)])
    x[3:] = loop_robots.admissible_velocity(model, x[:3], np.ones(3))
    assert np.abs(x[3:]).max() > 0.1
    u = np.zeros(dynamics.nu)
    after = np.asarray(stepped(dynamics, x, u, FREE))
    # The bias of the rows is that before the velocity changes.
    change = np.abs(after[3:] - x[3:]).max()
    assert np.abs(jaxdyn.constraint_error(model, after[:3])).max() < 0.02**2 * np.abs(x[3:]).max() * change
    assert change < 1
    assert np.abs(after[3:]).max() > 0.1
    np.testing.assert_allclose(stepped(dynamics, x, u, IMPACT), [*x[:3], 0, 0, 0], atol=1e-7)


def test_redundant_contacts_give_the_motion_of_enough():
    """Two surfaces of one body, whose equations say the same twice, hold as one does, and share its load."""
    model = jaxdyn.samples.quadruped()
    one = dynamics_of(model, {FEET[0]: "surface"})
    two = dynamics_of(model, {FEET[0]: "surface", "FL_LOWER_LEG": "surface"})
    x, u = drawn(one, 2)
    for k in (IMPACT, STEP):
        expected = np.asarray(stepped(one, x, u, k))
        np.testing.assert_allclose(stepped(two, x, u, k), expected, rtol=1e-6, atol=1e-6)
        total = np.asarray(forces_of(two, x, u, k))[:, :3].sum(axis=0)
        np.testing.assert_allclose(total, forces_of(one, x, u, k)[0, :3], rtol=1e-5, atol=1e-5)
        x = expected


def table(gains=None, targets=None):
    """A box on four points, which no force can move apart."""
    builder = jaxdyn.ModelBuilder()
    builder.add_body("box", joint=jaxdyn.Joint("free"), inertia=jaxdyn.BodyInertia.box(10.0, (0.4, 0.3, 0.1)))
    corners = [(x, y, -0.05) for x in (0.2, -0.2) for y in (0.15, -0.15)]
    for i, corner in enumerate(corners):
        builder.add_frame(f"leg{i}", "box", corner)
    holds = np.ones((2, 4))
    names = [f"leg{i}" for i in range(4)]
    return PhasedDynamics(builder.build(), 0.01, names, holds, gains=gains, targets=targets, actuation=np.eye(6))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_contacts_that_contradict_each_other_share_the_load(dtype):
    """Where points of a turning body cannot all stop, and where targets are farther apart than the points, forces are
    those of least norm that carry the body, its motion is that of least squares, and a description names them."""
    dynamics = table()
    x = np.concatenate([[0, 0, 0.05, 1, 0, 0, 0], [0.1, 0.0, 0.0, 0.3, -0.2, 0.5]])
    single = jax.tree.map(lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, dynamics)
    forces = np.asarray(forces_of(single, x.astype(dtype), np.zeros(6, dtype), 1))
    assert np.abs(forces).max() < 100
    # They stop the box in 10 ms, and carry it.
    np.testing.assert_allclose(forces.sum(axis=0)[[0, 2]], [-100, 98.1], rtol=2e-3)
    after = np.asarray(stepped(single, x.astype(dtype), np.zeros(6, dtype), 1))[7:]
    assert np.abs(after).max() < 2e-3
    if dtype == np.float32:
        return
    # The fourth target is 4 mm too high: the plane of least squares is 1 mm off all of them.
    at_rest = np.concatenate([x[:7], np.zeros(6)])
    places = np.array([jaxdyn.frame_pose(dynamics.model, x[:7], name).translation for name, _ in dynamics.contacts])
    places[3, 2] += 0.004
    gained = table((100.0, 20.0), places)
    forces = np.asarray(forces_of(gained, at_rest, np.zeros(6), 1))
    np.testing.assert_allclose(forces[:, 2].sum(), 10 * (9.81 + 100 * 0.001), rtol=1e-6)
    assert np.abs(forces).max() < 40
    missed = np.asarray(gained.contact_errors(at_rest, np.zeros(6), 1))
    np.testing.assert_allclose(missed[:, 2], 0.01 * 100 * np.array([-1, 1, 1, -1]) * 0.001, rtol=1e-6)
    problem = Problem(gained, at_rest, 2, stage_costs=[QuadraticCost(ControlResidual())])
    zero = jnp.zeros(())
    held = Solution(jnp.stack([at_rest] * 3), jnp.zeros((2, 6)), zero, 0, 1, Residuals(zero, zero, zero))
    text = held.describe(problem)
    assert "'leg3' moves by up to 0.001 m/s" in text
    still = np.asarray(dynamics.contact_errors(at_rest, np.zeros(6), 1))
    assert np.abs(still).max() < 1e-12


@pytest.mark.parametrize("each_stage", [False, True])
def test_targets_pull_contacts(each_stage):
    """With `kp` and targets, the rate of a contact that is at rest is `-kp (x - target)`, in each stage that of its own
    target, and derivatives are those of the step."""
    model = jaxdyn.samples.hopper()
    x = np.concatenate([[0.0, 1.0, 0.05, 0.1, 0.02], np.zeros(5)])
    place = np.asarray(jaxdyn.frame_pose(model, x[:5], "foot").translation)
    shifts = np.array([[[0.01, 0, 0.02]], [[-0.03, 0, 0.0]]])
    targets = place + shifts if each_stage else place + shifts[0]
    dynamics = PhasedDynamics(model, 0.01, ["foot"], np.ones((2, 1)), gains=(40.0, 12.0), targets=targets)
    u = np.ones(dynamics.nu)
    for k in range(2):
        after = stepped(dynamics, x, u, k)
        rate = jaxdyn.frame_velocity(model, x[:5], after[5:], "foot")[:3]
        np.testing.assert_allclose(rate, 0.01 * 40 * shifts[k if each_stage else 0, 0], atol=1e-12)
    x[5:] = [0.3, -0.2, 0.5, 0.1, -0.4]
    after, *ours = linearized(dynamics, x, u, 1)[:3]
    generic = jax.jit(AbstractDynamics.linearize)(dynamics, x, u, 1, after)
    for a, b in zip(ours, generic, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_states_with_open_loops_are_refused():
    """A step from an open loop would jump. So problems and steps begin at closed ones."""
    dynamics = loops()
    open_state = np.array([0.7, 0.3, 0.2, 0, 0, 0])
    for start in (
        lambda: dynamics.step(open_state, np.zeros(dynamics.nu), FREE),
        lambda: Problem(dynamics, open_state, 3, stage_costs=[QuadraticCost(ControlResidual())]),
        lambda: Problem(
            ModelDynamics(dynamics.model, 0.01), open_state, 3, stage_costs=[QuadraticCost(ControlResidual())]
        ),
    ):
        with pytest.raises(ModelError, match="open by"):
            start()


def test_contacts_do_not_drift():
    """In one second of steps of 2 ms a foot that holds comes to rest in the first stage and moves by less than 0.1 mm,
    although nothing pulls it back."""
    model = jaxdyn.samples.hopper()
    count = 500
    dynamics = PhasedDynamics(model, 0.002, ["foot"], np.ones((count, 1)))
    x = jnp.array([0.0, 1.0, 0.05, 0.1, 0.02, 0.3, -0.5, 0.4, -0.2, 0.3])

    def foot(x):
        return jaxdyn.frame_pose(model, x[:5], "foot").translation

    def advance(x, k):
        return (after := dynamics.step(x, 10 * jnp.sin(0.01 * k) * jnp.ones(5), k)), (after, foot(after))

    _, (xs, feet) = jax.jit(lambda x: jax.lax.scan(advance, x, jnp.arange(count)))(x)
    xs, feet = np.asarray(xs), np.asarray(feet)
    assert np.abs(feet[0] - foot(x)).max() < 0.002 * 2e-2
    assert np.ptp(xs[:, 2]) > 0.1
    assert np.abs(feet - feet[0]).max() < 1e-4


def test_single_precision():
    """Steps in single precision are those in double precision to five digits."""
    dynamics, (x, u) = hopper(), drawn(hopper())
    single = jax.tree.map(lambda a: a.astype(np.float32) if jnp.issubdtype(a.dtype, jnp.floating) else a, dynamics)
    for k in (STEP, IMPACT):
        after = stepped(single, x.astype(np.float32), u.astype(np.float32), k)
        assert after.dtype == np.float32
        np.testing.assert_allclose(after, stepped(dynamics, x, u, k), rtol=1e-4, atol=1e-4)


def hop(dynamics, horizon: int) -> Problem:
    x0 = np.concatenate([[0.0, 1.0, 0.0, 0.0, -0.05], np.zeros(5)])
    goal = np.concatenate([[0.05, 1.0, 0.0, 0.0, -0.05], np.zeros(5)])
    return Problem(
        dynamics,
        x0,
        horizon,
        stage_costs=[
            QuadraticCost(ControlResidual(), 1e-4),
            SoftConstraintCost(FrictionConeResidual(0.7), lower=0.0, weight=1e-3),
        ],
        terminal_costs=[QuadraticCost(StateResidual(goal), 100.0)],
    )


def test_another_gait_compiles_nothing():
    """A solve with other contacts that hold, and other lengths of stages, is the program of the first, and both
    converge; a roll-out of the second leaves the ground in between."""
    model, horizon = jaxdyn.samples.hopper(), 12
    lengths = np.full(horizon, 0.03)

    def problem(phases, lengths):
        holds = contact_schedule(["foot"], phases)
        return hop(PhasedDynamics(model, lengths, ["foot"], holds, actuation=["hip", "slide"]), horizon)

    solve = jax.jit(lambda p: ddp(p, options=DDPOptions(max_iterations=60)))
    standing = solve(problem([(horizon, ["foot"])], lengths))
    hopping = problem([(4, ["foot"]), (4, []), (4, ["foot"])], lengths)
    other = problem([(5, ["foot"]), (3, []), (4, ["foot"])], np.r_[lengths[:8], 0.0, lengths[9:]])
    with compilations() as programs:
        solutions = [solve(hopping), solve(other)]
        jax.block_until_ready(solutions)
    assert not programs
    assert standing.success
    assert all(s.success for s in solutions)


def test_times_and_durations():
    """Times of stages are those of their lengths; free times scale each, and impacts take none."""
    dynamics = hopper()
    np.testing.assert_allclose([dynamics.time(k) for k in range(4)], [0, 0.01, 0.03, 0.03])
    free = FreeTimeDynamics(dynamics)
    us = free.join(np.zeros((3, dynamics.nu)), [2.0, 1.0, 3.0])
    np.testing.assert_allclose(free.times(us), [0, 0.02, 0.04, 0.04])
    x = drawn(dynamics)[0]
    with pytest.raises(ShapeError, match="stages have lengths"):
        free.step_lengths(us[1])
    cost = DurationCost(2.0)
    assert cost.value(free, x, us[0], 0) == pytest.approx(2 * 0.02)
    assert cost.gauss_newton(free, x, us[1], 1).u[-1] == pytest.approx(2 * 0.02)
    double = PhasedDynamics(dynamics.model, [0.02, 0.02, 0.0], ["foot"], dynamics.holds, actuation=["hip", "slide"])
    np.testing.assert_allclose(free.step(x, us[0], 0), double.step(x, us[0, :-1], 0), rtol=1e-12)
    A, B = free.linearize(x, us[0], 0, free.step(x, us[0], 0))
    expected = AbstractDynamics.linearize(free, x, us[0], 0, free.step(x, us[0], 0))
    np.testing.assert_allclose(np.concatenate([A, B], axis=1), np.concatenate(expected, axis=1), rtol=1e-7, atol=1e-8)
    assert np.isfinite(free.linearize(x, us[2], 2, free.step(x, us[2], 2))[1]).all()


def test_residuals_of_forces():
    """Residuals of forces are their formulas, their derivatives central differences, and they stay inside of their
    bounds where a contact does not hold."""
    dynamics = leg()
    x, u = drawn(dynamics, 6)
    normals = np.array([[0.3, -0.1, 1.0], [0.0, 0.2, 2.0]])
    residuals = [
        ContactForceResidual("sole", np.arange(6.0)),
        FrictionConeResidual([0.5, 0.6], normals),
        FrictionConeResidual(0.5, shape="cone"),
        CenterOfPressureResidual("sole", (0.1, 0.05)),
    ]

    @jax.jit
    def linears(x, u, k):
        return [r.linearize(dynamics, x, u, k) for r in residuals]

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def displaced(z, k):
        moved = dynamics.integrate(x, z[: dynamics.ndx]), u + z[dynamics.ndx :]
        return [r(dynamics, *moved, k) for r in residuals]

    eps, unit = 1e-6, np.eye(dynamics.ndx + dynamics.nu)
    for k in (STEP, IMPACT):
        for linear, high, low in zip(
            linears(x, u, k), displaced(eps * unit, k), displaced(-eps * unit, k), strict=True
        ):
            expected = np.asarray(high - low).T / (2 * eps)
            by_z = np.concatenate(linear[1:], axis=1)
            np.testing.assert_allclose(by_z, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    forces = np.asarray(forces_of(dynamics, x, u, STEP))
    values = [r[0] for r in linears(x, u, STEP)]
    np.testing.assert_allclose(values[0], forces[1] - np.arange(6), rtol=1e-9)
    n = normals[0] / np.linalg.norm(normals[0])
    across = forces[0, :3] - (forces[0, :3] @ n) * n
    t1 = 0.5 * (values[1][1] - values[1][0])
    t2 = 0.5 * (values[1][3] - values[1][2])
    np.testing.assert_allclose([values[1][4], t1**2 + t2**2], [forces[0, :3] @ n, across @ across], rtol=1e-9)
    np.testing.assert_allclose(values[1][0] + t1, 0.5 * values[1][4])
    free = [np.asarray(r[0]) for r in linears(x, u, FREE)]
    np.testing.assert_array_equal(free[0], 0)
    for r in free[1:]:
        np.testing.assert_array_equal(r, 1)
    for linear in linears(x, u, FREE):
        assert not np.asarray(linear.by_u).any()
        assert not np.asarray(linear.by_x).any()


def test_clearance_from_terrain():
    """The distance of feet from a slope, with its derivative."""
    dynamics, (x, _) = hopper(), drawn(hopper())
    slope = Plane((0.5, 0.0, 1.0), 0.1)
    residual = TerrainClearanceResidual(["foot", "body"], slope)
    places = [jaxdyn.frame_pose(dynamics.model, x[:5], name).translation for name in residual.frames]
    expected = np.array(places) @ np.array([0.5, 0, 1]) / np.sqrt(1.25) - 0.1
    np.testing.assert_allclose(residual(dynamics, x, None, 0), expected, rtol=1e-12)
    ours, forward = residual.linearize(dynamics, x, None, 0), AbstractResidual.linearize(residual, dynamics, x, None, 0)
    np.testing.assert_allclose(ours.by_x, forward.by_x, atol=1e-12)


def test_a_standing_guess():
    """The controls of a guess hold a standing robot."""
    model = jaxdyn.samples.hopper()
    dynamics = PhasedDynamics(model, 0.02, ["foot"], np.ones((2, 1)), actuation=["hip", "slide"])
    problem = hop(dynamics, 2)
    guess = static_guess(problem)
    assert np.abs(problem.gaps(guess.xs, guess.us)).max() < 1e-6


def test_mistakes_are_named():
    model, holds = jaxdyn.samples.hopper(), np.ones((4, 1))
    make = functools.partial(PhasedDynamics, model, 0.01)
    with pytest.raises(UnknownNameError, match="foot"):
        make(["fot"], holds)
    with pytest.raises(ModelError, match="at least one contact"):
        make([], holds)
    with pytest.raises(ModelError, match="surface"):
        make({"foot": "line"}, holds)
    with pytest.raises(ModelError, match="twice"):
        make(["foot", "foot"], np.ones((4, 2)))
    with pytest.raises(ShapeError, match=r"holds has shape \(4,\)"):
        make(["foot"], np.ones(4))
    with pytest.raises(ShapeError, match="dt has 3 rows, but the horizon has 4"):
        PhasedDynamics(model, [0.1, 0.1, 0.1], ["foot"], holds)
    with pytest.raises(ModelError, match="negative"):
        PhasedDynamics(model, [0.1, 0.1, -0.1, 0.1], ["foot"], holds)
    with pytest.raises(ModelError, match="targets need gains"):
        make(["foot"], holds, targets=np.zeros((1, 3)))
    with pytest.raises(ModelError, match="kp = 10, which needs targets"):
        make(["foot"], holds, gains=(10.0, 1.0))
    with pytest.raises(ShapeError, match="gains"):
        make(["foot"], holds, gains=50.0)
    dynamics = make(["foot"], holds)
    with pytest.raises(ShapeError, match="holds has 4 rows, but the horizon has 5"):
        hop(dynamics, 5)
    x, u = np.zeros(10), np.zeros(5)
    with pytest.raises(ModelError, match="FrictionConeResidual needs PhasedDynamics, not ModelDynamics"):
        FrictionConeResidual(0.5)(ModelDynamics(model, 0.01), x, u, 0)
    with pytest.raises(ModelError, match="InnerResidual"):
        FrictionConeResidual(0.5)(FreeTimeDynamics(dynamics), x, np.zeros(6), 0)
    with pytest.raises(ModelError, match="end of the horizon"):
        FrictionConeResidual(0.5)(dynamics, x, None, 4)
    with pytest.raises(ModelError, match="is a point"):
        CenterOfPressureResidual("foot", (0.1, 0.1))(dynamics, x, u, 0)
    with pytest.raises(UnknownNameError, match="contact"):
        contact_schedule(["foot"], [(3, ["hand"])])
