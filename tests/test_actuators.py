"""Actuators and joint effects: closed forms, singular points, precisions, transformations, errors."""

import functools

import draws
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import Joint, Model, ModelBuilder, ModelError, ShapeError, State, UnknownNameError
from jaxdyn.model import BodyInertia
from jaxdyn.simulate import (
    Actuation,
    CoulombFriction,
    DCMotorLimits,
    Delay,
    EffortLimits,
    FirstOrderLag,
    Gear,
    PositionServo,
    ServoCommand,
    SoftLimits,
    StribeckFriction,
    Transmission,
    VelocityServo,
    ViscousFriction,
    rollout,
    step,
)

MASS = 2.0


@functools.cache
def slider(lower: float = -np.inf, upper: float = np.inf) -> Model:
    """A mass on a horizontal rail: `m a = tau`."""
    joint = Joint("prismatic", axis=(1, 0, 0), name="rail", lower=lower, upper=upper, effort_limit=20.0)
    return ModelBuilder().add_body("cart", joint=joint, inertia=BodyInertia.box(MASS, (0.1, 0.1, 0.1))).build()


@functools.cache
def satellite() -> Model:
    """A free body with an arm on a ball joint: quaternions in both."""
    return jaxdyn.samples.random_tree(jax.random.key(1), 3, ("free", "ball", "revolute"))


def state_at(q: float = 0.0, v: float = 0.0) -> State:
    return State(jnp.array([q]), jnp.array([v]))


@jax.jit
def advance(policy, carry, state: State, t):
    return policy(carry, state, t)


@jax.jit
def applied(block, command, state: State) -> jax.Array:
    return block.apply(command, state)


@jax.jit
def torque_of(effect, state: State) -> jax.Array:
    return effect.torque(state)


@jax.jit
def torque_gradients(effect, state: State):
    """The derivatives of the sum of an effect's torques by its numbers and by the state."""
    return jax.grad(lambda effect, state: effect.torque(state).sum(), (0, 1))(effect, state)


def outputs(block, commands, state: State) -> np.ndarray:
    """The outputs of a block for one command a step, in a constant state."""
    policy = Actuation(block).driven_by(jnp.asarray(commands))
    carry, out = policy.init(state), []
    for i in range(np.shape(commands)[-2]):
        carry, y = advance(policy, carry, state, 0.1 * i)
        out.append(y)
    return np.stack(out, axis=-2)


@functools.partial(jax.jit, static_argnames="steps")
def simulated(model: Model, policy, state: State, dt, steps: int) -> tuple[State, jax.Array]:
    """Return the states after each step, and the torques."""

    def advance(carry, i):
        memory, state = carry
        memory, tau = policy(memory, state, i * dt)
        state = step(model, state, tau, dt)
        return (memory, state), (state, tau)

    return jax.lax.scan(advance, (policy.init(state), state), jnp.arange(steps))[1]


def test_the_step_response_of_a_lag_is_an_exponential():
    T, dt = 0.05, 0.02
    y = outputs(FirstOrderLag(T, dt, initial=-1.0), np.full((20, 1), 3.0), state_at())
    np.testing.assert_allclose(y[:, 0], 3 - 4 * np.exp(-dt * np.arange(1, 21) / T), rtol=1e-12)
    # With half the step the curve is the same: the discretization is exact.
    fine = outputs(FirstOrderLag(T, dt / 2, initial=-1.0), np.full((40, 1), 3.0), state_at())
    np.testing.assert_allclose(fine[1::2], y, rtol=1e-12)


def test_a_lag_of_no_time_is_none_and_its_derivative_is_finite():
    commands = np.random.default_rng(0).normal(size=(5, 1))
    np.testing.assert_array_equal(outputs(FirstOrderLag(0.0, 0.01), commands, state_at()), commands)

    @jax.jit
    def total(T):
        lag = FirstOrderLag(T, 0.01)
        return lag(jnp.zeros(1), jnp.ones(1), state_at(), 0.0)[1].sum()

    slope = jax.jit(jax.grad(total))
    assert slope(0.0) == 0
    T, h = 0.03, 1e-6
    assert slope(T) == pytest.approx(float(total(T + h) - total(T - h)) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_delay_shifts_by_its_steps(steps):
    commands = np.random.default_rng(1).normal(size=(2, 10, 1))
    delayed = outputs(Delay(steps, initial=7.0), commands, State(jnp.zeros((2, 1)), jnp.zeros((2, 1))))
    np.testing.assert_array_equal(delayed[:, steps:], commands[:, : 10 - steps])
    np.testing.assert_array_equal(delayed[:, :steps], 7.0)


def test_after_the_last_command_it_is_held():
    policy = Actuation().driven_by(jnp.array([[1.0], [2.0]]))
    carry, out = policy.init(state_at()), []
    for _ in range(4):
        carry, tau = advance(policy, carry, state_at(), 0.0)
        out.append(float(tau[0]))
    assert out == [1, 2, 2, 2]


def test_a_position_servo_on_a_mass_is_a_damped_oscillator():
    kp, kd, target, x0, dt = 50.0, 8.0, 0.3, -0.2, 1e-4
    policy = Actuation(PositionServo(slider(), kp, kd)).driven_by(jnp.array([[target]]))
    states, _ = simulated(slider(), policy, state_at(x0), dt, 5000)
    # m e'' + kd e' + kp e = 0 for e = x - target, released at rest.
    t = dt * np.arange(1, 5001)
    decay, natural = kd / (2 * MASS), np.sqrt(kp / MASS)
    omega = np.sqrt(natural**2 - decay**2)
    expected = target + (x0 - target) * np.exp(-decay * t) * (np.cos(omega * t) + decay / omega * np.sin(omega * t))
    np.testing.assert_allclose(states.q[:, 0], expected, atol=2e-4)


def test_feed_forward_and_a_moving_target():
    model = satellite()
    (q, v, effort, _), (q_d, v_d, *_) = (draws.states(model, seed, 4) for seed in range(2))
    kp, kd = np.random.default_rng(2).uniform(size=(2, model.nv))
    servo = PositionServo(model, kp, kd)
    tau = applied(servo, ServoCommand(q_d, v_d, effort), State(q, v))
    # The error of ball and free joints is the difference on the manifold.
    np.testing.assert_allclose(tau, effort + kp * model.difference(q, q_d) + kd * (v_d - v), rtol=1e-12)
    np.testing.assert_allclose(
        applied(VelocityServo(model, kd), v_d, State(q, v)), kd * (v_d - v), rtol=1e-12
    )  # fmt: skip
    gradient = jax.jit(jax.grad(lambda q: servo.apply(q_d, State(q, v)).sum()))(q_d)
    assert np.isfinite(gradient).all()


def test_servos_of_some_joints_leave_the_others_alone():
    model = satellite()
    names = list(reversed(model.joint_names[1:]))  # all but the free one
    q, q_d = (draws.states(model, i)[0] for i in range(2))
    v = np.ones(model.nv)
    rows = np.concatenate([np.arange(model.nv)[model.v_index(n)] for n in names])
    coordinates = np.concatenate([np.arange(model.nq)[model.q_index(n)] for n in names])
    command = ServoCommand(q_d[coordinates], effort=10 * np.arange(len(rows)))
    tau = applied(PositionServo(model, 3.0, 2.0, joints=names), command, State(q, v))
    expected = np.zeros(model.nv)
    expected[rows] = (3 * model.difference(q, q_d) - 2 * v)[rows] + 10 * np.arange(len(rows))
    np.testing.assert_allclose(tau, expected, rtol=1e-12, atol=1e-12)
    tau = np.asarray(applied(VelocityServo(model, 2.0, joints=names), np.full(len(rows), 5.0), State(q, v)))
    np.testing.assert_allclose(tau[rows], 8.0)
    assert np.count_nonzero(tau) == len(rows)


def test_gears_and_transmissions():
    model = jaxdyn.samples.acrobot()
    state = State(jnp.zeros(2), jnp.zeros(2))
    np.testing.assert_allclose(Gear(50.0, 0.8).apply(jnp.array([1.0, -2.0]), state), [40, -80])
    elbow = Transmission.to_joints(model, ["elbow"], ratio=10.0)
    np.testing.assert_array_equal(elbow.apply(jnp.array([3.0]), state), [0, 30])
    coupled = Transmission(jnp.array([[1.0, 0.0], [-1.0, 1.0]]))
    np.testing.assert_array_equal(coupled.apply(jnp.array([[2.0, 5.0]]), state), [[2, 3]])


@pytest.mark.parametrize(("kind", "width"), [("clip", None), ("tanh", None), ("softclip", 0.05)])
def test_limits_hold_and_gradients_are_finite(kind, width):
    upper, lower = np.array([2.0, 0.0, np.inf]), np.array([-3.0, 0.0, -np.inf])
    limits = EffortLimits(upper, lower, kind=kind, width=width)
    state = State(np.zeros(3), np.zeros(3))
    gradients = jax.jit(jax.grad(lambda a: a[0].apply(a[1], state).sum(), allow_int=True))
    for x in (-1e3, -3.0, 0.0, 2.0, 1e3):
        y = np.asarray(applied(limits, np.full(3, x), state))
        assert np.all((y <= upper + 1e-12) & (y >= lower - 1e-12))
        assert float(y[2]) == x
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients((limits, np.full(3, x)))))
    small = applied(limits, np.full(3, 1e-3), state)
    np.testing.assert_allclose(small, [1e-3, 0, 1e-3], rtol=1e-6)


def test_symmetric_limits_and_those_of_a_model():
    arm = jaxdyn.samples.arm()
    state = State(arm.neutral(), jnp.zeros(7))
    limits = EffortLimits(arm.effort_limit)
    np.testing.assert_array_equal(limits.apply(jnp.full(7, -1e3), state), -arm.effort_limit)
    np.testing.assert_allclose(
        EffortLimits(4.0, kind="tanh").apply(jnp.array([2.0]), state), 4 * np.tanh(0.5), rtol=1e-12
    )


def test_the_torque_speed_curve():
    motor = DCMotorLimits(stall_torque=10.0, no_load_speed=5.0, peak_torque=8.0)
    speeds = np.array([[-6.0], [-2.5], [0.0], [0.5], [2.5], [5.0], [7.0]])
    state = State(np.zeros_like(speeds), speeds)
    forward, back = (np.asarray(applied(motor, np.full((7, 1), x), state))[:, 0] for x in (100.0, -100.0))
    np.testing.assert_allclose(forward, [8, 8, 8, 8, 5, 0, 0])
    np.testing.assert_allclose(back, [0, -5, -8, -8, -8, -8, -8])
    # If the stall torque equals the peak torque, the bound has its corner at zero velocity.
    torque = DCMotorLimits(10.0, 5.0)
    gradient = jax.jit(jax.grad(lambda v: torque.apply(jnp.array([100.0]), state_at(0.0, v)).sum()))(0.0)
    assert np.isfinite(gradient)


def test_friction_has_its_closed_forms():
    x = np.linspace(-2, 2, 41)[:, None]
    state = State(np.zeros_like(x), x)
    np.testing.assert_allclose(torque_of(ViscousFriction(0.3), state), -0.3 * x)
    np.testing.assert_allclose(torque_of(CoulombFriction(2.0, 0.1), state), -2 * np.tanh(x / 0.1))
    stribeck = StribeckFriction(1.0, 1.5, 0.2, 0.3, 0.01)
    expected = -(1 + 0.5 * np.exp(-((x / 0.2) ** 2))) * np.tanh(x / 0.01) - 0.3 * x
    found = np.asarray(torque_of(stribeck, state))
    np.testing.assert_allclose(found, expected)
    # Friction takes power out at every speed.
    assert np.all(found * x <= 0)
    for effect in (ViscousFriction(0.3), CoulombFriction(2.0, 0.1), stribeck):
        gains, by_state = torque_gradients(effect, state_at())
        assert by_state.v < 0
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(gains))


def test_coulomb_and_viscous_friction_are_the_models_own():
    model = jaxdyn.samples.double_pendulum()
    state = State(jnp.array([0.3, -0.8]), jnp.array([0.004, -1.2]))
    effects = Actuation(ViscousFriction(model.damping), CoulombFriction(model.friction, model.friction_velocity))
    policy = effects.driven_by()
    _, friction = policy(policy.init(state), state, 0.0)
    # Friction is the difference of the torques for zero acceleration with and without the model's friction.
    a = jnp.zeros(2)
    needed, without = (jaxdyn.rnea(model, state.q, state.v, a, joint_friction=x) for x in (True, False))
    np.testing.assert_allclose(without - needed, friction, rtol=1e-9)


def test_soft_limits_push_and_never_pull():
    k, c, w = 1000.0, 20.0, 0.01
    limits = SoftLimits(slider(-0.5, 1.0), k, c, w)

    def torque(q, v=0.0) -> float:
        return torque_of(limits, state_at(q, v)).item()

    assert torque(0.99, 3.0) == 0
    assert torque(-0.49, -3.0) == 0
    assert torque(1.1) == pytest.approx(-k * (0.1 - w / 2))
    assert torque(-0.6) == pytest.approx(k * (0.1 - w / 2))
    assert torque(1.1, 2.0) == pytest.approx(-k * (0.1 - w / 2) - c * 2)
    assert torque(1.1, -1e3) == 0
    # At a depth of w / 2, in the middle of the ramp, the push is a quarter of the linear spring's k w / 2.
    assert torque(1.0 + w / 2) == pytest.approx(-k * w / 8)

    for state in (
        state_at(1.0),
        state_at(1.0, 1.0),
        state_at(1.0 + w),
        state_at(-0.5),
        state_at(0.2),
        state_at(1.1, -1e3),
    ):
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(torque_gradients(limits, state)))


def test_soft_limits_stop_a_mass():
    limits = Actuation(SoftLimits(slider(-0.5, 0.5), 4000.0, 60.0, 0.005))
    states, tau = simulated(slider(-0.5, 0.5), limits.driven_by(), state_at(0.4, 1.0), 1e-3, 400)
    # If the spring takes up all kinetic energy, without a damper, the depth is v (m / k)^(1/2).
    assert 0 < float(states.q.max()) - 0.5 < np.sqrt(MASS / 4000) + 0.005
    assert float(states.v[-1, 0]) < 0
    assert float(tau.max()) == 0


def test_soft_limits_of_ball_and_free_joints_are_none():
    model = satellite()
    limits = SoftLimits(model, 100.0, 1.0, lower=np.full(model.nq, -np.inf), upper=np.full(model.nq, np.inf))
    state = State(draws.states(model, 3, 5)[0], np.ones(model.nv))
    np.testing.assert_array_equal(torque_of(limits, state), 0)
    hinge = model.q_index(model.joint_names[-1]) if model.topology.joint_types[-1] == "revolute" else None
    assert hinge is not None
    upper = np.full(model.nq, np.inf)
    upper[hinge] = -4.0
    torque = np.asarray(torque_of(SoftLimits(model, 100.0, 0.0, upper=upper), state))
    assert np.all(torque[..., model.v_index(model.joint_names[-1])] < 0)
    assert np.count_nonzero(torque) == 5
    with pytest.raises(ModelError, match="ball or free"):
        SoftLimits(model, 100.0, 1.0, upper=np.ones(model.nq))


def everything(model: Model, dt: float) -> Actuation:
    return Actuation(
        PositionServo(model, 40.0, 4.0),
        Actuation(Delay(2), FirstOrderLag(0.02, dt)),
        Gear(2.0, 0.9),
        EffortLimits(model.effort_limit, kind="tanh"),
        DCMotorLimits(30.0, 20.0, kind="softclip", width=0.1),
        StribeckFriction(0.1, 0.2, 0.05, 0.01),
        SoftLimits(model, 500.0, 5.0),
    )


@pytest.fixture(scope="module")
def run():
    """A short roll-out through every block, which counts its compilations."""
    traced = []

    @functools.partial(jax.jit, static_argnames="dtype")
    def final(model, actuation, commands, state, dtype=jnp.float64):
        traced.append(dtype)
        policy = actuation.driven_by(commands)
        motion = rollout(model, state, policy, jnp.asarray(0.01, dtype), steps=20, policy_state=policy.init(state))
        return motion.final.q

    return final, traced


def test_gradients_reach_every_gain(run):
    final, _ = run
    model = slider(-0.5, 0.5)
    actuation, commands = everything(model, 0.01), jnp.full((20, 1), 0.8)
    state = state_at(0.499, 0.5)
    value, gradient = jax.jit(jax.value_and_grad(lambda a, u: final(model, a, u, state).sum(), argnums=(0, 1)))(
        actuation, commands
    )
    assert jnp.isfinite(value)
    named = jax.tree_util.tree_leaves_with_path(gradient)
    assert len(named) > 20
    for path, g in named:
        assert np.isfinite(g).all(), jax.tree_util.keystr(path)
    direct = gradient[0].blocks
    assert all(float(jnp.abs(x).sum()) > 0 for x in (direct[0].kp, direct[0].kd, direct[1].blocks[1].time_constant))
    # The first commands have passed the delay, the last have not.
    assert np.count_nonzero(gradient[1]) == 18
    h = 1e-5
    up, down = (final(model, eqx.tree_at(lambda a: a.blocks[0].kp, actuation, jnp.asarray(40 + s)), commands, state)
                for s in (h, -h))  # fmt: skip
    assert float(direct[0].kp) == pytest.approx(float(up[0] - down[0]) / (2 * h), rel=1e-4)


def test_new_gains_do_not_recompile_and_batches_agree(run):
    final, traced = run
    model = slider(-0.5, 0.5)
    commands, state = jnp.full((20, 1), 0.8), state_at(0.1)
    final(model, everything(model, 0.01), commands, state)
    before = len(traced)
    gains = jnp.linspace(10, 80, 4)
    one_by_one = []
    for kp in gains:
        other = eqx.tree_at(lambda a: a.blocks[0].kp, everything(model, 0.01), kp)
        one_by_one.append(final(model, other, commands, state))
    # A gain given as a number and one given as an array use the same program.
    final(
        model, eqx.tree_at(lambda a: a.blocks[0], everything(model, 0.01), PositionServo(model, 3, 1)), commands, state
    )
    assert len(traced) == before
    batched = jax.vmap(
        lambda kp: final(model, eqx.tree_at(lambda a: a.blocks[0].kp, everything(model, 0.01), kp), commands, state)
    )(gains)
    np.testing.assert_allclose(batched, one_by_one, rtol=1e-9)
    # Native batch axes give the same: commands, gains and states broadcast.
    many = eqx.tree_at(lambda a: a.blocks[0].kp, everything(model, 0.01), gains[:, None])
    states = State(jnp.full((4, 1), 0.1), jnp.zeros((4, 1)))
    np.testing.assert_allclose(final(model, many, commands, states), one_by_one, rtol=1e-9)


@pytest.mark.slow
def test_single_precision_follows_the_state(run):
    final, _ = run
    model = slider(-0.5, 0.5)
    single = model.astype(jnp.float32)
    state = State(jnp.full(1, 0.1, jnp.float32), jnp.zeros(1, jnp.float32))
    # Gains and commands in double precision do not widen the result.
    q = final(single, everything(model, 0.01), jnp.full((20, 1), 0.8), state, dtype=jnp.float32)
    assert q.dtype == jnp.float32
    exact = final(model, everything(model, 0.01), jnp.full((20, 1), 0.8), state_at(0.1))
    np.testing.assert_allclose(q, exact, rtol=1e-4)


def test_a_policy_with_a_memory_drives_the_blocks():
    def every_other(count, state, t):
        return count + 1, jnp.where(count % 2 == 0, 1.0, -1.0) * jnp.ones_like(state.v)

    policy = Actuation(Delay(1), EffortLimits(0.5)).driven_by(every_other)
    carry, out = policy.init(state_at(), jnp.zeros((), int)), []
    for _ in range(4):
        carry, tau = policy(carry, state_at(), 0.0)
        out.append(float(tau[0]))
    assert out == [0, 0.5, -0.5, 0.5]
    assert int(carry[0]) == 4


MISTAKES = {
    "kp of PositionServo has shape": lambda: PositionServo(slider(), jnp.ones(3), 1.0).apply(jnp.ones(1), state_at()),
    r"command of a servo has shape \(2,\)": lambda: PositionServo(slider(), 1.0, 1.0).apply(jnp.ones(2), state_at()),
    r"commands have shape \(1,\)": lambda: Actuation().driven_by(jnp.ones(1)),
    "at least one": lambda: Actuation().driven_by(jnp.ones((0, 1))),
    "lower of EffortLimits has shape": lambda: EffortLimits(jnp.ones(3)).apply(jnp.ones(1), state_at()),
    "DCMotorLimits has shape": lambda: DCMotorLimits(1.0, 1.0).apply(jnp.ones(2), state_at()),
    "CoulombFriction has shape": lambda: CoulombFriction(1.0).apply(jnp.ones(2), state_at()),
    "matrix of a transmission has shape": lambda: Transmission(jnp.ones(1)),
    "a row for each degree of freedom": lambda: Transmission(jnp.ones((2, 1))).apply(jnp.ones(1), state_at()),
    "the ratio has shape": lambda: Transmission.to_joints(slider(), ["rail"], jnp.ones(2)),
    "the lower limit has shape": lambda: SoftLimits(slider(), 1.0, 1.0, lower=jnp.ones(2)),
    "command of FirstOrderLag": lambda: Actuation(FirstOrderLag(0.1, 0.1)).init(ServoCommand(jnp.ones(1)), state_at()),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_shapes_that_do_not_fit_are_named(message):
    with pytest.raises(ShapeError, match=message):
        MISTAKES[message]()


WRONG = {
    "time constant is -1": lambda: FirstOrderLag(-1.0, 0.1),
    "dt is 0": lambda: FirstOrderLag(0.1, 0.0),
    "steps of a delay is 1.5": lambda: Delay(1.5),
    "steps of a delay is -1": lambda: Delay(-1),
    "kind of saturation is 'hard'": lambda: EffortLimits(1.0, kind="hard"),
    "a width belongs": lambda: EffortLimits(1.0, width=1.0),
    "upper - lower is": lambda: EffortLimits(1.0, 2.0),
    "lower limit of a tanh": lambda: EffortLimits(2.0, 1.0, kind="tanh"),
    "no-load speed is": lambda: DCMotorLimits(1.0, 0.0),
    "Stribeck velocity is": lambda: StribeckFriction(1.0, 1.0, 0.0),
    "efficiency is": lambda: Gear(1.0, 1.2),
    "block 0 of the actuation is 'int'": lambda: Actuation(3),
    "a sequence of names": lambda: PositionServo(slider(), 1.0, 1.0, joints="rail"),
}


@pytest.mark.parametrize("message", WRONG)
def test_values_that_mean_nothing_are_named(message):
    with pytest.raises(ModelError, match=message):
        WRONG[message]()


def test_an_unknown_joint_is_named():
    with pytest.raises(UnknownNameError, match="did you mean 'rail'"):
        VelocityServo(slider(), 1.0, joints=["rai"])


def test_step_by_step_is_the_roll_out(run):
    final, _ = run
    model, commands = slider(-0.5, 0.5), jnp.full((20, 1), 0.8)
    states, _ = simulated(model, everything(model, 0.01).driven_by(commands), state_at(0.1), 0.01, 20)
    np.testing.assert_allclose(final(model, everything(model, 0.01), commands, state_at(0.1)), states.q[-1], rtol=1e-12)


def test_substeps_do_not_refine_a_block():
    damper, moving = Actuation(ViscousFriction(40.0)).driven_by(), state_at(0.0, 1.0)
    v = rollout(slider(), moving, damper, 0.01, steps=3, policy_state=damper.init(moving), substeps=5).v[:, 0]
    # The velocity changes as with one substep: v -> v (1 - dt d / m).
    np.testing.assert_allclose(v, (1 - 0.01 * 40 / MASS) ** np.arange(4), rtol=1e-12)


def test_a_lag_a_servo_and_limits_are_those_of_mujoco():
    mujoco = pytest.importorskip("mujoco")
    xml = f"""
    <mujoco><option timestep="0.002" integrator="Euler" gravity="0 0 0"/>
      <worldbody><body>
        <joint name="rail" type="slide" axis="1 0 0"/><geom type="sphere" size="0.1" mass="{MASS}"/>
      </body></worldbody>
      <actuator><general joint="rail" dyntype="filterexact" dynprm="0.03" gainprm="300" biastype="affine"
        biasprm="0 -300 -20" forcelimited="true" forcerange="-9 12" actearly="true"/></actuator>
    </mujoco>"""
    theirs = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(theirs)
    commands = np.where(np.arange(300) % 100 < 50, 0.3, -0.2)[:, None]
    q = []
    for u in commands:
        data.ctrl[:] = u
        mujoco.mj_step(theirs, data)
        q.append(data.qpos.copy())
    drive = Actuation(FirstOrderLag(0.03, 0.002), PositionServo(slider(), 300.0, 20.0), EffortLimits(12.0, -9.0))
    states, tau = simulated(slider(), drive.driven_by(commands), state_at(), 0.002, 300)
    assert float(tau.max()) == 12
    assert float(tau.min()) == -9
    np.testing.assert_allclose(states.q, q, atol=1e-12)


def test_a_roll_out_begins_with_the_memory_of_the_blocks():
    robots = eqx.tree_at(lambda m: m.damping, slider(), jnp.array([[0.0], [1.0], [2.0]]))
    drive = Actuation(Delay(3), FirstOrderLag(0.05, 0.01)).driven_by(jnp.full((1, 1), 4.0))
    starts = State(jnp.zeros((3, 1)), jnp.zeros((3, 1)))
    expected = rollout(robots, starts, drive, 0.01, steps=20, policy_state=drive.init(starts))
    motion = rollout(robots, state_at(), drive, 0.01, steps=20)  # the batch axes are those of the robots
    np.testing.assert_array_equal(motion.tau, expected.tau)
    np.testing.assert_array_equal(motion.q, expected.q)
    with pytest.raises(ModelError, match=r"begins with policy.init\(state\)"):
        drive(None, state_at(), 0.0)
    for block in (Delay(1), Actuation(Delay(1))):
        with pytest.raises(ModelError, match=f"controls are {type(block).__name__}, .*driven_by"):
            rollout(slider(), state_at(), block, 0.01, steps=2)
