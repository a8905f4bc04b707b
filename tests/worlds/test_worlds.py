"""Worlds move as in MuJoCo: accelerations, steps, and derivatives; what they do not have is refused."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import RobotFileError, ShapeError, SolverOptions, State, UnknownNameError, load_world, native
from jaxdyn.io import RobotFileWarning
from jaxdyn.worlds import accelerations_step_and_sensors, world_stages
from tests.worlds.world_oracle import (
    MIXED,
    SMALL,
    accelerations_as_mujoco,
    as_mujoco,
    compiled,
    random_states,
    state_of,
    with_sensors,
)
from tests.worlds.world_oracle import solved_to_the_end as tight

mujoco = pytest.importorskip("mujoco")
GYMNASIUM = ("ant", "half_cheetah", "hopper", "humanoid", "humanoidstandup", "inverted_double_pendulum")
GYMNASIUM += ("inverted_pendulum", "pusher_v5", "reacher", "swimmer", "walker2d_v5")


def relative(found, expected) -> float:
    return float((np.abs(found - expected).max(axis=-1) / np.maximum(1, np.abs(expected).max(axis=-1))).max())


def check_against_mujoco(m, count: int = 12, tolerance: float = 1e-8) -> None:
    """Accelerations and one step at random states."""
    world = load_world(m)
    qpos, qvel, act, control, qacc, _, *after = random_states(m, count)
    state = state_of(world, qpos, qvel, act)
    a = world.accelerations(state, control)
    assert relative(accelerations_as_mujoco(world, state, a), qacc) < tolerance
    assert world.report(state, control).converged.all()
    end = world.step(state, control)
    found = end.q, as_mujoco(world, end.q, end.v), end.activation
    for x, y in zip(found, after, strict=True):
        assert np.abs(np.asarray(x) - y).max(initial=0) < tolerance * max(1, np.abs(y).max(initial=0))


@functools.cache
def small(cone: str = "elliptic"):
    m = compiled(SMALL, cone)
    return m, load_world(m), random_states(m, 8)


@pytest.mark.parametrize("cone", [pytest.param("pyramidal", marks=pytest.mark.slow), "elliptic"])
def test_accelerations_are_mujocos(cone):
    _, world, (qpos, qvel, act, control, qacc, *_) = small(cone)
    state = state_of(world, qpos, qvel, act)
    found = accelerations_as_mujoco(world, state, world.accelerations(state, control))
    assert relative(found, qacc) < 1e-8


@pytest.mark.slow
def test_a_world_without_native_code_moves_alike():
    """XLA has the matrices of the constraints as a whole, and the check solves them once for both answers."""
    _, world, (qpos, qvel, act, control, *_) = small()
    state = state_of(world, qpos, qvel, act)
    with native.disabled():
        a, after, _ = quick(accelerations_step_and_sensors)(world, state, control)
    assert relative(np.asarray(a), np.asarray(world.accelerations(state, control))) < 1e-11
    assert relative(np.asarray(after.v), np.asarray(world.step(state, control).v)) < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast", "RK4"])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_a_world_with_every_kind_of_row(cone, integrator):
    check_against_mujoco(compiled(MIXED, cone, integrator), count=24)


@pytest.mark.slow
@pytest.mark.parametrize("cone", [0, 1])
@pytest.mark.parametrize("name", GYMNASIUM)
def test_scenes_of_gymnasium(name, cone):
    folder = pytest.importorskip("gymnasium").__path__[0]
    m = mujoco.MjModel.from_xml_path(f"{folder}/envs/mujoco/assets/{name}.xml")
    m.opt.cone = cone
    check_against_mujoco(tight(m))


TREES = """<default><geom contype="0" conaffinity="0"/></default><worldbody>
<body><joint name="j"/><joint name="k" axis="1 0 0" actuatorfrcrange="-.4 .3"/><geom size=".1" pos=".2 .1 0"/></body>
<body pos="2 0 0"><joint name="t"/><joint name="u" axis="1 0 0"/><geom size=".1" pos=".2 .1 0"/></body>
<body pos="4 0 0"><freejoint name="massless"/><body euler="10 20 30" pos="0 .1 0">
 <inertial pos="0 .1 0" mass=".4" diaginertia="4e-4 9e-4 1e-3"/></body></body>
<body pos="6 0 0"><freejoint name="fixed"/><geom type="box" size=".1 .06 .02" mass=".5"/>
 <body pos="0 0 .05"><body pos=".05 0 0"><geom size=".02" mass=".1"/></body></body></body>
<body pos="8 0 0"><freejoint name="geared"/><geom type="box" size=".1 .06 .02"/></body>
</worldbody><tendon><fixed name="t" actuatorfrcrange="-.3 .4"><joint joint="t" coef="1"/><joint joint="u" coef="-.5"/>
</fixed></tendon><actuator><motor joint="k"/><damper joint="k" kv="10" ctrlrange="0 1"/><velocity joint="k" kv="2"/>
<position joint="j" kp="3" kv="1"/><motor tendon="t"/><velocity tendon="t" kv="3" forcerange="-2 2"/>
<position tendon="t" kp="9" kv="2"/><motor joint="geared" gear="2 0 1 0 0 1" armature="1" damping=".2"/></actuator>"""
"""Trees in which forces are at the limits of joints or tendons, of bodies that are fixed to each other, and with the
armature of an actuator on a free joint."""


@functools.cache
def stepped_trees(integrator: str):
    """Differences of velocities after a step, relatively, `[states, nv]`, at speeds from rest to fast."""
    text = f"<mujoco><option integrator='{integrator}' timestep='.004'/>{TREES}</mujoco>"
    m, rng = tight(mujoco.MjModel.from_xml_string(text)), np.random.default_rng(0)
    starts = [(0.3 * rng.normal(size=m.nv), speed * rng.normal(size=m.nv), rng.normal(size=m.nu)) for speed in SPEEDS]
    return m, step_errors(m, starts)[0]


SPEEDS = 0.0, 0.1, 1.0, 3.0, 10.0


def step_errors(m, starts):
    """Relative errors of velocities after a step, `[n, nv]`, and errors of configurations, from displacements,
    velocities and controls."""
    world, d, states, expected = load_world(m), mujoco.MjData(m), [], []
    for displacement, velocity, control in starts:
        mujoco.mj_resetData(m, d)
        mujoco.mj_integratePos(m, d.qpos, displacement, 1.0)
        d.qvel[:], d.ctrl[:] = velocity, control
        states.append((d.qpos.copy(), velocity, control))
        mujoco.mj_step(m, d)
        expected.append((d.qpos.copy(), d.qvel.copy()))
    (qpos, qvel, control), (q, v) = (map(np.array, zip(*x, strict=True)) for x in (states, expected))
    state = state_of(world, qpos, qvel, np.zeros((len(q), 0)))
    _, after, _ = quick(accelerations_step_and_sensors)(world, state, control)
    found = np.array(after.q)
    for start in world.model.topology.quaternion_starts:
        own = found[:, start : start + 4]
        own *= np.sign((own * q[:, start : start + 4]).sum(axis=1, keepdims=True))
    error = np.abs(as_mujoco(world, after.q, after.v) - v) / np.maximum(1, np.abs(v).max(axis=1, keepdims=True))
    return error, np.abs(found - q)


def quick(function):
    """Return a function that compiles quickly."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


@pytest.mark.parametrize("integrator", ["implicitfast", pytest.param("implicit", marks=pytest.mark.slow)])
@pytest.mark.parametrize("joint", ["k", "t", "u", "massless", "fixed", "geared"])
def test_steps_take_the_slopes_of_forces_as_mujoco(joint, integrator):
    """Actuators that a joint or a tendon limits have none; bodies that are fixed to each other are one free body;
    actuators' armature counts on all axes of a free joint."""
    m, errors = stepped_trees(integrator)
    assert errors[:, m.dof_jntid == m.joint(joint).id].max() < 1e-11


def test_steps_of_runge_kutta_turn_by_more_than_half_a_turn():
    m = mujoco.MjModel.from_xml_string("""<mujoco><option integrator="RK4" gravity="0 0 0" timestep=".01">
    <flag contact="disable"/></option><worldbody>
    <body><freejoint/><geom type="box" size=".1 .15 .25"/></body>
    <body pos="2 0 0"><joint type="ball"/><geom type="box" size=".1 .15 .25"/></body></worldbody></mujoco>""")
    axis = np.array([0.6, 0.64, 0.48])
    starts = [
        (np.zeros(9), np.r_[1, 2, 3, w * axis, -w * axis], np.zeros(0)) for w in (10, 300, 320, 400, 620, 640, 1000)
    ]
    v, q = step_errors(m, starts)
    assert v.max() < 1e-11
    assert q.max() < 1e-9


RESIDUALS = """<mujoco><option gravity="0 0 0"/>
<default><equality solref="-100 -1" solimp=".9 .9 .001"/><geom solref="-100 -1" solimp=".9 .9 .001" margin="1"/>
<joint solreflimit="-100 -1" solimplimit=".9 .9 .001"/>
<tendon solreflimit="-100 -1" solimplimit=".9 .9 .001"/></default>
<worldbody><geom type="plane" size="3 3 1" euler="5 3 0"/><site name="w" pos=".1 .2 .3"/>
<body name="a" pos="0 0 .3"><joint name="a" axis="0 1 0" range="20 30"/><geom type="capsule" size=".03 .1"/>
 <site name="sa" pos=".1 0 .1"/>
 <body name="b" pos=".3 0 0"><joint name="b" type="ball" range="0 5"/><geom size=".05" pos=".1 0 0" condim="1"/>
  <site name="sb" pos=".1 .1 .1" euler="10 20 30"/></body>
 <body name="c" pos=".3 0 .2"><joint name="c" axis="0 1 .5"/><geom size=".05" pos=".1 0 0" condim="6"/>
  <site name="sc" pos=".1 .2 .1" euler="10 20 -30"/></body></body>
<body name="f" pos=".5 .5 .3"><freejoint/><geom type="capsule" size=".05 .1"/><site name="sf" pos="0 0 .1"/></body>
</worldbody><tendon><spatial name="t" range="0 .1"><site site="w"/><site site="sc"/><site site="sf"/></spatial>
<fixed name="u"><joint joint="a" coef="1"/><joint joint="c" coef="-2"/></fixed></tendon>
<equality><connect body1="b" body2="c" anchor=".1 0 .1"/><connect site1="sf" site2="sb"/><connect body1="c"
 anchor=".1 .1 .1"/><weld body1="a" body2="c" anchor=".1 .2 .3" torquescale=".3"/><weld site1="sb" site2="sc"/><weld
 body1="f" body2="b"/><joint joint1="a" joint2="c" polycoef=".1 .5 .2 .1 -.3"/>
<tendon tendon1="t" tendon2="u" polycoef="0 1 .3 0 0"/></equality></mujoco>"""
"""Every kind of row with a position, as springs without dampers at rest, whose stiffness does not depend on it."""


def test_rows_are_the_derivatives_of_their_residuals():
    """The reference acceleration of a row at rest is its residual times a constant, which its own row has, too; the
    tangential rows of contacts have no residual."""
    world, rng = load_world(RESIDUALS), np.random.default_rng(2)
    nv, step = world.model.nv, 1e-6
    moved = world.model.integrate(world.start, 0.2 * rng.normal(size=nv))
    ends = step * np.concatenate([np.zeros((1, nv)), np.eye(nv), -np.eye(nv)])
    q = world.model.integrate(jnp.broadcast_to(moved, (2 * nv + 1, len(moved))), ends)
    stages = quick(world_stages)(world, world.state(q), jnp.zeros((2 * nv + 1, 0)))
    slopes = np.asarray(stages.aref[1 : nv + 1] - stages.aref[nv + 1 :]).T / (2 * step)
    J, kinds = np.asarray(stages.J[0]), world.parts.constraints.kinds
    acts = np.asarray(stages.D[0] > 0)
    one_sided = np.arange(kinds.scalars)[kinds.equalities :]
    normals = [start + np.arange(n) for start, (_, n) in zip(kinds.cone_starts, kinds.cones, strict=True)]
    rows = np.concatenate([np.arange(kinds.equalities), one_sided, *normals])
    rows = rows[acts[rows]]
    assert (kinds.equalities, len(rows)) == (29, 42)
    stiffness = 100 / 0.9
    np.testing.assert_allclose(slopes[rows], -stiffness * J[rows], atol=1e-6 * stiffness)


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["Euler", "implicit"])
def test_armature_of_free_joints(integrator):
    """It resists accelerations along the axes of the world."""
    m = mujoco.MjModel.from_xml_string(f"""
    <mujoco><option integrator="{integrator}"/><worldbody><geom type="plane" size="3 3 1"/>
    <body pos="0 0 .2"><joint name="free" type="free" armature=".7"/><geom type="capsule" size=".05 .1" pos=".1 0 0"/>
    <body pos=".2 0 0"><joint axis="0 1 0" armature=".1"/><geom size=".1"/></body></body></worldbody>
    <actuator><motor joint="free" gear="1 2 3 1 0 1"/></actuator></mujoco>""")
    check_against_mujoco(tight(m))


@pytest.mark.slow
def test_armature_of_a_body_that_carries_nothing():
    """`implicitfast` takes its gyroscopic forces implicitly."""
    m = mujoco.MjModel.from_xml_string("""
    <mujoco><option integrator="implicitfast" timestep=".01"/><worldbody>
    <body pos="0 0 .2"><joint name="free" type="free" armature=".7" damping=".1"/>
    <geom type="capsule" size=".05 .1" pos=".1 0 0"/></body></worldbody>
    <actuator><motor joint="free" gear="1 2 3 1 0 1"/></actuator></mujoco>""")
    check_against_mujoco(tight(m))


@pytest.mark.slow
def test_a_fluid_in_the_integrator_implicit():
    """Its derivatives are not symmetric; also around a free body that carries nothing."""
    shaped = 'fluidshape="ellipsoid" contype="0"'
    m = mujoco.MjModel.from_xml_string(
        f"""
    <mujoco><option timestep=".01" integrator="implicit" density="900" viscosity=".3" wind=".3 0 .1"/><worldbody>
    <body><freejoint/><geom type="box" size=".1 .2 .05" contype="0"/></body>
    <body pos="0 0 1"><freejoint/><geom type="ellipsoid" size=".1 .2 .05" {shaped}/>
    <body pos=".2 0 0"><joint axis="0 1 0" damping=".1"/><geom type="capsule" size=".03 .1" {shaped}/></body></body>
    </worldbody></mujoco>""".replace('contype="0"', 'contype="0" conaffinity="0"')
    )
    check_against_mujoco(tight(m))


@pytest.mark.slow
def test_sensors_read_what_mujocos_read():
    m = compiled(with_sensors(MIXED), "elliptic")
    world = load_world(m)
    qpos, qvel, act, control, *_ = random_states(m, 12)
    d, expected = mujoco.MjData(m), []
    for d.qpos[:], d.qvel[:], d.act[:], d.ctrl[:] in zip(qpos, qvel, act, control, strict=True):
        mujoco.mj_forward(m, d)
        expected.append(d.sensordata.copy())
    values = world.sensors(state_of(world, qpos, qvel, act), control)
    assert len(values) == m.nsensor
    found = np.concatenate([values[name] for name in world.parts.sensors.names], axis=-1)
    size = np.abs(expected).max(axis=0)
    assert (size > 0).sum() > 20
    assert (np.abs(found - expected).max(axis=0) < 1e-7 * np.maximum(1, size)).all()


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast", "RK4"])
def test_rollouts_stay_together(integrator):
    m = compiled(SMALL, "elliptic", integrator)
    world, random, steps = load_world(m), np.random.default_rng(0), 500
    controls, d = random.normal(size=(steps, m.nu)), mujoco.MjData(m)
    d.qvel[:] = 0.3 * random.normal(size=m.nv)
    states = world.rollout(state_of(world, d.qpos, d.qvel, d.act), controls)
    expected = []
    for control in controls:
        d.ctrl[:] = control
        mujoco.mj_step(m, d)
        expected.append(d.qpos.copy())
    assert states.q.shape == (steps + 1, m.nq)
    assert np.abs(np.asarray(states.q[1:]) - np.array(expected)).max() < 1e-7
    assert np.isclose(states.end.time, d.time)


@pytest.mark.slow
def test_derivatives_are_those_of_differences():
    """Forward and reverse mode, and second derivatives, of accelerations and of a step, by the state, the control, the
    masses and the numbers of the contacts."""
    m, world, (qpos, qvel, act, control, *_) = small()
    random, where = np.random.default_rng(0), 1
    sizes = m.nv, m.nv, m.nu, m.na, 1, 1
    direction = jnp.asarray(random.normal(size=sum(sizes)))
    weights = jnp.asarray(random.normal(size=(2, m.nv)))
    state = state_of(world, qpos[where], qvel[where], act[where])

    def weighted(x):
        dq, dv, du, da, stiffer, heavier = jnp.split(x, np.cumsum(sizes)[:-1])
        q = world.model.integrate(state.q, dq)
        at = State(q, state.v + dv, state.activation + da, state.time)
        pairs = jax.tree.map(lambda a: a * (1 + 0.1 * stiffer), world.parts.constraints.contacts.pairs)
        changed = eqx.tree_at(lambda s: s.parts.constraints.contacts.pairs, world, pairs)
        model = jaxdyn.scaled(world.model, mass=1 + 0.1 * heavier[0])
        changed = eqx.tree_at(lambda s: s.model, changed, model)
        u = control[where] + du
        return weights[0] @ changed.accelerations(at, u) + 100 * weights[1] @ changed.step(at, u).v

    x, step = jnp.zeros(len(direction)), 1e-6
    value, gradient = jax.jit(weighted), jax.jit(jax.grad(weighted))
    forward = jax.jit(lambda x: jax.jvp(weighted, (x,), (direction,))[1])(x)
    differences = (value(x + step * direction) - value(x - step * direction)) / (2 * step)
    assert np.isclose(forward, gradient(x) @ direction, rtol=1e-10)
    assert np.isclose(forward, differences, rtol=1e-5)
    second = jax.jit(lambda x: jax.jvp(jax.grad(weighted), (x,), (direction,))[1])(x)
    differences = (gradient(x + step * direction) - gradient(x - step * direction)) / (2 * step)
    assert np.abs(second - differences).max() < 1e-5 * np.abs(second).max()


def test_names_of_objects_without_one_are_unique():
    """Another object may have the name that is made for one."""
    world = load_world("""<mujoco><worldbody><body><joint name="j"/><geom size=".1" pos=".2 0 0"/></body></worldbody>
    <tendon><fixed name="tendon_1"><joint joint="j" coef="1"/></fixed>
    <fixed><joint joint="j" coef="1"/></fixed></tendon>
    <actuator><motor name="actuator_1" joint="j"/><motor joint="j"/></actuator>
    <sensor><jointpos name="sensor_1" joint="j"/><jointvel joint="j"/><jointvel name="sensor_1_" joint="j"/></sensor>
    <keyframe><key name="key_1" qpos=".1"/><key qpos=".2"/></keyframe></mujoco>""")
    assert list(world.sensors(world.state([0.3], [0.7]))) == ["sensor_1", "sensor_1_", "sensor_1__"]
    assert {name: float(key.q[0]) for name, key in world.keyframes.items()} == {"key_1": 0.1, "key_1_": 0.2}
    assert world.state(keyframe="key_1").q[0] == 0.1
    assert world.actuator_names == ("actuator_1", "actuator_1_")
    assert world.parts.tendons.names == ("tendon_1", "tendon_1_")


def test_keyframes_and_errors():
    _, world, _ = small()
    lifted = world.state(keyframe="lifted")
    np.testing.assert_allclose(lifted.q, [0, 0, 1, 1, 0, 0, 0, 0.1, 0.02])
    np.testing.assert_allclose(lifted.activation, [0.3])
    assert (world.nu, world.na, world.timestep) == (2, 1, 0.002)
    with pytest.raises(UnknownNameError, match="lifted"):
        world.state(keyframe="lift")
    with pytest.raises(ShapeError, match="control"):
        world.accelerations(lifted, np.zeros(3))
    with pytest.raises(jaxdyn.ModelError, match="iterations"):
        SolverOptions(iterations=0)


COUPLED = """<mujoco><option cone="{cone}" gravity="0 0 -3" integrator="{integrator}"><flag sleep="enable"/></option>
<worldbody><geom type="plane" size="3 3 1"/><site name="w" pos=".1 .2 .6"/><site name="v" pos="-.3 .2 .6"/>
<body name="f" pos="0 0 .12"><joint name="free" type="free" frictionloss=".7"/>
 <geom type="capsule" size=".05 .1" pos=".1 0 0" euler="30 0 0" margin=".01" gap=".1"/><site name="s" pos="0 .1 .1"/>
 <body name="g" pos=".2 0 0"><joint name="h" axis="0 1 0" frictionloss=".1" damping=".3"/><geom size=".1"/>
  <site name="t" pos=".1 0 .1"/><body name="k" pos=".2 0 0"><joint name="k" axis="0 1 1"/><geom size=".06"/>
   <site name="u" pos=".1 0 .1"/></body></body>
 <body name="l" pos="-.2 0 0"><joint name="l" axis="0 1 0"/><geom size=".1"/></body></body>
<body name="d" pos="1 0 .1"><joint type="free" frictionloss=".2"/><geom type="capsule" size=".05 .1"/></body>
</worldbody><tendon><spatial armature="1.3" stiffness="3" damping=".2"><site site="w"/><site site="s"/>
 <pulley divisor="2"/><site site="s"/><site site="v"/></spatial>
<spatial name="second"><site site="w"/><site site="u"/></spatial>
<fixed name="across" armature=".2"><joint joint="h" coef="1"/><joint joint="l" coef="-2"/></fixed></tendon>
<actuator><motor joint="free" gear="1 2 3 1 0 1"/><adhesion body="f" ctrlrange="0 1" gain="5"/>
<adhesion body="world" ctrlrange="0 1" gain="3"/><adhesion name="g" body="g" ctrlrange="0 1" gain="2"/>
<motor tendon="second" armature=".7"/></actuator>
<sensor><force site="t"/><torque site="t"/><force site="s"/><e_kinetic/><accelerometer site="u"/>
<actuatorvel actuator="g"/><actuatorfrc actuator="g"/></sensor></mujoco>"""
"""Friction of free joints, adhesion, and inertia along tendons."""


@pytest.mark.parametrize("cone", ["pyramidal", pytest.param("elliptic", marks=pytest.mark.slow)])
def test_adhesion_inertia_along_tendons_and_friction_of_free_joints(cone):
    m = compiled(COUPLED, cone, "implicitfast")
    with pytest.warns(RobotFileWarning) as heard:
        world = load_world(m)
    messages = [str(x.message) for x in heard]
    assert sum("'sleep'" in x and "bodies 'd'" in x for x in messages) == 1
    assert sum("inertia along tendons" in x and "tendons 'across'" in x for x in messages) == 1
    qpos, qvel, act, control, qacc, _, *after = random_states(m, 12)
    state = state_of(world, qpos, qvel, act)
    a, end, sensors = accelerations_step_and_sensors(world, state, jnp.asarray(control))
    assert relative(accelerations_as_mujoco(world, state, a), qacc) < 1e-8
    for x, y in zip((end.q, as_mujoco(world, end.q, end.v)), after, strict=False):
        assert np.abs(np.asarray(x) - y).max() < 1e-8 * max(1, np.abs(y).max())
    d, active, gaps = mujoco.MjData(m), set(), set()
    for i in range(len(qpos)):
        d.qpos, d.qvel, d.ctrl = qpos[i], qvel[i], control[i]
        mujoco.mj_forward(m, d)
        active.add(d.ncon)
        gaps |= set(d.contact.exclude.tolist())
        np.testing.assert_allclose(sensors[i], d.sensordata, atol=1e-6 * max(1, np.abs(d.sensordata).max()))
    assert len(active) > 1
    assert gaps == {0, 1}


BODY = '<worldbody><body><joint {0}/><geom size=".1"/></body></worldbody>'
REFUSED = {
    "asleep: bodies 'b'": '<option><flag sleep="enable"/></option>'
    + BODY.format('type="free"').replace("<body>", '<body name="b" sleep="init">'),
    "multiccd": '<option><flag multiccd="disable"/></option><worldbody><geom type="cylinder" size=".1 .1"/>'
    '<body><joint/><geom type="capsule" size=".1 .1"/></body></worldbody>',
    "hfield and mesh": '<asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/>'
    '<hfield name="h" nrow="2" ncol="2" size="1 1 1 1" elevation="0 0 0 0"/></asset><worldbody>'
    '<geom type="hfield" hfield="h"/><body><joint/><geom type="mesh" mesh="m"/></body></worldbody>',
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_built_is_refused_by_name(what):
    with pytest.raises(RobotFileError, match=what):
        load_world(f"<mujoco>{REFUSED[what].replace('{0}', '')}</mujoco>")
