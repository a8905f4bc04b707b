"""Blocks of actuators and the worlds that have them: closed forms, singular points, precisions, transformations,
errors."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import (
    Actuator,
    Joint,
    Model,
    ModelBuilder,
    ModelError,
    MujocoLaw,
    ShapeError,
    State,
    UnknownNameError,
    World,
)
from jaxdyn.friction import Dahl
from jaxdyn.model import BodyInertia
from jaxdyn.simulate import (
    AbstractDriveBlock,
    ActuatorState,
    DahlFriction,
    DCMotorLimits,
    Delay,
    EffortLimits,
    FirstOrderLag,
    SoftLimits,
    StribeckFriction,
)
from jaxdyn.trajopt import WorldDynamics
from tests.derivatives import check_derivatives

MASS, DT = 2.0, 0.01


@functools.cache
def slider(count: int = 1) -> Model:
    """Masses on horizontal rails: `m a = tau`."""
    builder = ModelBuilder()
    for k in range(count):
        joint = Joint("prismatic", axis=(1, 0, 0), name=f"rail{k}", effort_limit=20.0)
        inertia = BodyInertia.box(MASS, (0.1, 0.1, 0.1))
        builder = builder.add_body(f"cart{k}", joint=joint, inertia=inertia)
    return builder.build()


def at(velocity=0.0, length=0.0) -> ActuatorState:
    return ActuatorState(jnp.asarray(length, float), jnp.asarray(velocity, float), DT)


@jax.jit
def applied(block, signal, state: ActuatorState) -> jax.Array:
    return block.apply(signal, state)


@jax.jit
def torque_of(effect, state: ActuatorState) -> jax.Array:
    return effect.torque(state)


@jax.jit
def torque_gradients(effect, state: ActuatorState):
    """The derivatives of the sum of an effect's forces by its numbers and by the state."""
    return jax.grad(lambda effect, state: effect.torque(state).sum(), (0, 1))(effect, state)


def outputs(block, signals, dt: float = DT) -> np.ndarray:
    """The outputs of a block for one signal a step."""
    state, memory, out = ActuatorState(jnp.zeros(()), jnp.zeros(()), dt), block.start(), []
    advance = jax.jit(lambda block, u, memory: block.advance(u, state, memory))
    for u in signals:
        y, memory = advance(block, u, memory)
        out.append(y)
    return np.stack(out)


def test_the_step_response_of_a_lag_is_an_exponential():
    T, dt = 0.05, 0.02
    y = outputs(FirstOrderLag(T, initial=-1.0), np.full(20, 3.0), dt)
    np.testing.assert_allclose(y, 3 - 4 * np.exp(-dt * np.arange(1, 21) / T), rtol=1e-12)
    # With half the step the curve is the same: the discretization is exact.
    fine = outputs(FirstOrderLag(T, initial=-1.0), np.full(40, 3.0), dt / 2)
    np.testing.assert_allclose(fine[1::2], y, rtol=1e-12)


def test_a_lag_of_no_time_is_none_and_its_derivative_is_finite():
    signals = np.random.default_rng(0).normal(size=5)
    np.testing.assert_array_equal(outputs(FirstOrderLag(0.0), signals), signals)

    def total(T):
        return FirstOrderLag(T).advance(jnp.ones(1), at(), (jnp.zeros(1),))[0].sum()

    assert jax.jit(jax.grad(total))(0.0) == 0
    check_derivatives(total, 0.03, modes=["reverse"])


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_delay_shifts_by_its_steps(steps):
    signals = np.random.default_rng(1).normal(size=10)
    delayed = outputs(Delay(steps, initial=7.0), signals)
    np.testing.assert_array_equal(delayed[steps:], signals[: 10 - steps])
    np.testing.assert_array_equal(delayed[:steps], 7.0)


@pytest.mark.parametrize(("kind", "width"), [("clip", None), ("tanh", None), ("softclip", 0.05)])
def test_limits_hold_and_gradients_are_finite(kind, width):
    # Worlds have 1e30 in the place of infinite limits.
    for upper, lower in ((2.0, -3.0), (0.0, 0.0), (np.inf, -np.inf), (1e30, -1e30)):
        limits = EffortLimits(upper, lower, kind=kind, width=width)
        gradients = jax.jit(jax.grad(lambda a: a[0].apply(a[1], at()).sum()))
        for x in (-1e3, -3.0, 0.0, 2.0, 1e3):
            y = float(applied(limits, x, at()))
            assert lower - 1e-12 <= y <= upper + 1e-12
            assert y == x or upper < 1e29
            assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients((limits, x))))
        assert float(applied(limits, 1e-3, at())) == pytest.approx(1e-3 if upper else 0, rel=1e-6)
    tanh = EffortLimits(4.0, kind="tanh")
    assert float(applied(tanh, 2.0, at())) == pytest.approx(4 * np.tanh(0.5), rel=1e-12)


def test_the_torque_speed_curve():
    motor = DCMotorLimits(stall_torque=10.0, no_load_speed=5.0, peak_torque=8.0)
    state = at(np.array([-6.0, -2.5, 0.0, 0.5, 2.5, 5.0, 7.0]))
    forward, back = (np.asarray(applied(motor, np.full(7, x), state)) for x in (100.0, -100.0))
    np.testing.assert_allclose(forward, [8, 8, 8, 8, 5, 0, 0])
    np.testing.assert_allclose(back, [0, -5, -8, -8, -8, -8, -8])
    # If the stall torque equals the peak torque, the bound has its corner at zero velocity.
    motor = DCMotorLimits(10.0, 5.0)
    assert np.isfinite(jax.jit(jax.grad(lambda v: motor.apply(100.0, at()._replace(velocity=v))))(0.0))


def test_friction_has_its_closed_form():
    x = np.linspace(-2, 2, 41)
    stribeck = StribeckFriction(1.0, 1.5, 0.2, 0.3, 0.01)
    expected = -(1 + 0.5 * np.exp(-((x / 0.2) ** 2))) * np.tanh(x / 0.01) - 0.3 * x
    found = np.asarray(torque_of(stribeck, at(x)))
    np.testing.assert_allclose(found, expected)
    # Friction takes power out at every speed.
    assert np.all(found * x <= 0)
    gains, by_state = torque_gradients(stribeck, at())
    assert by_state.velocity < 0
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gains))


def test_soft_limits_push_and_never_pull():
    k, c, w = 1000.0, 20.0, 0.01
    limits = SoftLimits(-0.5, 1.0, k, c, w)

    def torque(q, v=0.0) -> float:
        return float(torque_of(limits, at(v, q)))

    assert torque(0.99, 3.0) == 0
    assert torque(-0.49, -3.0) == 0
    assert torque(1.1) == pytest.approx(-k * (0.1 - w / 2))
    assert torque(-0.6) == pytest.approx(k * (0.1 - w / 2))
    assert torque(1.1, 2.0) == pytest.approx(-k * (0.1 - w / 2) - c * 2)
    assert torque(1.1, -1e3) == 0
    # At a depth of w / 2, in the middle of the ramp, the push is a quarter of the linear spring's k w / 2.
    assert torque(1.0 + w / 2) == pytest.approx(-k * w / 8)
    for q, v in ((1.0, 0.0), (1.0, 1.0), (1.0 + w, 0.0), (-0.5, 0.0), (0.2, 0.0), (1.1, -1e3)):
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(torque_gradients(limits, at(v, q))))


# Worlds


def test_friction_before_sliding_holds_like_a_spring():
    """Below the friction a mass swings about the deflection of a spring, and its state is among the activations."""
    friction = DahlFriction(10.0, 0.01)
    world = World(slider(), actuators=[Actuator("rail0", force_path=[friction])], timestep=1e-3)
    motion = world.rollout(world.state(), jnp.full((600, 1), 4.0))
    q, v = np.asarray(motion.q)[:, 0], np.asarray(motion.v)
    states = Dahl(10.0, np.array([0.01])).along(v[:-1], np.full(len(v) - 1, 1e-3))
    np.testing.assert_allclose(np.asarray(motion.activation), states, atol=1e-9)
    # Without a reversal z = 1 - exp(-x / distance), so that the work of the force is used up at 1.13 of the distance.
    assert q[:200].max() == pytest.approx(1.13 * 0.01, rel=0.05)
    assert 10.0 * states[300:].mean() == pytest.approx(4.0, rel=0.1)
    sliding = world.rollout(world.state(), jnp.full((600, 1), 14.0))
    # Of the work of the force, friction takes 10 N times the way, less what it saves before it slides.
    x, speed = float(sliding.final.q[0]), float(sliding.final.v[0])
    assert MASS / 2 * speed**2 == pytest.approx((14.0 - 10.0) * x + 10.0 * 0.01, rel=0.02)


PATHS = {
    "control_path": (Delay(2), FirstOrderLag(0.02)),
    "force_path": (
        EffortLimits(18.0, kind="tanh"),
        FirstOrderLag(0.03),
        DCMotorLimits(9.0, 4.0, kind="softclip", width=0.1),
        StribeckFriction(0.1, 0.2, 0.05, 0.01),
        SoftLimits(-0.5, 0.5, 500.0, 5.0),
    ),
}
CONTROLS = np.sin(np.arange(25))[:, None]


def driven(gear: float = 2.0, integrator="semi_implicit_euler", law=None, **options) -> World:
    """A mass with a servo that has all blocks."""
    servo = Actuator("rail0", "position", kp=40.0, kv=4.0, gear=gear, **(PATHS | options))
    return World(slider(), actuators=[servo], timestep=DT, integrator=integrator, law=law)


@jax.jit
def final(world: World, controls) -> State:
    return world.rollout(world.state([0.1], [0.5]), controls).final


def by_hand(gear: float = 2.0) -> tuple[float, float]:
    """The end of the motion of `driven`, block by block."""
    q, v, memories = 0.1, 0.5, {}
    for u in CONTROLS[:, 0]:
        state = ActuatorState(gear * q, gear * v, DT)

        def through(name, signal, state=state):
            for k, block in enumerate(PATHS[name]):
                if not block.beyond_limits:
                    memory = memories.get((name, k), block.start())
                    signal, memories[name, k] = block.advance(signal, state, memory)
            return signal

        force = through("force_path", 40 * (through("control_path", u) - gear * q) - 4 * gear * v)
        tau = np.clip(gear * force, -20, 20)
        tau += gear * sum(block.torque(state) for block in PATHS["force_path"] if block.beyond_limits)
        v = v + DT * float(tau) / MASS
        q = q + DT * v
    return q, v


def test_signals_pass_the_blocks_in_their_order():
    world = driven()
    end = final(world, CONTROLS)
    np.testing.assert_allclose([end.q[0], end.v[0]], by_hand(), rtol=1e-10)
    # One number of the lags, and two of the delay, in the order of the ways.
    assert world.na == 4
    np.testing.assert_allclose(end.activation[:2], CONTROLS[-2:, 0], rtol=1e-12)
    # MuJoCo's Euler steps of a joint without damping are the same.
    as_mujoco = final(driven(integrator="euler", law=MujocoLaw()), CONTROLS)
    np.testing.assert_allclose([as_mujoco.q[0], as_mujoco.v[0]], [end.q[0], end.v[0]], rtol=1e-9)


def test_gradients_reach_every_number():
    world = driven(integrator="implicit_velocity")

    def end(world, controls):
        return final(world, controls).q.sum()

    gradient = jax.jit(jax.grad(end, (0, 1)))(world, CONTROLS)
    actuators = gradient[0].parts.actuators
    named = jax.tree_util.tree_leaves_with_path((actuators.control_path, actuators.force_path))
    assert len(named) == 21
    assert all(np.isfinite(g).all() for _, g in named)
    assert all(float(jnp.abs(x).sum()) > 0 for x in (actuators.gain, actuators.force_path[1].block.time_constant))
    # The first controls have passed the delay, the last have not.
    assert np.count_nonzero(gradient[1]) == 23
    where, h = (lambda w: w.parts.actuators.force_path[2].block.stall_torque), 1e-5
    up, down = (end(eqx.tree_at(where, world, where(world) + s), CONTROLS) for s in (h, -h))
    np.testing.assert_allclose(where(gradient[0])[0], float(up - down) / (2 * h), rtol=1e-4)


def test_equal_blocks_are_one_and_batches_agree():
    """Actuators with blocks in other orders, or without, in one world are those of worlds of their own."""
    paths = [(FirstOrderLag(0.02), EffortLimits(5.0)), (), (EffortLimits(3.0), FirstOrderLag(0.04))]
    servos = [
        Actuator(f"rail{k}", "position", kp=30.0 + k, force_path=path, control_path=(Delay(1),) * (k > 0))
        for k, path in enumerate(paths)
    ]
    world = World(slider(3), actuators=servos, timestep=DT)
    numbers = [x.numbers for x in world.parts.actuators.force_path]
    assert numbers == [(0,), (2,), (0,), (2,)]
    assert world.parts.actuators.control_path[0].numbers == (1, 2)
    state = world.state(0.1 * np.ones(3))
    motion = world.rollout(state, 0.3 * np.ones((10, 3)))
    before = motion.activation[3]
    again = world.step(State(motion.q[3], motion.v[3], before), 0.3 * np.ones(3))
    np.testing.assert_allclose(again.activation, motion.activation[4], rtol=1e-12)
    taus = np.linspace(0.01, 0.08, 4)
    lag = lambda w: w.parts.actuators.force_path[0].block.time_constant  # noqa: E731
    many = eqx.tree_at(lag, world, taus[:, None])
    batch = many.rollout(state, 0.3 * np.ones((10, 3))).final
    for k, tau in enumerate(taus):
        alone = eqx.tree_at(lag, world, np.array([tau])).rollout(state, 0.3 * np.ones((10, 3))).final
        np.testing.assert_allclose(batch.q[k], alone.q, rtol=1e-10)


def test_friction_is_beyond_the_limits_of_forces_and_joints():
    friction = StribeckFriction(3.0, 3.0, 0.1)
    motor = Actuator("rail0", force_range=(-30, 30), force_path=[friction])
    for law in (None, MujocoLaw()):
        world = World(slider(), actuators=[motor], sensors=[jaxdyn.Sensor("actuatorfrc", actuator="rail0")], law=law)
        state = world.state(v=[1.0])
        # The joint bears 20 N of the motor.
        np.testing.assert_allclose(world.accelerations(state, [40.0]), [(20 - 3) / MASS], rtol=1e-9)
        np.testing.assert_allclose(world.sensors(state, [40.0])["actuatorfrc_rail0"], [30], rtol=1e-12)


@pytest.mark.parametrize("law", [None, MujocoLaw()])
def test_an_actuator_of_several_joints_has_the_power_of_both(law):
    """A differential: its length is the sum of gears times coordinates, and its force acts on each by its gear."""
    gear, q, v = np.array([0.5, -2.0]), np.array([0.3, 9.0, 0.1]), np.array([1.0, 9.0, -0.2])
    servo = Actuator(["rail0", "rail2"], "position", kp=3.0, kv=0.7, gear=gear, name="both")
    sensors = [jaxdyn.Sensor("actuatorvel", actuator="both")]
    world = World(slider(3), actuators=[Actuator("rail1"), servo], sensors=sensors, law=law)
    force = 3 * (0.4 - gear @ q[[0, 2]]) - 0.7 * gear @ v[[0, 2]]
    a = world.accelerations(world.state(q, v), [5.0, 0.4])
    np.testing.assert_allclose(a, np.array([0.5 * force, 5.0, -2 * force]) / MASS, rtol=1e-10)
    np.testing.assert_allclose(world.sensors(world.state(q, v))["actuatorvel_both"], [gear @ v[[0, 2]]], rtol=1e-12)
    with pytest.raises(ShapeError, match=r"gear of 1 numbers, but its joints 'rail0' and 'rail1' have 2"):
        World(slider(2), actuators=[Actuator(["rail0", "rail1"])])


def test_the_damping_behind_blocks_is_taken_at_the_end_of_a_step():
    """A servo whose damping would be unstable is stable, and the part of it that a lag lets through counts."""
    share = -np.expm1(-DT / 0.05)
    servo = Actuator("rail0", "velocity", kv=900.0, force_path=[FirstOrderLag(0.05)])
    model = eqx.tree_at(lambda m: m.effort_limit, slider(), jnp.array([np.inf]))
    world = World(model, actuators=[servo], timestep=DT)
    end = world.step(world.state(v=[1.0]), [0.0])
    damped = dataclasses.replace(model, damping=model.damping + 900 * share)
    expected = jaxdyn.step(damped, State(jnp.zeros(1), jnp.ones(1)), jnp.zeros(1), DT)
    np.testing.assert_allclose(end.v, expected.v, rtol=1e-12)


def test_stages_of_a_step_hold_what_blocks_remember():
    world = driven(integrator="rk4", law=MujocoLaw())
    state = world.state([0.1], [0.5])
    end = world.step(state, [0.7])
    np.testing.assert_allclose(end.activation[:3], [0, 0.7, 0], atol=1e-15)
    first = driven(integrator="euler", law=MujocoLaw()).step(state, [0.7])
    np.testing.assert_allclose(end.activation, first.activation, rtol=1e-9)
    with pytest.raises(ModelError, match="use step"):
        world.rate(0.0, state, [0.7])


def test_optimal_control_has_the_derivatives_through_blocks():
    world = driven(integrator="implicit_velocity")
    dynamics = WorldDynamics(world)
    x, u, h = dynamics.join(world.state([0.1], [0.5], [0.2, 0.4, 0.3, 5.0])), np.array([0.7]), 1e-6
    step = jax.jit(lambda x, u: dynamics.step(x, u, 0))
    by_x, by_u = jax.jit(lambda x, u: dynamics.linearize(x, u, 0, dynamics.step(x, u, 0)))(x, u)
    for k, unit in enumerate(np.eye(len(x))):
        expected = (step(x + h * unit, u) - step(x - h * unit, u)) / (2 * h)
        np.testing.assert_allclose(by_x[:, k], expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(by_u[:, 0], (step(x, u + h) - step(x, u - h)) / (2 * h), rtol=1e-6, atol=1e-8)


def test_single_precision_follows_the_world():
    single = driven().astype(jnp.float32)
    end = single.rollout(single.state([0.1], [0.5]), CONTROLS).final
    assert end.q.dtype == end.activation.dtype == jnp.float32
    np.testing.assert_allclose([end.q[0], end.v[0]], by_hand(), rtol=1e-4)


FILE = f"""<mujoco><option timestep="{DT}" gravity="0 0 0"/><worldbody><body>
    <joint name="rail" type="slide" axis="1 0 0" actuatorfrcrange="-20 20"/><geom size="0.1" mass="{MASS}"/></body>
  </worldbody><actuator>
    <position name="servo" joint="rail" kp="40" kv="4" gear="2"/><motor name="filtered" joint="rail" gear="0.5"/>
  </actuator><keyframe><key name="home" qpos="0.2"/></keyframe></mujoco>"""


def test_actuators_of_a_file_have_motors_of_users():
    pytest.importorskip("mujoco")
    file = jaxdyn.load_world(FILE)
    world = file.with_actuator_paths({"servo": PATHS["control_path"]}, {"servo": PATHS["force_path"]})
    end = final(world, np.pad(CONTROLS, ((0, 0), (0, 1))))
    np.testing.assert_allclose([end.q[0], end.v[0]], by_hand(), rtol=1e-9)
    assert world.state(keyframe="home").activation.shape == (4,)
    for a, b in zip(*(jax.tree.leaves(w) for w in (file, world.with_actuator_paths())), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(UnknownNameError, match="did you mean 'servo'"):
        file.with_actuator_paths(force={"serve": [Delay(1)]})
    with pytest.raises(ModelError, match="with_actuator_paths"):
        jaxdyn.to_mjcf(world, template=FILE)


def test_worlds_with_blocks_are_saved(tmp_path):
    world = driven()
    jaxdyn.save_world(tmp_path / "world.npz", world)
    end, again = (final(w, CONTROLS) for w in (world, jaxdyn.load_world(tmp_path / "world.npz")))
    np.testing.assert_array_equal(end.q, again.q)
    with pytest.raises(ModelError, match=r"rail0.*paths"):
        jaxdyn.to_mjcf(slider(), actuators=[Actuator("rail0", force_path=[Delay(1)])])


def test_a_lag_in_front_of_a_servo_is_that_of_mujoco():
    mujoco = pytest.importorskip("mujoco")
    theirs = mujoco.MjModel.from_xml_string(
        FILE.replace('<position name="servo" joint="rail" kp="40" kv="4" gear="2"/>', "").replace(
            '<motor name="filtered" joint="rail" gear="0.5"/>',
            """<general joint="rail" dyntype="filterexact" dynprm="0.03" gainprm="300" biastype="affine"
            biasprm="0 -300 -20" forcelimited="true" forcerange="-9 12" actearly="true"/>""",
        )
    )
    data = mujoco.MjData(theirs)
    commands = np.where(np.arange(100) % 40 < 20, 0.3, -0.2)[:, None]
    q = []
    for u in commands:
        data.ctrl[:] = u
        mujoco.mj_step(theirs, data)
        q.append(data.qpos.copy())
    servo = {"kp": 300.0, "kv": 20.0, "force_range": (-9, 12), "control_path": [FirstOrderLag(0.03)]}
    servos = [Actuator("rail0", "position", **servo)]
    world = World(slider(), actuators=servos, timestep=DT, law=MujocoLaw(), integrator="euler")
    motion = world.rollout(world.state(), commands)
    np.testing.assert_allclose(motion.q[1:], q, atol=1e-12)


class Slew(AbstractDriveBlock):
    """A user's block: a signal that changes by at most a rate."""

    rate: float

    def start(self):
        return (0.0,)

    def advance(self, signal, at, memory):
        step = self.rate * at.dt
        out = memory[0] + jnp.clip(signal - memory[0], -step, step)
        return out, (out,)


def test_blocks_of_users_stand_among_the_others():
    motor = Actuator("rail0", force_path=[Slew(100.0), EffortLimits(2.5)])
    world = World(slider(), actuators=[motor], timestep=DT, integrator="semi_implicit_euler")
    motion = world.rollout(world.state(), 5 * np.ones((4, 1)))
    np.testing.assert_allclose(np.diff(motion.v[:, 0]), DT * np.array([1, 2, 2.5, 2.5]) / MASS, rtol=1e-10)
    np.testing.assert_allclose(motion.activation[:, 0], np.arange(5), rtol=1e-12)


WRONG = {
    "time constant is -1": lambda: FirstOrderLag(-1.0),
    "steps of a delay is 1.5": lambda: Delay(1.5),
    "steps of a delay is -1": lambda: Delay(-1),
    "kind of saturation is 'hard'": lambda: EffortLimits(1.0, kind="hard"),
    "a width belongs": lambda: EffortLimits(1.0, width=1.0),
    "upper - lower is": lambda: EffortLimits(1.0, 2.0),
    "lower limit of a tanh": lambda: EffortLimits(2.0, 1.0, kind="tanh"),
    "no-load speed is": lambda: DCMotorLimits(1.0, 0.0),
    "presliding distance is": lambda: DahlFriction(1.0, 0.0),
    "Stribeck velocity is": lambda: StribeckFriction(1.0, 1.0, 0.0),
    "the width is": lambda: SoftLimits(0.0, 1.0, 1.0, 1.0, 0.0),
    "actuator 'rail0': force_path has 'int'": lambda: driven(force_path=[3]),
    "'rail0': control_path has 'StribeckFriction', .* force_path": lambda: driven(
        control_path=[StribeckFriction(1.0, 1.0, 1.0)]
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_values_that_mean_nothing_are_named(message):
    with pytest.raises(ModelError, match=message):
        WRONG[message]()
