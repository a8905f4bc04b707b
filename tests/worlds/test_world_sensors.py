"""Sensors of worlds against MuJoCo's `sensordata`, with its accelerations and contact forces given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import ModelError, RobotFileError, UnknownNameError, load_world
from jaxdyn.spatial import Vec3
from jaxdyn.worlds import _sensors as sensors
from jaxdyn.worlds._actuators import actuated, actuator_tension
from jaxdyn.worlds._parts import Loads, instant
from jaxdyn.worlds._passive import passive_forces, spring_energy
from jaxdyn.worlds._readings import ContactLoads, Readings
from jaxdyn.worlds._tendons import tendon_loads, tendon_rows
from tests.io.test_mjcf import package_files
from tests.worlds import world_parts as worlds

mujoco = pytest.importorskip("mujoco")

XML = """<mujoco><option timestep="0.005" gravity=".3 -.2 -9" magnetic="1 2 3"/><worldbody>
<site name="w" pos=".1 .2 1" quat="1 .2 .3 .4" type="box" size="1 1 1"/><geom type="plane" size="3 3 .1" pos="0 0 -.2"/>
<body name="f" pos="0 0 .1"><joint name="free" type="free" stiffness="3 2 1"/>
  <geom size=".1" type="capsule" fromto="0 0 0 .3 .1 .2"/>
  <site name="fs" pos=".2 .1 0" quat="1 .5 0 .3" type="capsule" size=".2 .3"/>
  <body name="b" pos=".3 0 0" euler="10 20 30">
    <joint name="ball" type="ball" pos=".02 .03 .01" range="0 40" limited="true" stiffness="1 2 3"/>
    <geom type="box" size=".1 .05 .02" pos=".1 0 0" euler="10 20 30"/>
    <site name="bs" pos="0 .1 .1" euler="30 20 10" type="box" size=".2 .3 .5"/>
    <body name="h" pos=".2 0 0" euler="100 80 0">
      <joint name="h1" axis="1 2 3" ref="10" pos="0 .1 0" range="-20 30" limited="true"/>
      <joint name="h2" axis="0 1 0" pos=".1 0 0" stiffness="3 2 1" armature=".1"/><geom size=".05" pos=".1 .1 0"/>
      <site name="hs" pos=".1 .1 .1" euler="40 50 60" type="cylinder" size=".3 .4"/>
      <body name="rigid" pos=".1 0 .1" euler="20 0 30"><geom name="gr" size=".13" pos=".1 0 0" euler="10 0 0"/>
        <site name="rs" pos=".1 .2 .3" size=".4"/></body>
    </body></body></body>
<body name="s" pos="1 0 0"><joint name="sl" type="slide" axis="1 1 0" range="-.3 .2" limited="true"/>
  <joint name="sh" type="hinge" axis="1 1 0" ref="12" damping="1"/><geom size=".1"/>
  <site name="ss" pos=".1 .1 .1" type="ellipsoid" size=".2 .1 .3"/></body>
</worldbody><tendon>
  <fixed name="t1" range="-.1 .2" limited="true"><joint joint="h1" coef=".5"/><joint joint="sl" coef="-2"/></fixed>
  <spatial name="t2" stiffness="3 2 1" springlength="0 1"><site site="w"/><site site="fs"/><site site="bs"/></spatial>
</tendon><actuator>
  <motor joint="h1" gear="3" armature=".02"/><position name="p" tendon="t2" gear="1.5"/><motor tendon="t2"/>
</actuator><sensor>
  <touch site="fs"/><touch site="rs" cutoff="3"/><touch site="bs"/><touch site="hs"/><touch site="ss"/>
  <accelerometer site="hs"/><accelerometer site="w"/><velocimeter site="rs"/><gyro site="rs" cutoff=".5"/>
  <gyro site="w"/><force site="rs"/><torque site="rs"/><force site="bs"/><torque site="bs"/><force site="fs"/>
  <torque site="fs"/><magnetometer site="bs"/><jointpos joint="h1"/><jointvel joint="sl"/><tendonpos tendon="t2"/>
  <tendonvel tendon="t1"/><actuatorpos actuator="p"/><actuatorvel actuator="p"/><actuatorfrc actuator="p"/>
  <jointactuatorfrc joint="h1"/><tendonactuatorfrc tendon="t2"/><ballquat joint="ball"/><ballangvel joint="ball"/>
  <jointlimitpos joint="h1"/><jointlimitvel joint="h1"/><jointlimitfrc joint="h1"/><jointlimitpos joint="ball"/>
  <jointlimitvel joint="ball"/><jointlimitfrc joint="ball"/><jointlimitpos joint="sl"/><jointlimitvel joint="sl"/>
  <tendonlimitpos tendon="t1"/><tendonlimitvel tendon="t1"/><tendonlimitfrc tendon="t1"/>
  <framepos objtype="body" objname="h"/><framepos objtype="xbody" objname="h" reftype="site" refname="bs"/>
  <framequat objtype="site" objname="rs"/><framequat objtype="geom" objname="gr"/>
  <framequat objtype="xbody" objname="f"/><framequat objtype="body" objname="s" reftype="site" refname="hs"/>
  <framequat objtype="site" objname="w" reftype="body" refname="b"/><framexaxis objtype="geom" objname="gr"/>
  <frameyaxis objtype="site" objname="rs" reftype="body" refname="b"/><framezaxis objtype="site" objname="rs"/>
  <framelinvel objtype="site" objname="rs"/><framelinvel objtype="site" objname="rs" reftype="site" refname="bs"/>
  <framelinvel objtype="body" objname="s" reftype="site" refname="bs"/>
  <frameangvel objtype="body" objname="s" reftype="site" refname="bs"/><frameangvel objtype="geom" objname="gr"/>
  <framelinvel objtype="site" objname="rs" reftype="site" refname="w"/><framelinacc objtype="site" objname="rs"/>
  <frameangacc objtype="xbody" objname="b"/><framelinacc objtype="body" objname="f"/><subtreecom body="f"/>
  <subtreecom body="world"/><subtreelinvel body="b"/><subtreeangmom body="f"/><subtreeangmom body="rigid"/>
  <subtreelinvel body="s"/><insidesite site="bs" objtype="body" objname="h"/>
  <insidesite site="w" objtype="body" objname="h"/><insidesite site="hs" objtype="body" objname="f"/><clock/>
  <e_potential/><e_kinetic/>
</sensor></mujoco>"""


class Given:
    """What MuJoCo has at states, and sensors read besides: accelerations, contacts, and forces of limits."""

    def __init__(self, m, states):
        data = [worlds.data_at(m, state) for state in states]
        self.values = [np.array(d.sensordata) for d in data]
        self.accelerations = np.array([acceleration_in_body(m, *s[:2], d) for s, d in zip(states, data, strict=True)])
        contacts = [contacts_of(m, d) for d in data]
        slots = sorted({key for found in contacts for key in found})
        self.bodies = np.array([key[:2] for key in slots], int).reshape(-1, 2)
        empty = np.zeros((4, 3)), 0.0
        rows = [[found.get(key, empty) for key in slots] for found in contacts]
        vectors = np.array([[x[0] for x in row] for row in rows]).reshape(len(data), len(slots), 4, 3)
        self.vectors = [Vec3(*map(jnp.asarray, np.moveaxis(vectors[:, :, k], -1, 0))) for k in range(4)]
        self.pressure = jnp.asarray([[x[1] for x in row] for row in rows]).reshape(len(data), len(slots))
        self.limits = [
            jnp.asarray([limit_forces(d, kind, count) for d in data])
            for kind, count in (("JOINT", m.njnt), ("TENDON", m.ntendon))
        ]


def acceleration_in_body(m, q, v, d):
    """The rates of this library's velocities: those of free joints are in axes that turn."""
    out, moving = worlds.in_body(m, q, d.qacc), worlds.in_body(m, q, v)
    for j in np.flatnonzero(m.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
        k = m.jnt_dofadr[j]
        out[k : k + 3] -= np.cross(moving[k + 3 : k + 6], moving[k : k + 3])
    return out


def contacts_of(m, d) -> dict:
    """For each contact, by its bodies and a number: place, normal, force and moment on the second; normal force."""
    out: dict = {}
    for i in range(d.ncon):
        wrench, frame = np.zeros(6), np.array(d.contact[i].frame).reshape(3, 3)
        mujoco.mj_contactForce(m, d, i, wrench)
        bodies = tuple(map(int, m.geom_bodyid[list(d.contact[i].geom)]))
        number = sum(key[:2] == bodies for key in out)
        vectors = np.array([d.contact[i].pos, frame[0], frame.T @ wrench[:3], frame.T @ wrench[3:]])
        out[*bodies, number] = vectors, wrench[0]
    return out


def limit_forces(d, kind: str, count: int) -> np.ndarray:
    out = np.zeros(count)
    rows = np.flatnonzero(d.efc_type == getattr(mujoco.mjtConstraint, f"mjCNSTR_LIMIT_{kind}"))
    out[d.efc_id[rows]] = d.efc_force[rows]
    return out


def readings_of(bodies):
    def values(robot, parts, q, v, control, activation, a, point, normal, force, moment, pressure, joints, pulls, dt):
        at = instant(robot, q, v)
        pulled = None if parts.tendons is None else tendon_rows(robot, parts.tendons, at)
        without = passive_forces(robot, parts.passive, at, pulled)
        acting = actuated(robot, parts.actuators, at, pulled, control, activation, dt, without.compensation)
        loads = ()
        if len(bodies):
            loads += (Loads(bodies[:, 1], point, force, moment), Loads(bodies[:, 0], point, -force, -moment))
        if pulled is not None:
            own = actuator_tension(robot, parts.actuators, acting.force, len(parts.tendons.names))
            loads += tendon_loads(robot, parts.tendons, at, without.tension + own)
        ends = bodies[:, 0], bodies[:, 1]
        contacts = (ContactLoads(ends, point, normal, pressure),) if len(bodies) else ()
        springs = spring_energy(robot, parts.passive, at, pulled)
        readings = Readings(a, pulled, acting, loads, contacts, springs, joints, pulls, jnp.full(robot.batch, 1.25))
        return {"sensordata": sensors.sensor_values(robot, parts.sensors, at, readings)}

    return values


def check(m, count=5):
    """All sensors that are built are MuJoCo's, over their size, or that of all forces for those that measure forces."""
    states = worlds.states_of(m, count, seed=1)
    parts, given = worlds.Parts.of(m, with_sensors=True), Given(m, states)
    further = (jnp.asarray(given.accelerations), *given.vectors, given.pressure, *given.limits)
    ours = worlds.evaluated(m, worlds.model_of(m), parts, states, readings_of(given.bodies), *further)["sensordata"]
    known = [m.sensor(i).name or f"sensor_{i}" for i in range(m.nsensor)]
    numbers = [known.index(name) for name in parts.sensors.names]
    place = 0
    for kind, number, size in zip(parts.sensors.types, numbers, parts.sensors.sizes, strict=True):
        start = m.sensor_adr[number]
        theirs = np.array([x[start : start + size] for x in given.values])
        scale = max(1.0, np.abs(theirs).max(), np.abs(given.pressure).max() if kind in ("force", "torque") else 0)
        np.testing.assert_allclose(
            ours[:, place : place + size], theirs, atol=1e-10 * scale, err_msg=f"{kind} {number}"
        )
        place += size
    assert place == ours.shape[1]


def test_all_types_are_mujocos():
    m = mujoco.MjModel.from_xml_string(XML)
    assert not sensors.reasons_against_sensors(m)
    check(m)


def test_rangefinders_are_mujocos():
    rng = np.random.default_rng(0)
    sites = [np.concatenate([0.5 * rng.normal(size=3), rng.normal(size=4)]) for _ in range(20)]
    sites = [[" ".join(map(str, x)) for x in (site[:3], site[3:])] for site in sites]
    eyes = "".join(f'<site name="s{i}" pos="{p}" quat="{q}"/>' for i, (p, q) in enumerate(sites))
    finders = "".join(f'<rangefinder site="s{i}" cutoff="{3 * (i % 2)}"/>' for i in range(len(sites)))
    shapes = ("capsule", ".3 .4"), ("cylinder", ".3 .4"), ("ellipsoid", ".3 .4 .5"), ("sphere", ".3")
    bodies = [
        f'<body pos="{x} {y} 0"><joint type="ball"/><geom type="{kind}" size="{size}" pos=".1 0 0"/></body>'
        for (kind, size), x, y in zip(shapes, (1, -1, 0, 0), (0, 0, 1, -1), strict=True)
    ]
    xml = f"""<mujoco><worldbody><geom type="plane" size="0 0 .1" pos="0 0 -1"/><geom size="9" rgba="1 1 1 0"/>
      <geom type="plane" size="2 1 .1" pos="0 0 -.5" euler="20 0 10"/>
      <geom type="box" size=".3 .2 .4" pos="1 1 0" euler="10 20 30"/>{"".join(bodies)}
      <body><joint type="ball"/><geom size=".1"/>{eyes}</body></worldbody><sensor>{finders}</sensor></mujoco>"""
    check(mujoco.MjModel.from_xml_string(xml))


PACKAGES = [
    pytest.param(*x.values, id=f"{package}-{x.id}", marks=[*x.marks, pytest.mark.slow])
    for package in ("gymnasium", "dm_control", "brax")
    for x in package_files(package)
]


@pytest.mark.parametrize("path", PACKAGES)
def test_scenes_of_packages(path):
    try:
        m = mujoco.MjModel.from_xml_path(str(path))
    except ValueError:
        pytest.skip("MuJoCo's compiler refuses it")
    if m.nsensor == 0 or m.nv == 0 or worlds.reasons(m):
        pytest.skip("it has no sensors, or other parts that are refused")
    check(m)


def test_forces_on_sites_of_the_world_are_mujocos():
    """MuJoCo leaves out what acts on the world itself, and adds up the moments of trees about different points. Limits,
    friction losses and equalities of tendons act on the bodies of their sites."""
    m = mujoco.MjModel.from_xml_string("""<mujoco><worldbody><geom type="plane" size="1 1 1"/>
    <site name="w" pos=".1 .2 .3" euler="10 20 30"/>
    <body pos="0 0 .099"><joint type="slide" axis="0 0 1"/><geom size=".1"/><site name="s"/></body>
    <body pos="1 0 .19"><joint type="slide" axis="0 0 1"/><geom size=".2" pos=".1 0 0"/></body>
    <body pos="0 2 1" gravcomp=".4"><joint name="h" axis="1 0 0"/><geom size=".1" pos="0 .2 0"/></body>
    <body name="hand" mocap="true" pos="1 0 1"/></worldbody>
    <equality><connect body1="hand" body2="world" anchor="0 0 0" active="false"/>
    <tendon tendon1="rope" tendon2="turn" polycoef="0 1 .3 0 0"/></equality>
    <tendon><spatial name="rope" stiffness="9" springlength="0" limited="true" range="0 .1" frictionloss=".3">
    <site site="w"/><site site="s"/></spatial><fixed name="turn"><joint joint="h" coef="2"/></fixed></tendon>
    <sensor><force site="w"/><torque site="w"/><force site="s"/></sensor></mujoco>""")
    m.opt.tolerance, m.opt.iterations = 1e-15, 100
    d = mujoco.MjData(m)
    d.qvel[:] = -0.1, 0.2, 0.3
    mujoco.mj_forward(m, d)
    assert d.ncon == 2
    world = load_world(m)
    values = jax.jit(lambda world, state: world.sensors(state))(world, world.state(d.qpos, d.qvel))
    np.testing.assert_allclose(np.concatenate(list(values.values())), d.sensordata, atol=1e-9)


def test_what_is_not_built_is_refused_only_when_asked_for():
    m = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><geom name="a" size="1"/><body><joint name="j"/><geom name="b" size=".1"/></body>
        </worldbody><sensor><distance name="gap" geom1="a" geom2="b"/><jointpos name="angle" joint="j"/>
        </sensor></mujoco>"""
    )
    with pytest.raises(RobotFileError, match="'gap': sensors of type 'geomdist' are not built"):
        sensors.Sensors.of(m)
    assert sensors.Sensors.of(m, ["angle"]).types == ("jointpos",)
    with pytest.raises(UnknownNameError):
        sensors.Sensors.of(m, ["angel"])


def test_a_sensor_says_what_it_lacks():
    m = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body><joint/><geom size=".1"/><site name="s"/></body></worldbody>
        <sensor><accelerometer site="s"/></sensor></mujoco>"""
    )

    def values(robot, parts, q, v, control, activation, dt):
        return {"sensordata": sensors.sensor_values(robot, parts.sensors, instant(robot, q, v), Readings())}

    parts = worlds.Parts.of(m, with_sensors=True)
    with pytest.raises(ModelError, match="'accelerometer' read 'acceleration'"):
        worlds.evaluated(m, worlds.model_of(m), parts, worlds.states_of(m, 1), values)


@pytest.mark.slow
def test_derivatives_are_differences():
    """By the state, and finite at rest."""
    m = mujoco.MjModel.from_xml_string(XML)
    states = worlds.states_of(m, 2, seed=3)
    model, parts, given = worlds.model_of(m), worlds.Parts.of(m, with_sensors=True), Given(m, states)
    function = readings_of(given.bodies)
    others = (given.accelerations, *given.vectors, given.pressure, *given.limits, jnp.asarray(m.opt.timestep))
    q, v, u, a = (np.array(x) for x in zip(*states, strict=True))

    @jax.jit
    def derivative(at, along):
        def values(q, v):
            bound, operands = worlds.RobotAndParts.of(model, parts, jnp.float64, "world")
            return bound.call(function, operands, q, v, u, a, *map_arrays(others))["sensordata"]

        return jax.jvp(values, at, along)

    rng = np.random.default_rng(4)
    along = rng.normal(size=q.shape), rng.normal(size=v.shape)
    slope = derivative((q, v), along)[1]
    h = 1e-6
    upper, lower = (derivative((q + s * along[0], v + s * along[1]), along)[0] for s in (h, -h))
    np.testing.assert_allclose(slope, (upper - lower) / (2 * h), rtol=1e-5, atol=1e-6 * np.abs(slope).max())
    rest = np.array([m.qpos0] * 2), np.zeros_like(v)
    assert np.isfinite(derivative(rest, along)[1]).all()


def map_arrays(tree):
    return jax.tree.map(jnp.asarray, tree)
