"""Integrators: orders of convergence, closed forms, conserved quantities, and MuJoCo with the same step."""

import dataclasses
import functools
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from jax import lax

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder, ModelError, ShapeError, State, native, samples, step
from jaxdyn.simulate import coordinate_rate, normalized, rk4_step, step_derivatives, vector_field
from tests.derivatives import check_derivatives
from tests.oracles import MujocoOracle

ORDERS = {"euler": 1, "semi_implicit_euler": 1, "implicit_velocity": 1, "midpoint": 2, "rk4": 4}


@functools.cache
def flyer():
    """A free body that carries a ball joint and a hinge, all with friction and springs."""
    builder = ModelBuilder()
    builder.add_body("base", joint=Joint("free"), inertia=BodyInertia(2.0, (0.05, 0.0, 0.02), (0.02, 0.03, 0.04)))
    arm = BodyInertia(0.7, (0.0, 0.1, 0.2), (0.01, 0.008, 0.006))
    builder.add_body("arm", "base", Joint("ball", damping=0.02, stiffness=0.5), (0.1, 0.0, 0.1), arm)
    hand = BodyInertia(0.4, (0.1, 0.0, 0.05), (0.004, 0.003, 0.002))
    joint = Joint(axis=(0.6, 0.8, 0.0), damping=0.05, friction=0.02, friction_velocity=1.0, armature=0.01)
    builder.add_body("hand", "arm", joint, (0.0, 0.1, 0.3), hand)
    return builder.build()


def flying() -> State:
    rng = np.random.default_rng(0)
    q = np.concatenate([rng.normal(size=3), *(unit(rng.normal(size=4)) for _ in range(2)), [0.3]])
    return State(jnp.asarray(q), jnp.asarray(rng.normal(size=10)))


def unit(x):
    return x / np.linalg.norm(x)


TORQUES = jnp.asarray(0.1 * np.random.default_rng(1).normal(size=10))


@functools.cache
def stepper(integrator: str, optimized: bool = False):
    """Return a program of any number of steps of any length; it is compiled once for each structure."""

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 3 if optimized else 0})
    def run(model, state, tau, dt, n):
        def advance_state(_, state):
            return jaxdyn.step(model, state, tau, dt, integrator=integrator)

        return lax.fori_loop(0, n, advance_state, state)

    return run


def advance(integrator, model, state, duration, n, tau=None):
    tau = jnp.zeros(model.nv) if tau is None else tau
    return stepper(integrator)(model, state, tau, duration / n, n)


@functools.cache
def reference() -> State:
    """The converged end of the motion: half as many steps give the same to 1e-11."""
    return advance("rk4", flyer(), flying(), 0.4, 800, TORQUES)


@pytest.mark.parametrize(
    "integrator", [pytest.param(x, marks=[pytest.mark.slow] * (x in ("euler", "midpoint"))) for x in ORDERS]
)
def test_order_of_convergence(integrator):
    """The error falls with the integrator's order, for a robot with free base, ball joint, friction and springs."""
    numbers = np.array([20, 40, 80]) if integrator == "rk4" else np.array([64, 128, 256])
    ends = [advance(integrator, flyer(), flying(), 0.4, int(n), TORQUES) for n in numbers]
    expected = reference()
    errors = [max(np.abs(end.q - expected.q).max(), np.abs(end.v - expected.v).max()) for end in ends]
    order = -np.polyfit(np.log(numbers), np.log(errors), 1)[0]
    assert order == pytest.approx(ORDERS[integrator], abs=0.15 if integrator != "rk4" else 0.3), errors
    for part in (slice(3, 7), slice(7, 11)):
        assert np.linalg.norm(ends[0].q[part]) == pytest.approx(1, abs=1e-12)


@functools.cache
def small_tree():
    """A model with a joint of each class, springs and friction, and a state of it with wrenches."""
    model = samples.random_tree(jax.random.key(5), 4, ("free", "ball", "revolute", "prismatic"))
    model = model.with_joint_friction(friction_velocity=1.0)
    rng = np.random.default_rng(6)
    v, tau = rng.normal(size=(2, model.nv))
    q = np.asarray(model.random_configuration(jax.random.key(6)))
    return model, State(q, v), tau, rng.normal(size=(model.nb, 6))


@pytest.mark.parametrize(
    ("integrator", "substeps"),
    [
        ("implicit_velocity", 1),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (("euler", 1), ("semi_implicit_euler", 2), ("midpoint", 1), ("rk4", 1), ("rk4", 3))
        ),
    ],
)
def test_derivatives_of_steps(integrator, substeps):
    """They are those of forward mode, with external wrenches, springs and friction, on the manifold."""
    model, state, tau, f_ext = small_tree()
    options = {"integrator": integrator, "substeps": substeps, "f_ext": f_ext}
    dt, n = 2e-3, model.nv

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def both(state, tau):
        end = step(model, state, tau, dt, **options)

        def change(d):
            start = State(model.integrate(state.q, d[:n]), state.v + d[n : 2 * n])
            after = step(model, start, tau + d[2 * n :], dt, **options)
            return jnp.concatenate([model.difference(end.q, after.q), after.v])

        general = jax.jacfwd(change)(jnp.zeros(3 * n))
        known = end if substeps == 1 else None
        analytic = [step_derivatives(model, state, tau, dt, after=a, **options) for a in (None, known)]
        return general, analytic

    general, analytic = both(state, tau)
    for matrices in analytic:
        np.testing.assert_allclose(np.concatenate(matrices, axis=1), general, atol=1e-11)


def test_derivatives_of_steps_have_batch_axes():
    model, state, tau, _ = small_tree()
    many = State(jnp.stack([state.q] * 2), jnp.stack([state.v, 2 * state.v]))
    A, B = step_derivatives(model, many, tau, 1e-3)
    n = model.nv
    assert (A.shape, B.shape) == ((2, 2 * n, 2 * n), (2, 2 * n, n))
    for one, several in zip(step_derivatives(model, state, tau, 1e-3), (A, B), strict=True):
        np.testing.assert_allclose(several[0], one, rtol=0, atol=1e-13)


def test_substeps_are_steps():
    model, start = flyer(), flying()
    fine = jaxdyn.step(model, start, TORQUES, 0.03, substeps=3)
    expected = advance("implicit_velocity", model, start, 0.03, 3, TORQUES)
    np.testing.assert_allclose(fine.q, expected.q, rtol=1e-12)
    np.testing.assert_allclose(fine.v, expected.v, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_runge_kutta_steps_of_native_code_are_those_of_jax(dtype):
    """So are they with wrenches, and for many states, robots and time steps at once."""
    model, state, tau, f_ext = jax.tree.map(lambda x: jnp.asarray(x, dtype), small_tree())
    heavier = eqx.tree_at(
        lambda m: m.inertial_parameters, model, model.inertial_parameters * jnp.ones((3, 1, 1), dtype)
    )
    steps = jnp.asarray([1e-3, 2e-3], dtype)

    def ends(model, state, tau, f_ext):
        many = jax.vmap(lambda dt: rk4_step(model, state, tau, dt, f_ext))(steps)
        robots = rk4_step(heavier, state, tau, steps[1], f_ext)
        return rk4_step(model, state, tau, steps[0]), many, robots

    found = jax.jit(lambda *x: ends(*x))(model, state, tau, f_ext)

    # One program for all of them: XLA takes long to compile a step.
    one = jax.jit(lambda *x: rk4_step(*x))
    with native.disabled():
        many = [one(model, state, tau, dt, f_ext) for dt in steps]
        robots = [
            one(eqx.tree_at(lambda m: m.inertial_parameters, model, p), state, tau, steps[1], f_ext)
            for p in heavier.inertial_parameters
        ]
        free = one(model, state, tau, steps[0], jax.tree.map(jnp.zeros_like, f_ext))
    expected = free, *(jax.tree.map(lambda *x: jnp.stack(x), *ends) for ends in (many, robots))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=50 * np.finfo(dtype).eps, atol=50 * np.finfo(dtype).eps)


# Closed forms.


@functools.cache
def rod():
    """A uniform rod of 1 kg and 1 m that is hinged at its end and hangs down at zero."""
    inertia = BodyInertia(1.0, (0.0, 0.0, -0.5), (1 / 12, 1 / 12, 0.0))
    return ModelBuilder().add_body("rod", joint=Joint(axis=(0, 1, 0)), inertia=inertia).build()


@pytest.mark.parametrize(
    ("amplitude", "period"),
    [(0.1, 1.638970889418406), (np.pi / 2, 1.933334854373246), (3.0, 4.211543869056686)],
)
def test_pendulum_returns_after_its_period(amplitude, period):
    start = State(jnp.array([amplitude]), jnp.zeros(1))
    end = advance("rk4", rod(), start, period, 4000)
    np.testing.assert_allclose(end.q, [amplitude], atol=1e-8)
    np.testing.assert_allclose(end.v, [0], atol=1e-8)


@pytest.mark.parametrize(
    ("t", "expected"),
    [(0.25, (1.570961602256057, -3.498905163445073)), (1.0, (-1.947590129406683, -1.191089938344319))],
)
def test_pendulum_released_from_two_radians(t, expected):
    end = advance("rk4", rod(), State(jnp.array([2.0]), jnp.zeros(1)), t, 2000)
    np.testing.assert_allclose([*end.q, *end.v], expected, atol=1e-8)


@functools.cache
def top():
    """A free body with inertia diag(1, 2, 3) and without gravity."""
    inertia = BodyInertia(1.0, (0, 0, 0), (1.0, 2.0, 3.0))
    return ModelBuilder().add_body("top", joint=Joint("free"), inertia=inertia).build(gravity=(0, 0, 0))


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (1.0, (0.7239782145763153, 0.6898228358201044, 0.6938166076567855)),
        (5.0, (-0.9678418423883813, -0.2515594723365903, 0.7867057543702382)),
        (9.360695887026688, (1.0, 0.0, 0.8)),
    ],
)
def test_free_body_turns_as_euler_says(t, expected):
    start = State(top().neutral(), jnp.array([0, 0, 0, 1.0, 0, 0.8]))
    end = advance("rk4", top(), start, t, 3000)
    np.testing.assert_allclose(end.v[3:], expected, atol=1e-8)


# Conserved quantities.


def momentum(model, state):
    """The momentum `[linear, angular]` in world axes about the world's origin."""
    free = dataclasses.replace(model, gravity=jnp.zeros(3), stiffness=None, spring_reference=None)
    zeros = jnp.zeros_like(state.v)
    p = jaxdyn.rnea(free, state.q, zeros, state.v, joint_friction=False)[:6]
    R = jaxdyn.forward_kinematics(model, state.q).rotation[0]
    linear = R @ p[:3]
    return jnp.concatenate([linear, R @ p[3:] + jnp.cross(state.q[:3], linear)])


def test_momentum_is_kept_and_falls_with_gravity():
    """Friction and springs within the system do not change the momentum. The variational step keeps it exactly."""
    model, start = flyer(), flying()
    weightless = dataclasses.replace(model, gravity=jnp.zeros(3))
    before = momentum(model, start)
    for integrator, n, tolerance in (("midpoint", 40, 1e-11), ("rk4", 200, 1e-7)):
        after = momentum(model, advance(integrator, weightless, start, 0.4, n))
        np.testing.assert_allclose(after, before, atol=tolerance)
        falling = momentum(model, advance(integrator, model, start, 0.4, n))
        fallen = [0, 0, -9.81 * 0.4 * float(model.mass.sum())]
        np.testing.assert_allclose(falling[:3] - before[:3], fallen, atol=tolerance)


def without_friction(model):
    return dataclasses.replace(model, damping=0 * model.damping, friction=0 * model.friction)


def energy(model, state):
    return jaxdyn.kinetic_energy(model, state.q, state.v) + jaxdyn.potential_energy(model, state.q)


@pytest.mark.slow
def test_energy_does_not_drift_over_long_horizons():
    """Over 1e5 steps of a double pendulum that goes over the top, the energy oscillates and its mean stays."""
    model = without_friction(jaxdyn.samples.double_pendulum())
    run, start = stepper("midpoint", optimized=True), State(jnp.array([2.0, 1.0]), jnp.array([0.5, -0.3]))
    ends, state = [], start
    for _ in range(1000):
        state = run(model, state, jnp.zeros(2), 2e-3, 100)
        ends.append(state)
    energies = jax.jit(energy)(model, jax.tree.map(lambda *x: jnp.stack(x), *ends))
    scale = float(
        jaxdyn.potential_energy(model, jnp.array([np.pi, 0.0])) - jaxdyn.potential_energy(model, jnp.zeros(2))
    )
    error = np.abs(energies - float(energy(model, start))) / scale
    assert np.abs(state.q).max() > 4 * np.pi
    assert error.max() < 2e-3
    assert error[500:].max() < 2 * error[:500].max()
    means = energies.reshape(4, -1).mean(axis=1) / scale
    assert np.ptp(means) < 1e-4, means


@pytest.mark.slow
def test_midpoint_is_reversible_and_differentiable():
    model = without_friction(jaxdyn.samples.double_pendulum())
    run = stepper("midpoint", optimized=True)
    start, tau = State(jnp.array([0.4, 1.0]), jnp.array([0.5, -0.3])), jnp.array([0.1, 0.2])
    forward = run(model, start, tau, 0.01, 1)
    back = run(model, forward, tau, -0.01, 1)
    np.testing.assert_allclose(back.q, start.q, atol=1e-13)
    np.testing.assert_allclose(back.v, start.v, atol=1e-11)

    def heavier(mass):
        return eqx.tree_at(lambda m: m.inertial_parameters, model, mass * model.inertial_parameters)

    def after(v, mass):
        return jaxdyn.step(heavier(mass), State(start.q, v), tau, 0.01, integrator="midpoint")

    check_derivatives(after, start.v, 1.0, each=True, step=1e-5)


# Implicit damping.


def test_implicit_damping_is_stable_and_exact_in_its_equation():
    model = rod()
    stiff = dataclasses.replace(model, damping=jnp.array([1e4]))
    # Without gravity v1 = v0 / (1 + dt D / M), with dt D / M = 300.
    stiff = dataclasses.replace(stiff, gravity=jnp.zeros(3))
    end = jaxdyn.step(stiff, State(jnp.zeros(1), jnp.ones(1)), jnp.zeros(1), 0.01, integrator="implicit_velocity")
    np.testing.assert_allclose(end.v, [1 / 301], rtol=1e-12)
    np.testing.assert_allclose(end.q, 0.01 * end.v, rtol=1e-12)
    far = advance("semi_implicit_euler", stiff, State(jnp.zeros(1), jnp.ones(1)), 0.1, 10)
    assert abs(far.v[0]) > 1e10


def test_coulomb_friction_stops_and_never_turns_the_motion():
    """Friction brings the motion to rest, with a step with which an explicit integrator would reverse it."""
    sticky = dataclasses.replace(rod(), friction=jnp.array([50.0]), gravity=jnp.zeros(3))
    v = [1.0]
    for n in (1, 2, 3, 10):
        v.append(float(advance("implicit_velocity", sticky, State(jnp.zeros(1), jnp.ones(1)), 0.01 * n, n).v[0]))
    assert (np.array(v) > 0).all()
    assert (np.diff(v) < 0).all()
    assert v[-1] < 1e-2

    def stopped(v):
        state = State(jnp.zeros(1), v)
        return jaxdyn.step(sticky, state, jnp.zeros(1), 0.01, integrator="implicit_velocity").v.sum()

    # At zero velocity the secant is the tangent: v1 = v0 / (1 + dt F / (v_c M)).
    slope = jax.grad(stopped)(jnp.zeros(1))
    np.testing.assert_allclose(slope, 1 / (1 + 0.01 * 50 / 0.01 / (1 / 3)), rtol=1e-12)


# MuJoCo, an independent implementation.


def mujoco_run(model, state, tau, dt, n, integrator, disable=0):
    oracle = MujocoOracle(model)
    mj, data = oracle.mj, oracle.data
    mj.opt.timestep, mj.opt.integrator = dt, integrator
    mj.opt.disableflags |= disable
    J, _ = oracle._set(state.q, state.v)
    for _ in range(n):
        # Torques are in our conventions at every step; on a free base they follow its orientation.
        q = np.array(data.qpos)
        J, _ = oracle._set(q, _our_velocity(oracle, data))
        data.qfrc_applied[:] = J.T @ np.asarray(tau)
        mujoco.mj_step(mj, data)
    return State(np.array(data.qpos), _our_velocity(oracle, data))


def _our_velocity(oracle, data):
    v = np.array(data.qvel)
    for at_q, at_v in oracle.free:
        R = np.zeros(9)
        mujoco.mju_quat2Mat(R, data.qpos[at_q + 3 : at_q + 7])
        v[at_v : at_v + 3] = R.reshape(3, 3).T @ v[at_v : at_v + 3]
    return v


def test_arm_moves_as_in_mujoco():
    """1000 steps of an arm with damping and armature agree. MuJoCo's Euler is explicit in damping only with a flag."""
    model = jaxdyn.samples.arm()
    model = dataclasses.replace(
        model, damping=jnp.linspace(0.5, 0.1, 7), armature=jnp.full(7, 0.1), friction=0 * model.friction
    )
    start, tau = State(jnp.linspace(-1, 1, 7), jnp.linspace(0.5, -0.5, 7)), jnp.linspace(3, -1, 7)
    kinds = mujoco.mjtIntegrator
    explicit = mujoco.mjtDisableBit.mjDSBL_EULERDAMP
    for ours, theirs, disable in (
        ("implicit_velocity", kinds.mjINT_IMPLICITFAST, 0),
        ("implicit_velocity", kinds.mjINT_EULER, 0),
        ("semi_implicit_euler", kinds.mjINT_EULER, explicit),
    ):
        got = advance(ours, model, start, 1.0, 1000, tau)
        expected = mujoco_run(model, start, tau, 1e-3, 1000, theirs, disable)
        np.testing.assert_allclose(got.q, expected.q, atol=1e-8)
        np.testing.assert_allclose(got.v, expected.v, atol=1e-8)


def test_free_base_moves_as_in_mujoco_to_first_order():
    """MuJoCo moves a free base by its velocity in world axes, so steps differ by O(dt^2) and motions by O(dt)."""
    model = dataclasses.replace(flyer(), friction=jnp.zeros(10))
    start, errors = flying(), []
    for n in (100, 200, 400):
        got = advance("implicit_velocity", model, start, 0.2, n)
        expected = mujoco_run(model, start, np.zeros(10), 0.2 / n, n, mujoco.mjtIntegrator.mjINT_EULER)
        errors.append(max(np.abs(got.q - expected.q).max(), np.abs(got.v - expected.v).max()))
    assert errors[0] < 5e-2
    np.testing.assert_allclose(np.array(errors[:-1]) / errors[1:], 2, atol=0.1)


# Solvers of another library.


def test_rate_of_coordinates_is_the_derivative_of_integrate():
    model, state, h = flyer(), flying(), 1e-6
    slope = (model.integrate(state.q, h * state.v) - model.integrate(state.q, -h * state.v)) / (2 * h)
    np.testing.assert_allclose(coordinate_rate(model, state.q, state.v), slope, atol=1e-9)
    batch = coordinate_rate(model, state.q[None], jnp.stack([state.v, 2 * state.v]))
    np.testing.assert_allclose(batch[1], 2 * batch[0], rtol=1e-12)
    rough = State(state.q.at[3:7].mul(1.1), state.v)
    np.testing.assert_allclose(normalized(model, rough).q, state.q, rtol=1e-12)


@pytest.mark.slow
def test_vector_field_in_diffrax():
    diffrax = pytest.importorskip("diffrax")

    def solve(model, start, control, tolerance, until=0.4):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(vector_field(model, control)),
            diffrax.Dopri5(),
            0.0,
            until,
            0.01,
            start,
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
            max_steps=256,
        ).ys

    model, start = top(), State(top().neutral(), jnp.array([0.2, 0, 0, 1.0, 0, 0.8]))
    end = jax.jit(lambda s: solve(model, s, None, 1e-9, 1.0))(start)
    end, expected = normalized(model, State(end.q[-1], end.v[-1])), advance("rk4", model, start, 1.0, 1000)
    np.testing.assert_allclose(end.q, expected.q, atol=1e-7)
    np.testing.assert_allclose(end.v, expected.v, atol=1e-7)

    # Diffrax's adjoint by the state, the model and the control equals central differences.
    pendulum, start = jaxdyn.samples.pendulum(), State(jnp.array([0.5]), jnp.array([1.0]))

    def adaptive(gravity, v, gain):
        model = dataclasses.replace(pendulum, gravity=gravity)
        return solve(model, State(start.q, v), eqx.Partial(braked, gain), 1e-9).q.sum()

    check_derivatives(adaptive, pendulum.gravity, start.v, 0.1, modes=["reverse"], step=1e-5, rtol=1e-5)


def braked(gain, t, state, args):
    return -gain * state.v + jnp.cos(t)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m, s: jaxdyn.step(m, s, s.v, 0.1, integrator="leapfrog"), ModelError, ["leapfrog", "midpoint"]),
        (lambda m, s: jaxdyn.step(m, s, s.v, 0.1, substeps=0), ModelError, ["substeps", "0"]),
        (lambda m, s: jaxdyn.step(m, s, s.v, jnp.ones(2)), ShapeError, ["dt", "(2,)"]),
        (lambda m, s: jaxdyn.step(m, s, s.q[:0], 0.1), ShapeError, ["tau", "nv = 1"]),
        (lambda m, s: jaxdyn.step(m, State(s.q, jnp.ones((2, 1))), jnp.ones((3, 1)), 0.1), ShapeError, ["broadcast"]),
        (lambda m, s: vector_field(m, jnp.ones(3)), ShapeError, ["control", "nv = 1"]),
    ],
)
def test_errors_name_the_thing(call, error, words):
    with pytest.raises(error) as caught:
        call(rod(), State(jnp.zeros(1), jnp.zeros(1)))
    for word in words:
        assert word in str(caught.value)


# Long steps.


def table():
    """Two sliders, not perpendicular, with friction, damping and springs: a constant mass matrix that couples them."""
    builder = ModelBuilder()
    x = Joint("prismatic", axis=(1, 0, 0), name="x", damping=3.0, friction=0.5, stiffness=40.0, friction_velocity=0.1)
    builder.add_body("a", joint=x, inertia=BodyInertia.sphere(1.0, 0.1))
    y = Joint("prismatic", axis=(1, 1, 0), name="y", damping=0.1, friction=2.0, stiffness=900.0, friction_velocity=0.05)
    builder.add_body("b", "a", y, None, BodyInertia.sphere(0.5, 0.1))
    return builder.build(gravity=(0, 0, 0))


@pytest.mark.filterwarnings("ignore::jaxdyn.DivergenceWarning")
@pytest.mark.parametrize("integrator", ["euler", "semi_implicit_euler", "implicit_velocity", "rk4"])
def test_the_longest_stable_step_is_that_of_the_linearized_step(integrator):
    model, zero = table(), jnp.zeros(2)
    longest = jaxdyn.model.stable_steps(model)[integrator]
    assert longest.joint == "y"
    for factor, stable in ((0.99, True), (1.01, False)):
        A, _ = step_derivatives(model, State(zero, zero), zero, factor * longest.dt, integrator=integrator)
        assert (np.abs(np.linalg.eigvals(A)).max() < 1) == stable


def test_stable_steps_of_one_joint():
    """Of a rod with the inertia `m` about its hinge; of a batch, they are those of the model with most friction."""
    m, friction = 1 / 3, 2.0
    sticky = rod().with_joint_friction(friction=friction)
    bound = 2 * m * 0.01 / friction
    steps = jaxdyn.model.stable_steps(sticky)
    # The real end of the stability region: Hairer & Wanner, Solving Ordinary Differential Equations II, section IV.2.
    expected = {"euler": 1, "semi_implicit_euler": 1, "midpoint": 1, "rk4": 2.785293563405282 / 2}
    for name, factor in expected.items():
        assert steps[name].dt == pytest.approx(bound * factor, rel=1e-6)
    assert steps["implicit_velocity"].dt == np.inf
    assert jaxdyn.model.stable_steps(rod()) == {}
    batch = sticky.with_joint_friction(friction=jnp.array([[0.0], [friction], [0.1]]))
    assert jaxdyn.model.stable_steps(batch)["euler"].dt == pytest.approx(bound, rel=1e-6)


def test_the_motions_that_loops_leave_have_stable_steps():
    """With its loop a four-bar is heavier for the motor than without, and its steps are longer."""
    closed = samples.four_bar().with_joint_friction(friction=1.0)
    alone, together = (jaxdyn.model.stable_steps(m)["euler"].dt for m in (closed.without_loops(), closed))
    assert together > alone > 0


def test_unstable_steps_are_warned_of():
    """The warning names the joint and the bound, also while a gradient is traced; the default is stable."""
    model, state = rod().with_joint_friction(friction=2.0), State(jnp.zeros(1), jnp.ones(1))
    tau = jnp.zeros((3, 1))
    words = r"joint 'rod_joint' is unstable .* 0\.0033 s(.|\n)*substeps=4, or integrator='implicit_velocity'"
    explicit = {"integrator": "semi_implicit_euler"}
    calls = (
        lambda: jaxdyn.step(model, state, tau[0], 0.01, **explicit),
        lambda: jaxdyn.rollout(model, state, tau, 0.01, **explicit),
        lambda: jax.grad(lambda u: jaxdyn.rollout(model, state, u, 0.01, **explicit).q.sum())(tau),
    )
    for call in calls:
        with pytest.warns(jaxdyn.DivergenceWarning, match=words):
            call()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxdyn.rollout(model, state, tau, 0.01)
        jaxdyn.rollout(model, state, tau, 0.01, substeps=4, **explicit)
        # Nothing is known of a model that is traced.
        jax.jit(lambda m: jaxdyn.step(m, state, tau[0], 0.01, **explicit))(model)


def test_gradients_of_light_links_with_friction_are_those_of_short_steps():
    """Three light links with friction as in common files of robots: explicit steps have gradients of 1e18."""
    model = samples.chain(3).with_joint_friction(friction=0.5)
    start = State(model.neutral() + 0.3, jnp.zeros(3))
    torques = jnp.asarray(0.5 * np.sin(0.02 * np.arange(300)[:, None] + np.arange(3)))
    slope = jax.grad(lambda u: jaxdyn.rollout(model, start, u, 2e-3).q[-1].sum())(torques)
    # With steps of 0.1 ms it is 0.0156.
    assert 0.01 < np.abs(slope).max() < 0.025
