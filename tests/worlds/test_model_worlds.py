"""Worlds that are made of models and URDF files: beside MuJoCo, beside `jaxdyn.step`, and derivatives."""

import dataclasses
import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import Actuator, ContactLaw, ContactShape, ModelError, MujocoLaw, Sensor, State, World
from jaxdyn.sysid import Parametrization, Positive
from tests.robots import robot_path
from tests.worlds.world_oracle import accelerations_as_mujoco, as_mujoco, random_states, solved_to_the_end, state_of

mujoco = pytest.importorskip("mujoco")

LEGS = ("FL", "FR", "HL", "HR")
JOINTS = [f"{leg}_{joint}" for leg in LEGS for joint in ("HAA", "HFE", "KFE")]
FRICTION, SOLREF, SOLIMP = (0.7, 0.02, 0.003), (0.015, 0.9), (0.8, 0.97, 0.004, 0.4, 3.0)
IMU = (0.02, -0.01, 0.03), (0.9, 0.1, -0.2, 0.3)
SENSORS = [
    *(
        Sensor(kind, link="base_link", placement=(*IMU[0], *np.divide(IMU[1], np.linalg.norm(IMU[1]))), name=kind)
        for kind in ("accelerometer", "gyro", "framequat", "framepos", "framelinvel")
    ),
    Sensor("framequat", link="FL_LOWER_LEG", name="leg"),
    Sensor("jointpos", joint="FL_KFE"),
    Sensor("jointvel", joint="HR_HFE"),
    Sensor("actuatorfrc", actuator="FR_HFE"),
    Sensor("jointactuatorfrc", joint="FR_HFE"),
    Sensor("touch", link="FL_FOOT", shape=jaxdyn.Sphere(0.03)),
    Sensor("force", link="FL_LOWER_LEG"),
    Sensor("torque", link="FL_LOWER_LEG"),
    Sensor("subtreecom", link="base_link"),
    Sensor("subtreeangmom", link="FL_UPPER_LEG"),
    Sensor("subtreelinvel", link="FL_UPPER_LEG"),
]


@functools.cache
def urdf() -> str:
    """A quadruped without shapes of its own, with limits that it reaches, damping, and dry friction."""
    text = re.sub(r"<(visual|collision)>.*?</\1>", "", robot_path("solo12").read_text(), flags=re.DOTALL)
    text = text.replace('effort="1000" lower="-10" upper="10"', 'effort="2.5" lower="-.8" upper=".6"')
    return text.replace('damping="0.0" friction="0.0"', 'damping="0.02" friction="0.03"')


def theirs(integrator: str = "implicitfast", cone: str = "elliptic"):
    """The robot on a plane as MuJoCo's importer and `MjSpec` have it."""
    spec = mujoco.MjSpec.from_string(urdf())
    option = spec.option
    option.timestep, option.impratio = 0.002, 2.0
    option.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}")
    option.cone = getattr(mujoco.mjtCone, f"mjCONE_{cone.upper()}")
    base = spec.body("base_link")
    base.pos = (0, 0, 0.345)
    base.add_freejoint()
    law = {"friction": FRICTION, "solref": SOLREF, "solimp": SOLIMP, "contype": 1, "conaffinity": 0, "mass": 0}
    kinds = mujoco.mjtGeom
    # Its numbers count for nothing where those of two geoms are mixed.
    plane = {"friction": (0, 0, 0), "solmix": 0, "condim": 1, "contype": 0, "conaffinity": 1}
    spec.worldbody.add_geom(type=kinds.mjGEOM_PLANE, size=(1, 1, 1), **plane)
    base.add_geom(name="box", type=kinds.mjGEOM_BOX, size=(0.15, 0.1, 0.03), condim=4, **law)
    for leg in LEGS:
        foot = spec.body(f"{leg}_FOOT")
        foot.add_geom(name=leg, type=kinds.mjGEOM_SPHERE, size=(0.02, 0, 0), condim=3, **law)
    spec.body("FL_FOOT").add_site(name="sole", type=kinds.mjGEOM_SPHERE, size=(0.03, 0, 0))
    pair = {"friction": np.repeat(FRICTION, (2, 1, 2)), "solref": SOLREF, "solimp": SOLIMP, "condim": 3}
    spec.add_pair(geomname1="FL", geomname2="box", **pair)
    base.add_site(name="imu", pos=IMU[0], quat=IMU[1])
    spec.body("FL_LOWER_LEG").add_site(name="knee")
    for joint in JOINTS:
        driven = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        driven.set_to_position(kp=3.0, kv=0.1)
        driven.forcerange, driven.forcelimited = (-2, 3), True
    places = dict.fromkeys(("accelerometer", "gyro", "framequat", "framepos", "framelinvel"), ("site", "imu"))
    places |= {"leg": ("xbody", "FL_LOWER_LEG"), "touch": ("site", "sole")}
    places |= {"force": ("site", "knee"), "torque": ("site", "knee")}
    kinds_of = {"actuatorfrc": "actuator", "jointactuatorfrc": "joint", "jointpos": "joint", "jointvel": "joint"}
    for sensor in SENSORS:
        kind = "jointactfrc" if sensor.kind == "jointactuatorfrc" else sensor.kind
        objtype, name = places.get(sensor.name or sensor.kind, ("xbody", sensor.link))
        if sensor.kind in kinds_of:
            objtype, name = kinds_of[sensor.kind], sensor.joint or sensor.actuator
        objtype = "body" if kind.startswith("subtree") else objtype
        enum = getattr(mujoco.mjtSensor, f"mjSENS_{kind.upper()}")
        spec.add_sensor(
            name=sensor.title, type=enum, objtype=getattr(mujoco.mjtObj, f"mjOBJ_{objtype.upper()}"), objname=name
        )
    return solved_to_the_end(spec.compile())


@functools.cache
def model() -> jaxdyn.Model:
    return jaxdyn.load_urdf(urdf(), free_base=True)


def quadruped(robot=None, friction=FRICTION, kp=3.0, cone: str = "elliptic", **options) -> World:
    law = MujocoLaw(friction, SOLREF, SOLIMP, cone=cone, impratio=2.0)
    box = jaxdyn.Box([0.15, 0.1, 0.03])
    turning = MujocoLaw(friction, SOLREF, SOLIMP, cone=cone, impratio=2.0, condim=4)
    shapes = [ContactShape("base_link", box, law=turning)]
    shapes += [ContactShape(f"{leg}_FOOT", jaxdyn.Sphere(0.02)) for leg in LEGS]
    servos = [Actuator(joint, "position", kp=kp, kv=0.1, force_range=(-2, 3)) for joint in JOINTS]
    options = {"actuators": servos, "sensors": SENSORS, "timestep": 0.002, "limits": True} | options
    return World(model() if robot is None else robot, shapes, pairs=[("FL_FOOT", "base_link")], law=law, **options)


def relative(found, expected) -> float:
    return float((np.abs(found - expected).max(axis=-1) / np.maximum(1, np.abs(expected).max(axis=-1))).max())


def check_against_mujoco(m, world: World) -> None:
    """Weights, accelerations, sensors, and steps at states along random motions."""
    qpos, qvel, act, control, qacc, _, *after = random_states(m, 8)
    state = state_of(world, qpos, qvel, act)
    a = world.accelerations(state, control)
    assert relative(accelerations_as_mujoco(world, state, a), qacc) < 1e-8
    end = world.step(state, control)
    for x, y in zip((end.q, as_mujoco(world, end.q, end.v)), after, strict=False):
        assert np.abs(np.asarray(x) - y).max() < 1e-8 * max(1, np.abs(y).max())
    found, forces, touched = world.sensors(state, control), world.contact_forces(state, control), 0
    pairs = list(dict.fromkeys(world.contact_names))
    owners = [pairs.index(name) for name in world.contact_names]
    for i in range(len(qpos)):
        d = mujoco.MjData(m)
        d.qpos, d.qvel, d.ctrl = qpos[i], qvel[i], control[i]
        mujoco.mj_forward(m, d)
        touched += d.ncon
        ours, theirs = np.zeros((2, len(pairs), 3))
        np.add.at(ours, owners, np.asarray(forces.force[i]))
        for k, contact in enumerate(d.contact):
            f = np.zeros(6)
            mujoco.mj_contactForce(m, d, k, f)
            # In MuJoCo the feet belong to the lower legs.
            names = (m.body(m.geom_bodyid[g]).name.replace("_LOWER_LEG", "_FOOT") for g in contact.geom)
            where = pairs.index(", ".join(names).replace("world", "ground"))
            theirs[where] += contact.frame.reshape(3, 3).T @ f[:3]
        assert np.abs(ours - theirs).max() < 1e-7 * max(1, np.abs(theirs).max())
        for sensor in SENSORS:
            expected, ours = d.sensor(sensor.title).data, np.asarray(found[sensor.title][i])
            assert np.abs(ours - expected).max() < 1e-7 * max(1, np.abs(expected).max()), sensor
    assert touched > 3


def test_a_quadruped_of_a_urdf_file_moves_as_in_mujoco():
    m, world = theirs(), quadruped()
    (feet,) = (pairs.weight for pairs in world.parts.constraints.contacts.pairs if len(pairs.first) == len(LEGS))
    bodies = [m.geom_bodyid[m.geom(leg).id] for leg in LEGS]
    np.testing.assert_allclose(feet, m.body_invweight0[bodies, 0], rtol=1e-10)
    np.testing.assert_allclose(world.parts.constraints.limits.weight, m.dof_invweight0[6:], rtol=1e-10)
    check_against_mujoco(m, world)


@pytest.mark.slow
@pytest.mark.parametrize(("integrator", "cone"), [("Euler", "pyramidal"), ("RK4", "elliptic")])
def test_a_quadruped_moves_as_with_other_integrators_of_mujoco(integrator, cone):
    check_against_mujoco(theirs(integrator, cone), quadruped(cone=cone, integrator=integrator.lower()))


@functools.cache
def standing() -> tuple[World, State]:
    """A world, and a state with contacts, a limit that is exceeded, and motion in all joints."""
    world = quadruped(sensors=())
    q = np.zeros(world.model.nq)
    q[2:7] = 0.32, 1, 0.02, 0.03, 0.01
    q[7:] = 0.02 * np.arange(12)
    q[18] = 0.65
    return world, world.state(q, 0.3 * np.sin(np.arange(world.model.nv)))


def hopper(mass=2.0, friction=0.05, kp=3.0) -> World:
    """A trunk with one leg, whose foot slides on the ground."""
    rod = jaxdyn.BodyInertia(0.3, [0, 0, -0.1], [1e-3, 1e-3, 1e-4])
    knee = jaxdyn.Joint("revolute", axis=[0, 1, 0], damping=0.1, friction=0.2, lower=-0.5, upper=0.2, effort_limit=0.4)
    trunk = jaxdyn.BodyInertia(1.0, rotational=[0.01, 0.02, 0.02])
    builder = jaxdyn.ModelBuilder().add_body("trunk", joint=jaxdyn.Joint("free"), inertia=trunk)
    robot = builder.add_body("leg", "trunk", knee, [0.05, 0, -0.1], rod).build()
    scale = jnp.stack([mass, 1.0])[:, None]
    robot = eqx.tree_at(lambda m: m.inertial_parameters, robot, robot.inertial_parameters * scale)
    foot = ContactShape("leg", jaxdyn.Sphere(0.03), [0, 0, -0.2])
    return World(
        robot,
        [foot],
        law=MujocoLaw(friction),
        limits=True,
        actuators=[Actuator("leg_joint", "position", kp=kp, kv=0.1)],
    )


def on_one_leg(world: World) -> State:
    """A state with a contact, a limit that is exceeded, and motion in all joints."""
    q = [0, 0, 0.3, 1, 0.02, 0.03, 0.01, 0.25]
    return world.state(q, 0.3 * np.cos(np.arange(7)))


def test_derivatives_by_gains_friction_and_masses_are_differences():
    @jax.jit
    def speed(numbers):
        kp, friction, mass = numbers
        world = hopper(mass, friction, kp)
        return jnp.sum(jnp.sin(jnp.arange(7) + 1.0) * world.step(on_one_leg(world), 0.2 * jnp.ones(1)).v)

    at = jnp.array([3.0, 0.05, 2.0])
    found = jax.jit(jax.grad(speed))(at)
    step = 1e-5
    expected = [(speed(at + step * e) - speed(at - step * e)) / (2 * step) for e in np.eye(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.abs(expected).min() > 1e-5


def test_numbers_of_the_model_stand_in_one_place_and_may_have_batches():
    world = hopper()
    state = on_one_leg(world)
    scales = jnp.array([1.0, 2.0])

    def scaled(scale):
        names = ("damping", "friction", "position_upper", "effort_limit")
        leaves = [getattr(world.model, name) for name in names]
        leaves = [jnp.where(jnp.isfinite(x), x * scale[..., None], x) for x in leaves]
        return eqx.tree_at(lambda w: [getattr(w.model, name) for name in names], world, leaves)

    control = jnp.ones(1)
    both = scaled(scales).accelerations(state, control)
    for k in range(2):
        np.testing.assert_allclose(both[k], scaled(scales[k]).accelerations(state, control), rtol=1e-9, atol=1e-9)
    assert np.abs(both[0] - both[1]).max() > 1
    mapped = jax.vmap(lambda scale: scaled(scale).accelerations(state, control))(scales)
    np.testing.assert_allclose(mapped, both, rtol=1e-9, atol=1e-9)
    single = world.astype(jnp.float32)
    a = single.accelerations(jax.tree.map(lambda x: x.astype(jnp.float32), state), control)
    assert a.dtype == jnp.float32
    np.testing.assert_allclose(a, both[0], rtol=1e-3, atol=0.05)


@pytest.mark.parametrize("integrator", ["implicit_velocity", pytest.param("rk4", marks=pytest.mark.slow)])
def test_a_bare_world_is_its_model(integrator):
    robot = jaxdyn.samples.arm().with_joint_friction(damping=0.4, friction=0.3)
    world, random = World(robot, integrator=integrator), np.random.default_rng(0)
    q, v, tau = (random.normal(size=(2, n)) for n in (robot.nq, robot.nv, robot.nv))
    end = world.step(world.state(q, v), torque=tau)
    expected = jaxdyn.step(robot, State(q, v), tau, 1e-3, integrator=integrator)
    np.testing.assert_allclose(end.q, expected.q, rtol=1e-13)
    np.testing.assert_allclose(end.v, expected.v, rtol=1e-13)
    np.testing.assert_allclose(world.accelerations(world.state(q, v)), jaxdyn.aba(robot, q, v, 0 * tau), rtol=1e-12)
    assert (world.nu, world.na, world.sensors(world.state(q, v))) == (0, 0, {})


def test_a_world_with_servos_of_joints_takes_their_damping_at_the_end_of_a_step():
    robot, kp, kv = jaxdyn.samples.arm(), 50.0, 900.0
    robot = eqx.tree_at(lambda m: m.effort_limit, robot, jnp.full(7, jnp.inf))
    servos = [Actuator(joint, "position", kp=kp, kv=kv) for joint in robot.joint_names]
    world, goal = World(robot, actuators=servos), 0.2 * np.ones(7)
    q, v = 0.1 * np.arange(7), 0.1 * np.ones(7)
    end = world.step(world.state(q, v), goal)
    damped = dataclasses.replace(robot, damping=robot.damping + kv)
    expected = jaxdyn.step(damped, State(q, v), kp * (goal - q), 1e-3)
    np.testing.assert_allclose(end.v, expected.v, rtol=1e-9)


def test_a_world_with_this_librarys_law_moves_by_the_forces_of_its_contacts():
    robot, law, stops = model(), ContactLaw(stiffness=3e3, friction=0.5), ContactLaw(stiffness=50.0)
    shapes = [ContactShape(f"{leg}_FOOT", jaxdyn.Sphere(0.02)) for leg in LEGS]
    sensors = [
        Sensor("accelerometer", link="base_link"),
        Sensor("touch", link="FL_FOOT", shape=jaxdyn.Sphere(0.03)),
        Sensor("force", link="FL_LOWER_LEG"),
    ]
    world = World(robot, shapes, law=law, limits=stops, sensors=sensors)
    state = world.state(standing()[1].q, standing()[1].v)
    tau = 0.1 * np.ones(18)
    end = world.step(state, torque=tau)
    torques = np.tile(tau, (3, 1))
    motion = world.rollout(state, torques=torques, sensors=True)
    np.testing.assert_allclose(motion.q[1], end.q, rtol=1e-11, atol=1e-12)
    assert motion.contact.converged.all()
    assert motion.contact.iterations.shape == (3,)
    found = world.sensors(state, torque=tau)
    np.testing.assert_allclose(motion.sensors["force_FL_LOWER_LEG"][0], found["force_FL_LOWER_LEG"], rtol=1e-9)
    a = world.accelerations(state, torque=tau)
    R = np.zeros(9)
    mujoco.mju_quat2Mat(R, np.array(state.q[3:7] / jnp.linalg.norm(state.q[3:7])))
    felt = a[:3] + np.cross(state.v[3:6], state.v[:3]) + R.reshape(3, 3).T @ [0, 0, 9.81]
    np.testing.assert_allclose(found["accelerometer_base_link"], felt, rtol=1e-9)
    forces = world.contact_forces(state, torque=tau)
    assert world.contact_names == tuple(f"{leg}_FOOT" for leg in LEGS)
    np.testing.assert_allclose(found["touch_FL_FOOT"][0], (forces.force[0] * forces.normal[0]).sum(), rtol=1e-9)
    assert found["touch_FL_FOOT"][0] > 1
    # All of them together, and the torque, balance what accelerates the base, and gravity.
    own = (jaxdyn.crba(robot, state.q) @ a + jaxdyn.rnea(robot, state.q, state.v, 0 * a, joint_friction=False))[:3]
    pushed = np.asarray(forces.force.sum(axis=0)) + R.reshape(3, 3) @ tau[:3]
    np.testing.assert_allclose(R.reshape(3, 3) @ own, pushed, rtol=1e-7)
    assert world.report(state, torque=tau).converged


def test_a_ball_at_rest_feels_its_weight():
    inertia = jaxdyn.BodyInertia(2.0, np.zeros(3), 0.02 * np.ones(3))
    robot = jaxdyn.ModelBuilder().add_body("ball", joint=jaxdyn.Joint("free"), inertia=inertia).build()
    sensors = [Sensor("accelerometer", link="ball"), Sensor("touch", link="ball", shape=jaxdyn.Sphere(0.2))]
    law = ContactLaw(dissipation=5.0)
    world = World(robot, [ContactShape("ball", jaxdyn.Sphere(0.1))], law=law, sensors=sensors)
    state = jax.lax.fori_loop(0, 1000, lambda _, s: world.step(s), world.state([0, 0, 0.1, 1, 0, 0, 0]))
    found = world.sensors(state)
    np.testing.assert_allclose(found["accelerometer_ball"], [0, 0, 9.81], atol=1e-2)
    np.testing.assert_allclose(found["touch_ball"], 2 * 9.81, rtol=1e-2)
    # A force at the center of mass that carries the weight.
    wrench = jnp.zeros((2, 6)).at[1, 2].set(2 * 9.81)
    lifted = world.state([0, 0, 1, 1, 0, 0, 0])
    assert np.abs(world.accelerations(lifted, wrenches=wrench)).max() < 1e-9
    np.testing.assert_allclose(world.sensors(lifted)["accelerometer_ball"], 0, atol=1e-9)


def test_rotors_on_places_of_a_link_lift_it():
    inertia = jaxdyn.BodyInertia(2.0, [0.1, 0, 0], 0.02 * np.ones(3))
    robot = jaxdyn.ModelBuilder().add_body("drone", joint=jaxdyn.Joint("free"), inertia=inertia).build()
    gear = (0, 0, 1, 0, 0, 0.3)
    rotors = [Actuator(link="drone", gear=gear, placement=[0.1, y, 0], name=f"rotor{y}") for y in (-0.2, 0.2)]
    world = World(robot, actuators=rotors)
    a = world.accelerations(world.state([0, 0, 1, 1, 0, 0, 0]), [9.81, 9.81])
    # Both turn it about its axis, through the center of mass, which stays in its place.
    turn = 2 * 0.3 * 9.81 / 0.02
    np.testing.assert_allclose(a, [0, -0.1 * turn, 0, 0, 0, turn], atol=1e-9)


def test_joints_that_mimic_others_belong_to_a_world():
    finger = {"inertia": jaxdyn.BodyInertia(0.2, [0, 0.1, 0], 0.01 * np.ones(3))}
    slide = {"type": "prismatic", "axis": (0, 1, 0)}
    builder = jaxdyn.ModelBuilder().add_body("left", joint=jaxdyn.Joint(**slide, name="grip"), **finger)
    other = jaxdyn.Joint(**slide, mimic=jaxdyn.Mimic("grip", -2.0))
    robot = builder.add_body("right", joint=other, **finger).build()
    servo = Actuator("grip", "position", kp=10.0, kv=1.0)
    world = World(robot, actuators=[servo], sensors=[Sensor("framelinvel", link="right")])
    wrenches = np.zeros((3, 6))
    wrenches[2, 1] = 0.5
    end = world.step(world.state([0.1], [0.2]), [0.3], wrenches=wrenches)
    damped = dataclasses.replace(robot, damping=robot.damping + 1.0)
    tau = 10 * (0.3 - 0.1) - 2 * 0.5
    expected = jaxdyn.step(damped, State(np.array([0.1]), np.array([0.2])), np.array([tau]), 1e-3)
    np.testing.assert_allclose(end.v, expected.v, rtol=1e-10)
    np.testing.assert_allclose(world.sensors(world.state([0.1], [0.2]))["framelinvel_right"], [0, -0.4, 0], atol=1e-12)
    with pytest.raises(ModelError, match=r"'right_joint' mimics 'grip'"):
        World(robot, actuators=[Actuator("right_joint")])


@pytest.mark.filterwarnings("ignore::jaxdyn.LeftOutWarning")  # of <contact>
def test_a_urdf_file_is_a_world():
    text = urdf().replace(
        '<link name="FL_FOOT">',
        '<link name="FL_FOOT"><collision><geometry><sphere radius="0.02"/></geometry></collision>',
    )
    law = MujocoLaw()
    world = jaxdyn.load_world(text, ground=True, free_base=True, law=law)
    same = World(model(), [ContactShape("FL_FOOT", jaxdyn.Sphere(0.02))], law=law, limits=True)
    assert jax.tree.structure(world.parts) == jax.tree.structure(same.parts)
    for x, y in zip(jax.tree.leaves(world), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(x, y)
    stops = jaxdyn.load_world(text, ground=True, free_base=True).parts.touching
    assert stops.limits is not None
    assert jaxdyn.load_world(text).parts.touching is None
    with pytest.raises(ModelError, match=r"MJCF file says by itself what ground"):
        jaxdyn.load_world("<mujoco/>", ground=True)


WRONG = {
    "`law` is a str": {"law": "mujoco"},
    "it must be one of 'implicitfast'": {"law": MujocoLaw(), "integrator": "midpoint"},
    "integrator 'implicitfast' is MuJoCo's": {"integrator": "implicitfast"},
    "takes no contacts and no limits": {"limits": True, "integrator": "rk4"},
    "a MujocoLaw is needed": {"law": MujocoLaw(), "limits": ContactLaw()},
    "timestep": {"timestep": 0.0},
    "`contacts.0.` is a Sphere": {"law": MujocoLaw(), "contacts": [jaxdyn.Sphere(0.1)]},
    "in a world with MuJoCo's law": {
        "law": MujocoLaw(),
        "contacts": [ContactShape("link7", jaxdyn.Sphere(0.1), law=ContactLaw())],
    },
    "a jaxdyn.ContactLaw is needed": {"contacts": [ContactShape("link7", jaxdyn.Sphere(0.1), law=MujocoLaw())]},
    "touches nothing": {
        "law": MujocoLaw(),
        "surface": None,
        "contacts": [ContactShape("link7", jaxdyn.Sphere(0.1))],
    },
    "one `cone`": {
        "law": MujocoLaw(),
        "contacts": [ContactShape("link7", jaxdyn.Sphere(0.1), law=MujocoLaw(cone="elliptic"))],
    },
    "no joint named 'elbow'": {"actuators": [Actuator("elbow")]},
    "same name of actuator: 'joint1'": {"actuators": [Actuator("joint1"), Actuator("joint1", "position")]},
    "named 'hand'": {"sensors": [Sensor("gyro", link="hand")]},
    "no actuator": {"sensors": [Sensor("actuatorpos", actuator="joint1")]},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_named(message):
    with pytest.raises(jaxdyn.JaxdynError, match=message):
        World(jaxdyn.samples.arm(), **WRONG[message])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Actuator("j", "servo"), "kind of actuator 'j' is 'servo'.*'position'"),
        (lambda: Actuator("j", kp=3.0), "kp is given, but a 'motor' has none"),
        (lambda: Actuator(), "needs a joint or a link"),
        (lambda: Actuator("j", time_constant=0.1), "no filter"),
        (lambda: Sensor("sonar"), "kind of a sensor is 'sonar'"),
        (lambda: Sensor("gyro", joint="j"), "'gyro_j' does not read a joint"),
        (lambda: Sensor("touch", link="a"), "need a `shape`"),
        (lambda: MujocoLaw(condim=2), "condim is 2"),
        (lambda: MujocoLaw(friction=-1.0), "friction is"),
        (lambda: MujocoLaw(solref=(0.02, -1.0)), "solref is"),
        (lambda: MujocoLaw(solimp=(0.9, 0.95)), "solimp"),
    ],
)
def test_descriptions_refuse_what_they_do_not_have(make, message):
    with pytest.raises(jaxdyn.JaxdynError, match=message):
        make()


def test_worlds_keep_the_loops_of_their_model():
    robot = jaxdyn.samples.arm().with_coupling("tied", "joint2", "joint3", [0.1, 0.5])
    with pytest.raises(ModelError, match=r"loops, .* with the integrator 'implicit'"):
        World(robot, law=MujocoLaw(), integrator="implicit")
    q, v = np.zeros((2, 7))
    q[1] = 0.1
    for law in (None, MujocoLaw()):
        world = World(robot, law=law)
        with pytest.raises(ModelError, match="'tied' open by"):
            world.state()
        a = world.accelerations(world.state(q, v))
        np.testing.assert_allclose(a, jaxdyn.aba(robot, q, v, v), rtol=1e-9, atol=1e-9)
    end = World(robot).step(world.state(q))
    expected = jaxdyn.step(robot, State(q, np.zeros(7)), np.zeros(7), 1e-3)
    np.testing.assert_allclose(end.q, expected.q, rtol=1e-12)


STIFF = 'solref="0.002 1" solimp="0.9999 0.9999 0.001"'
"""As stiff as MuJoCo's constraints can be with a step of 1 ms."""


def in_mujoco(text: str, plane: str, q, v, control=()):
    """MuJoCo's `mjModel` and `mjData` of a text of `to_mjcf` on a plane, at a state."""
    text = text.replace("<worldbody>", f'<worldbody><geom type="plane" size="5 5 1" friction=".6" {plane}/>')
    text = text.replace('type="sphere"', 'type="sphere" friction=".6"')
    m = mujoco.MjModel.from_xml_string(text)
    m.opt.tolerance, m.opt.iterations = 1e-14, 500
    d = mujoco.MjData(m)
    d.qpos, d.qvel = q, v
    d.ctrl[:] = control
    mujoco.mj_forward(m, d)
    return m, d


@functools.cache
def on_the_ground():
    """A four-bar that touches the ground with its coupler, a state, and its text for MuJoCo with the plane's place."""
    robot = jaxdyn.samples.four_bar().with_joint_friction(damping={"a": 0.1})
    q = np.array(jaxdyn.project_configuration(robot, [0.6, -1.0, -1.2]).q)
    v = np.array(jaxdyn.project_velocity(robot, q, [0.5, -1.0, 0.3]))
    shape = ContactShape("coupler", jaxdyn.Sphere(0.05), (0.5, 0, 0))
    center = np.asarray(jaxdyn.frame_pose(robot, q, "coupler").apply([0.5, 0, 0]))
    height = float(center[2]) - 0.048
    law, ground = MujocoLaw(friction=0.6), jaxdyn.Plane((0, 0, 1), height)
    world = World(robot, [shape], ground, law=law, timestep=1e-3, integrator="euler")
    text = jaxdyn.to_mjcf(robot, 1e-3, actuators=(), shapes=[shape]).replace("<connect", f"<connect {STIFF}")
    return world, world.state(q, v), text, f'pos="0 0 {height!r}"'


@pytest.mark.filterwarnings("ignore::jaxdyn.RobotFileWarning")
def test_a_four_bar_on_the_ground_accelerates_as_in_mujoco_with_a_stiff_pin():
    world, state, text, plane = on_the_ground()
    softer = text.replace("0.9999", "0.9998")
    (_, d), (_, other) = (in_mujoco(x, plane, state.q, state.v) for x in (text, softer))
    assert d.ncon == 1
    a = world.accelerations(state)
    # A pin gives way in proportion to one minus its impedance, 1e-4 and 2e-4.
    np.testing.assert_allclose(a, 2 * d.qacc - other.qacc, atol=2e-4 * np.abs(d.qacc).max())
    single = world.astype(jnp.float32)
    rounded = single.accelerations(single.state(state.q, state.v))
    np.testing.assert_allclose(rounded, a, atol=2e-3 * np.abs(a).max())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxdyn.RobotFileWarning")
def test_a_four_bar_on_the_ground_moves_as_in_mujoco_with_a_stiff_pin():
    world, state, text, plane = on_the_ground()
    m, d = in_mujoco(text, plane, state.q, state.v)
    end = world.rollout(state, steps=50).final
    mujoco.mj_step(m, d, 50)
    np.testing.assert_allclose(end.q, d.qpos, atol=1e-4)
    np.testing.assert_allclose(end.v, d.qvel, atol=2e-3)
    assert np.abs(jaxdyn.constraint_error(world.model, end.q)).max() < 1e-9

    @jax.jit
    def energy(x):
        return (world.rollout(world.state(state.q, state.v * x), steps=5).v[-1] ** 2).sum()

    size = 1e-6
    reverse, forward = jax.grad(energy)(1.0), jax.jvp(energy, (1.0,), (1.0,))[1]
    np.testing.assert_allclose(reverse, forward, rtol=1e-9)
    np.testing.assert_allclose(forward, (energy(1 + size) - energy(1 - size)) / (2 * size), rtol=1e-5)


def test_fingers_that_mimic_each_other_move_as_in_mujoco_with_a_stiff_coupling():
    finger = {"inertia": jaxdyn.BodyInertia(0.2, [0, 0.1, 0], 0.01 * np.ones(3))}
    slide = {"type": "prismatic", "axis": (0, 1, 0)}
    builder = jaxdyn.ModelBuilder()
    builder.add_body("base", joint=jaxdyn.Joint("prismatic", name="up"), **finger)
    grip = jaxdyn.Joint(**slide, name="grip", damping=2.0, friction=0.3, lower=-1, upper=0.12)
    builder.add_body("left", "base", grip, **finger)
    mimic = jaxdyn.Joint(**slide, mimic=jaxdyn.Mimic("grip", -2.0))
    robot = builder.add_body("right", "base", mimic, **finger).build()
    shapes = [ContactShape(side, jaxdyn.Sphere(0.05)) for side in ("left", "right")]
    servo = [Actuator("grip", "position", kp=50.0, kv=1.0)]
    parts = {"limits": True, "actuators": servo, "sensors": [Sensor("framelinvel", link="right")]}
    world = World(robot, shapes, law=MujocoLaw(friction=0.6), timestep=1e-3, **parts)
    q, v, u = np.array([0.03, 0.13]), np.array([-0.1, 0.4]), [0.2]
    text = jaxdyn.to_mjcf(robot.spanning_tree(), 1e-3, actuators=servo, shapes=shapes)
    row = f'<joint joint1="right_joint" joint2="grip" polycoef="0 -2 0 0 0" {STIFF}/>'
    text = text.replace("</mujoco>", f"<equality>{row}</equality></mujoco>").replace("Euler", "implicitfast")
    m, d = in_mujoco(text, "", [*q, -2 * q[1]], [*v, -2 * v[1]], u)
    assert d.ncon == 2
    state = world.state(q, v)
    a = world.accelerations(state, u)
    np.testing.assert_allclose(a, d.qacc[:2], rtol=1e-3)
    np.testing.assert_allclose(world.sensors(state, u)["framelinvel_right"], [0, -0.8, -0.1], atol=1e-12)
    end = world.rollout(state, np.tile(u, (50, 1))).final
    mujoco.mj_step(m, d, 50)
    np.testing.assert_allclose(end.q, d.qpos[:2], atol=2e-4)
    np.testing.assert_allclose(end.v, d.qvel[:2], atol=5e-3)
    again = world.with_model(robot).accelerations(state, u)
    np.testing.assert_allclose(again, a, rtol=1e-9)
    changed = Parametrization(world, Positive("damping", ["grip"]), Positive("frictionloss")).model(np.log([2.0, 3.0]))
    np.testing.assert_allclose(changed.model.damping, [0, 4])
    np.testing.assert_allclose(changed.model.friction, [0, 0.9])
    # The gains of servos have names in a world of a model as in that of a file.
    gains = Parametrization(world, Positive("kp"), Positive("kv"))
    assert gains.names == ("log kp of grip", "log kv of grip")
    np.testing.assert_allclose(gains.model(np.log([2.0, 3.0])).parts.actuators.bias[0, :3], [0, -100, -3])


def test_springs_of_ball_joints_are_the_models_with_mujocos_law():
    inertia = jaxdyn.BodyInertia(1.0, [0.1, 0.2, 0.3], 0.5 * np.eye(3))
    q, v = np.array([0.8, 0.2, 0.4, 0.1]), np.array([0.3, -0.2, 0.5])
    q /= np.linalg.norm(q)
    for spring in ({"stiffness": 3.0, "spring_reference": [0.6, 0.8, 0, 0]}, {"stiffness": [3.0, 2.0, 1.0]}):
        robot = jaxdyn.ModelBuilder().add_body("b", joint=jaxdyn.Joint("ball", **spring), inertia=inertia).build()
        if np.ndim(spring["stiffness"]):
            with pytest.raises(ModelError, match="stiffness of ball joints that differs by axis"):
                World(robot, law=MujocoLaw())
            continue
        world = World(robot, law=MujocoLaw())
        expected = jaxdyn.aba(robot, q, v, np.zeros(3))
        np.testing.assert_allclose(world.accelerations(world.state(q, v)), expected, rtol=1e-10)


def test_the_rate_of_a_world_has_the_stops_of_joints():
    inertia = jaxdyn.BodyInertia.box(1.0, (0.1, 0.2, 0.3))
    joint = jaxdyn.Joint(axis=(0, 1, 0), lower=-0.1, upper=0.1)
    robot = jaxdyn.ModelBuilder().add_body("a", joint=joint, inertia=inertia).build()
    stop = jaxdyn.ContactLaw(stiffness=100.0, dissipation=0.5)
    world = World(robot, limits=stop)
    rate = world.rate(0.0, world.state([0.2], [0.5]))
    moment = float(jaxdyn.crba(robot, np.zeros(1))[0, 0])
    np.testing.assert_allclose(rate.v, -100 * 0.1 * (1 + 0.5 * 0.5) / moment, rtol=1e-9)


@pytest.mark.parametrize("law", [None, jaxdyn.MujocoLaw()])
def test_a_world_with_another_model_is_the_world_of_that_model(law):
    model = jaxdyn.samples.double_pendulum()
    heavy = eqx.tree_at(lambda m: m.inertial_parameters, model, 2 * model.inertial_parameters)
    motors = [Actuator(name) for name in model.joint_names]
    changed = jaxdyn.World(model, actuators=motors, law=law).with_model(heavy)
    for a, b in zip(*map(jax.tree.leaves, (changed, jaxdyn.World(heavy, actuators=motors, law=law))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
