"""Forces of actuators, springs, dampers, tendons and fluids of worlds, against MuJoCo at random states and controls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.io.test_mjcf import package_files
from tests.worlds import world_parts as worlds

mujoco = pytest.importorskip("mujoco")

ALL_KINDS = """<mujoco><option timestep="0.005" gravity=".3 -.2 -9"/><worldbody>
<site name="w" pos=".1 .2 1" quat="1 .2 .3 .4"/><site name="beside" pos=".6 .3 .9"/>
<geom name="drum" type="cylinder" size=".15 .1" pos=".5 .1 .9" euler="30 40 0"/>
<body name="f" pos="0 0 1" gravcomp=".7">
  <joint name="free" type="free" stiffness="3 2 1" damping="1 .5 .2"/>
  <geom size=".1" type="capsule" fromto="0 0 0 .3 .1 .2"/><site name="fs" pos=".2 .1 0" quat="1 .5 0 .3"/>
  <body name="b" pos=".3 0 0" gravcomp="1">
    <joint name="ball" type="ball" stiffness="2 1 .5" damping=".3 .2 .1" pos=".02 .03 .01"/>
    <geom type="box" size=".1 .05 .02" pos=".1 0 0" euler="10 20 30"/><geom name="knob" size=".12" pos=".1 .05 .1"/>
    <site name="within" pos=".12 .06 .1"/><site name="bs" pos="0 .1 .1" euler="30 20 10"/>
    <body name="h" pos=".2 0 0">
      <joint name="h1" axis="1 2 3" stiffness="1 .3 .2" springref="20" ref="10" damping="1 2 3" pos="0 .1 0"
       actuatorgravcomp="true"/>
      <joint name="h2" axis="0 1 0" pos=".1 0 0" actuatorfrcrange="-.4 .3"/>
      <geom size=".05" pos=".1 .1 0"/><site name="hs" pos=".1 .1 .1" euler="40 50 60"/>
      <body name="rigid" pos=".1 0 .1" euler="20 0 30" gravcomp=".3">
        <geom size=".03" pos=".1 0 0"/><site name="rs" pos=".1 .2 .3"/></body>
    </body></body></body>
<body name="s" pos="1 0 0" gravcomp=".5"><joint name="sl" type="slide" axis="1 1 0" stiffness="5 1 2" damping=".1"/>
  <joint name="sh" type="hinge" axis="1 1 0" ref="12" damping="1"/><geom size=".1"/>
  <site name="ss" pos=".1 .1 .1"/></body>
</worldbody><tendon>
  <fixed name="t1" stiffness="1 2 3" damping="1 .4 .2" springlength="-.2 .3">
    <joint joint="h1" coef=".5"/><joint joint="sl" coef="-2"/></fixed>
  <spatial name="t2" stiffness="5 1 .3" damping=".4 .1 .1" springlength=".3 .5">
    <site site="w"/><site site="fs"/><site site="bs"/><pulley divisor="2"/><site site="hs"/><site site="rs"/>
    <site site="ss"/><pulley divisor="2"/><site site="hs"/><site site="w"/></spatial>
  <spatial name="t3" actuatorfrclimited="true" actuatorfrcrange="-.2 .3"><site site="ss"/><site site="hs"/></spatial>
  <spatial name="t4" stiffness="3" damping=".2"><site site="w"/><geom geom="drum"/><site site="ss"/></spatial>
  <spatial name="t5" stiffness="3" damping=".2"><site site="ss"/><geom geom="knob"/><site site="rs"/></spatial>
  <spatial name="t6" stiffness="3" damping=".2"><site site="w"/><site site="ss"/><pulley divisor="2"/>
    <site site="w"/><geom geom="drum" sidesite="beside"/><site site="rs"/></spatial>
  <spatial name="t7"><site site="w"/><geom geom="knob" sidesite="within"/><site site="rs"/></spatial>
  <spatial name="t8" damping=".2"><site site="w"/><geom geom="knob" sidesite="bs"/><site site="rs"/></spatial>
</tendon><actuator>
  <motor joint="free" gear="1 2 3 4 5 6"/>
  <motor jointinparent="free" gear="1 2 3 4 5 6" ctrlrange="-.5 .5"/>
  <position joint="ball" gear="1 .3 .2" kp="3" kv=".2"/>
  <velocity jointinparent="ball" gear="1 .3 .2" kv="3"/>
  <general joint="h1" gear="2" gaintype="affine" gainprm="1 2 3" biastype="affine" biasprm=".1 .2 .3" dyntype="filter"
   dynprm=".1" forcerange="-1 1" damping="1 .5 .3"/>
  <intvelocity joint="h2" kp="2" actrange="-.5 .5"/>
  <general joint="sl" dyntype="filterexact" dynprm=".02" actearly="true" gainprm="2"/>
  <general joint="sl" dyntype="integrator" actearly="true" gainprm="2" actlimited="true" actrange="0 .4"/>
  <muscle tendon="t1" lengthrange="-2 2"/>
  <muscle joint="sh" lengthrange="-.8 1.5" force="30" timeconst=".02 .06" tausmooth=".3"/>
  <motor tendon="t2" gear="1.5" damping=".3 .2 .1"/>
  <motor tendon="t3"/><position tendon="t3" kp="2"/><velocity tendon="t3" kv="2"/><velocity joint="h2" kv="2"/>
  <general site="hs" gear="1 2 3 4 5 6"/>
  <position site="hs" refsite="w" gear="1 2 3 0 0 0" kp="1.5"/>
  <position site="hs" refsite="bs" gear="0 0 0 1 2 3" kp="1.5" kv=".2"/>
  <position site="hs" refsite="ss" gear="1 2 1 1 2 3" kp="1.5" kv=".2"/>
  <position cranksite="hs" slidersite="ss" cranklength="3" gear="2" kp="1.5" kv=".2"/>
  <motor cranksite="ss" slidersite="w" cranklength=".1"/>
  <damper joint="sl" kv="2" ctrlrange="0 1"/>
  <cylinder joint="sh" timeconst=".3" area="2" bias="1 2 3"/>
</actuator></mujoco>"""

BODY = '<geom type="{}" size="{}" fluidshape="{}" euler="10 20 30" pos=".1 .2 .3" fluidcoef=".4 .3 1.2 .8 .9"/>'
FLUID = f"""<mujoco><option density="1.2" viscosity=".3" wind="1 2 -3"/><worldbody>
<body pos="0 0 1"><freejoint/>{BODY.format("ellipsoid", ".1 .2 .3", "ellipsoid")}<geom type="box" size=".1 .2 .3"/>
  <body><joint axis="1 2 3" pos=".1 0 0"/>{BODY.format("capsule", ".1 .2", "ellipsoid")}
    <body><joint type="ball"/>{BODY.format("box", ".1 .2 .3", "none")}</body></body></body>
<body pos="0 0 3"><freejoint/>{BODY.format("cylinder", ".1 .2", "ellipsoid")}
  {BODY.format("sphere", ".2", "ellipsoid")}</body>
<body><joint axis="1 1 0"/><inertial pos=".1 .2 .3" mass="1" diaginertia=".1 .1 .2"/></body>
</worldbody></mujoco>"""

SMALL = """<mujoco><option density="2" viscosity=".3" gravity="0 0 -9"/><worldbody><site name="w" pos=".1 0 1"/>
<geom name="big" size=".15" pos=".05 0 1.25"/><geom name="small" size=".1" pos="0 0 1.25"/>
<site name="c" pos="0 0 1.26"/><geom name="drum" type="cylinder" size=".1 .1" pos="0 0 1.25" euler="90 0 0"/>
<site name="left" pos="-1 0 1.25"/><geom name="near" size=".1" pos=".2 0 1.5"/>
<body pos="0 0 1" gravcomp=".5"><joint name="b" type="ball" stiffness="2 1 .5" damping=".3 .2 .1"/>
  <geom type="ellipsoid" size=".1 .2 .3" fluidshape="ellipsoid" pos=".1 0 0"/><site name="bs" pos=".1 0 0"/>
  <body pos="0 0 .5"><joint name="h" axis="1 2 3" damping="1 2 3" stiffness="1 2 3"/><geom type="box" size=".1 .2 .1"/>
  <site name="hs" pos=".1 0 0"/></body></body>
</worldbody><tendon>
  <spatial name="t" stiffness="5 1 .3" damping=".4 .1 .1" springlength="0 .1"><site site="w"/><site site="bs"/>
    <site site="hs"/></spatial>
  <spatial stiffness="5"><site site="w"/><geom geom="big"/><site site="hs"/></spatial>
  <spatial stiffness="5"><site site="w"/><geom geom="small"/><site site="hs"/></spatial>
  <spatial stiffness="5"><site site="w"/><geom geom="small" sidesite="c"/><site site="hs"/></spatial>
  <spatial stiffness="5"><site site="w"/><geom geom="drum"/><site site="hs"/></spatial>
  <spatial stiffness="5"><site site="w"/><geom geom="drum" sidesite="left"/><site site="hs"/></spatial>
  <spatial stiffness="5"><site site="w"/><geom geom="near"/><site site="hs"/></spatial>
</tendon><actuator><muscle joint="h" lengthrange="-1 1" force="9" tausmooth=".2"/><position joint="b" kp="3" kv="1"/>
  <motor tendon="t"/></actuator></mujoco>"""


def check(m, count=4, size=1.0, rougher=()):
    """All forces are MuJoCo's at random states, velocities and controls of this size; some to its searches' errors."""
    states = [(q, size * v, size * u, a) for q, v, u, a in worlds.states_of(m, count)]
    errors = worlds.errors(m, worlds.evaluated(m, worlds.model_of(m), worlds.Parts.of(m), states), states)
    assert all(e < (1e-6 if name in rougher else 1e-10) for name, e in errors.items()), errors


def test_all_kinds_of_forces_are_mujocos():
    m = mujoco.MjModel.from_xml_string(ALL_KINDS)
    assert not worlds.reasons(m)
    states = worlds.states_of(m, 24)
    # Each path around a geom touches it in some states, and not in others.
    points = np.array([worlds.data_at(m, state).ten_wrapnum[-5:] for state in states])
    assert [sorted(set(x.tolist())) for x in points.T] == [[2, 4], [2, 4], [5, 7], [2, 4], [2, 4]]
    # MuJoCo searches for the place at which `t7` touches from inside; its length has the error's square.
    check(m, count=len(states), size=5.0, rougher=("ten_J", "ten_velocity"))


@pytest.mark.slow
def test_fluids_are_mujocos():
    check(mujoco.MjModel.from_xml_string(FLUID))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-6, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("xml", [ALL_KINDS, FLUID, SMALL], ids=["all", "fluid", "small"])
def test_forces_are_mujocos_at_all_speeds(xml, size):
    check(mujoco.MjModel.from_xml_string(xml), 40, size)


@pytest.mark.parametrize(
    "flag",
    [
        "gravity",
        "clampctrl",
        "spring damper",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("spring", "damper", "actuation")),
    ],
)
def test_disabled_features_do_nothing(flag):
    xml = """<mujoco><option density="2" gravity="0 0 -9"><flag FLAG/></option><worldbody>
      <body gravcomp="1"><joint name="j" axis="0 1 0" stiffness="2" damping="3"/><geom size=".1" pos=".3 0 0"/></body>
      </worldbody><tendon><fixed name="t" stiffness="2" damping="1"><joint joint="j" coef="1"/></fixed></tendon>
      <actuator><motor joint="j" ctrlrange="-.1 .1" damping="2"/><position joint="j" kp="2" timeconst=".1"/></actuator>
      </mujoco>"""
    flags = " ".join(f'{x}="disable"' for x in flag.split())
    check(mujoco.MjModel.from_xml_string(xml.replace("FLAG", flags)))


def test_groups_of_actuators_are_disabled():
    xml = """<mujoco><option actuatorgroupdisable="2 GROUP"/><worldbody><body gravcomp="1">
      <joint name="j" actuatorgravcomp="true" axis="0 1 0"/><geom size=".1" pos=".2 0 0"/></body></worldbody>
      <tendon><fixed name="t" actuatorfrcrange="-1 1"><joint joint="j" coef="1"/></fixed></tendon>
      <actuator><motor joint="j" group="1"/><intvelocity joint="j" group="2" actrange="-1 1" kp="2"/></actuator>
      </mujoco>"""
    for group in ("", "1"):
        check(mujoco.MjModel.from_xml_string(xml.replace("GROUP", group)))


PACKAGES = [
    *package_files("gymnasium", "envs/mujoco/assets", ("ant.xml", "humanoid.xml", "swimmer.xml")),
    *(pytest.param(*x.values, id=x.id, marks=[*x.marks, pytest.mark.slow]) for x in package_files("dm_control")),
    *(pytest.param(*x.values, id=x.id, marks=[*x.marks, pytest.mark.slow]) for x in package_files("brax")),
]


@pytest.mark.parametrize("path", PACKAGES)
def test_scenes_of_packages(path):
    try:
        m = mujoco.MjModel.from_xml_path(str(path))
    except ValueError:
        pytest.skip("MuJoCo's compiler refuses it")
    if m.nv == 0:
        pytest.skip("nothing moves")
    if worlds.reasons(m):
        pytest.skip(f"refused: {worlds.reasons(m)}")
    check(m)


# Derivatives


def smooth(robot, parts, q, v, control, activation, dt):
    """One number of the forces for each degree of freedom and activation."""
    out = worlds.forces(robot, parts, q, v, control, activation, dt)
    return jnp.concatenate([out["qfrc_passive"] + out["qfrc_actuator"], out["act_dot"]])


def smooth_of(m, model, parts, q, v, control, activation):
    bound, operands = worlds.RobotAndParts.of(model, parts, q.dtype, "world")
    (out,) = jax.tree.leaves(bound.call(smooth, operands, q, v, control, activation, jnp.asarray(m.opt.timestep)))
    return out


def random_like(tree, seed: int):
    """Random numbers of the size of those in a tree; zero for those that stand for infinity."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: np.where(abs(x) > 1e20, 0, (abs(x) + 0.1)) * rng.normal(size=x.shape), tree)


@functools.cache
def small_world():
    """A world, and the forward derivatives of its forces by all numbers of it, the state, control and activation."""
    m = mujoco.MjModel.from_xml_string(SMALL)
    model = worlds.model_of(m)
    derivative = jax.jit(lambda at, along: jax.jvp(lambda *x: smooth_of(m, model, *x), at, along))
    return m, worlds.Parts.of(m), derivative, lambda *at: smooth_of(m, model, *at)


def inputs(m, parts, states):
    return jax.tree.map(np.asarray, (parts, *(np.array(x) for x in zip(*states, strict=True))))


def rest_of(m):
    """At rest in the fluid, a spatial tendon without length, others that just touch a sphere and a cylinder or end on
    a sphere, springs without stretch, no excitation."""
    return [(m.qpos0, np.zeros(m.nv), np.zeros(m.nu), np.zeros(m.na))] * 3


def test_derivatives_are_differences():
    m, parts, derivative, _ = small_world()
    at = inputs(m, parts, worlds.states_of(m, 3, seed=2))
    along = random_like(at, 3)

    def moved(h):
        return jax.tree.map(lambda x, d: np.where(abs(x) > 1e20, x, x + h * d), at, along)

    h = 1e-6
    slope = derivative(at, along)[1]
    upper, lower = (derivative(moved(x), along)[0] for x in (h, -h))
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(slope, (upper - lower) / (2 * h), rtol=1e-6, atol=1e-6 * np.abs(slope).max())


def test_derivatives_are_finite_at_singular_points():
    m, parts, derivative, _ = small_world()
    at = inputs(m, parts, rest_of(m))
    for seed in range(3):
        assert np.isfinite(derivative(at, random_like(at, seed))[1]).all()


@pytest.mark.slow
def test_reverse_mode_is_forward_mode():
    m, parts, derivative, function = small_world()
    rest, elsewhere = (inputs(m, parts, x) for x in (rest_of(m), worlds.states_of(m, 3, seed=4)))

    @jax.jit
    def pullback(at, weights):
        return jax.vjp(function, *at)[1](weights)

    for at in (rest, elsewhere):
        along = random_like(at, 5)
        slope = derivative(at, along)[1]
        weights = np.random.default_rng(6).normal(size=slope.shape)
        back = pullback(at, weights)
        total = sum(
            np.sum(np.asarray(x) * y) for x, y in zip(jax.tree.leaves(back), jax.tree.leaves(along), strict=True)
        )
        # Large terms of both signs cancel: 2e-10 of their sizes was seen where paths just touch geoms.
        np.testing.assert_allclose(total, np.sum(weights * slope), atol=1e-9 * np.sum(abs(weights * slope)), rtol=0)


# Refusals


def test_what_is_not_built_is_named():
    m = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body name="b"><joint name="j" springyield="1" stiffness="1"/><geom size=".1"/></body>
        </worldbody><actuator><motor name="late" joint="j" delay=".1" nsample="9"/></actuator></mujoco>"""
    )
    found = worlds.reasons(m)
    assert found["late"] == "has a delay"
    assert found["joint 'j'"].startswith("its spring yields")
