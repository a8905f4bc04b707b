"""Worlds beside MuJoCo: its answers at random states, and its roll-outs."""

import importlib.util
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import State, World
from jaxdyn.worlds._world_velocities import body_velocity, world_velocity

mujoco = pytest.importorskip("mujoco")

_FOLDERS = {"gymnasium": "envs/mujoco/assets", "dm_control": "suite"}
_SCENES = {
    "gymnasium": (
        *("ant", "half_cheetah", "hopper", "humanoid", "inverted_double_pendulum", "inverted_pendulum"),
        *("pusher_v5", "reacher", "swimmer", "walker2d_v5"),
    ),
    "dm_control": (
        *("acrobot", "cartpole", "cheetah", "fish", "hopper", "humanoid", "pendulum", "point_mass"),
        *("reacher", "swimmer", "walker"),
    ),
}
LOCOMOTION = [(package, name) for package, names in _SCENES.items() for name in names]
"""Worlds of packages: the package and the name of the file."""


def path_of(package: str, name: str) -> Path:
    """The file of a world of a package, of which nothing is imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(found.origin).parent / _FOLDERS[package] / f"{name}.xml"


SMALL = """
<mujoco><option cone="{cone}" impratio="2" integrator="{integrator}"/>
<default><geom friction=".7 .02 .003" solref=".015 .9" solimp=".8 .97 .004 .4 3"/></default>
<worldbody><geom type="plane" size="5 5 .1" euler="3 -4 0"/>
<body name="a" pos="0 0 .12"><freejoint/><geom type="capsule" size=".06 .1" euler="80 10 0"/>
 <body name="b" pos=".15 0 0"><joint name="h" axis=".2 1 .1" pos=".01 .02 0" range="-40 60" damping=".2"
   frictionloss=".05" solreflimit="-80 -3" margin=".05"/><geom type="sphere" size=".05" condim="4"/></body></body>
<body name="c" pos=".5 .3 .2"><joint name="s" type="slide" axis="0 .3 1" range="-.1 .02" stiffness="30"/>
 <geom type="sphere" size=".07" condim="1"/><site name="eye"/></body></worldbody>
<equality><joint joint1="s" joint2="h" polycoef="0 .1 .05 0 0" solref=".1 1"/></equality>
<actuator><motor joint="h" gear="2"/><general joint="s" gainprm="3" biastype="affine" biasprm="0 -2 -1"
 dyntype="filter" dynprm=".05"/></actuator>
<keyframe><key name="lifted" qpos="0 0 1 1 0 0 0 .1 .02" qvel="1 0 0 0 0 0 0 0" act=".3"/></keyframe>
</mujoco>"""
"""A world with rows of all laws: equality, friction loss, limits, contacts with and without friction."""

MIXED = """
<mujoco><option timestep=".002" impratio="2.5" cone="{cone}" integrator="{integrator}"/>
<default><geom friction=".7 .02 .003" solref=".015 .9" solimp=".8 .97 .004 .4 3"/></default>
<worldbody><geom type="plane" size="5 5 .1" euler="3 -4 0"/>
<body name="a" pos="0 0 .4"><freejoint/><geom type="capsule" size=".06 .15" euler="80 10 0" condim="4" density="700"/>
 <body name="b" pos=".2 0 0"><joint name="h" axis=".2 1 .1" pos=".01 .02 0" range="-40 60" limited="true" damping=".2"
   frictionloss=".05" armature=".01" ref="10" solreflimit="-80 -3" margin=".05"/>
  <geom type="capsule" size=".04 .12" condim="6" solref="-3000 -40" pos=".1 0 0" euler="0 90 0"/>
  <body name="c" pos=".25 0 0"><joint type="ball" range="0 50" limited="true" damping=".05" stiffness="1.2"/>
   <geom type="sphere" size=".07" pos=".05 0 0" condim="1" solmix="3"/>
   <site name="tip" pos=".1 0 .02" euler="10 20 30"/></body></body></body>
<body name="d" pos=".5 .3 .2"><joint name="s" type="slide" axis="0 .3 1" range="-.1 .25" limited="true"
   frictionloss=".8" solreffriction=".03 1.2" springref=".1" stiffness="30"/>
  <geom type="sphere" size=".1" priority="1" condim="3"/><site name="eye" pos="0 0 .1"/>
  <body name="e" pos="0 .2 0"><joint name="h2" axis="1 0 0" pos="0 -.1 0"/><geom type="capsule" size=".03 .08"/>
   <joint name="h3" axis="0 0 1"/></body></body>
<body name="f" pos="-.5 0 .3"><freejoint/><geom type="sphere" size=".12" condim="4" friction="1.1 .05 .01"/></body>
<body name="g" pos="-.5 .3 .4" euler="20 30 0"><freejoint/><geom type="box" size=".1 .08 .06" condim="6"/></body>
</worldbody>
<tendon><fixed name="t1" limited="true" range="-.2 .3" frictionloss=".2" stiffness="3" damping=".1"
 solreflimit=".03 1"><joint joint="h2" coef="1.3"/><joint joint="s" coef="-.7"/></fixed>
<spatial name="t2" limited="true" range="0 .9" stiffness="10"><site site="tip"/><site site="eye"/></spatial>
<fixed name="t3"><joint joint="h3" coef="2"/></fixed></tendon>
<equality><connect body1="f" body2="a" anchor=".3 0 0" solref=".05 1"/>
<weld body1="g" body2="f" torquescale=".3" solref=".04 1.1"/><connect site1="tip" site2="eye"/>
<joint joint1="h3" joint2="h2" polycoef=".1 .5 .2 .1 -.3" solimp=".7 .9 .01 .5 2"/>
<tendon tendon1="t1" tendon2="t3" polycoef="0 1 .3 0 0"/></equality>
<actuator><motor joint="h" gear="2"/><position joint="s" kp="40" kv="3" ctrlrange="-.2 .2" ctrllimited="true"/>
<velocity joint="h2" kv="2"/><general tendon="t1" gainprm="3" biastype="affine" biasprm="0 -2 -1" dyntype="filter"
 dynprm=".05"/></actuator></mujoco>"""
"""A world with every kind of row, several trees, and all numbers of directions of contacts."""


SENSORS = """<sensor><accelerometer site="tip"/><gyro site="tip"/><touch site="foot"/><force site="tip"/>
<torque site="tip"/><jointpos joint="h"/><jointlimitfrc joint="h"/><tendonlimitfrc tendon="t1"/><tendonpos tendon="t2"/>
<actuatorfrc actuator="m1"/><jointactuatorfrc joint="h"/><framelinacc objtype="body" objname="c"/>
<subtreeangmom body="a"/></sensor></mujoco>"""
"""Sensors for `MIXED`, with the site and the actuator of `with_sensors`."""


def with_sensors(text: str) -> str:
    text = text.replace("</mujoco>", SENSORS).replace('<motor joint="h"', '<motor name="m1" joint="h"')
    return text.replace('<site name="tip"', '<site name="foot" size=".3" pos=".05 0 0"/><site name="tip"')


def compiled(text: str, cone: str = "pyramidal", integrator: str = "Euler"):
    """A model of MuJoCo whose constraints are solved to the end."""
    return solved_to_the_end(mujoco.MjModel.from_xml_string(text.format(cone=cone, integrator=integrator)))


def solved_to_the_end(m):
    m.opt.tolerance, m.opt.ls_tolerance = 1e-15, 1e-10
    m.opt.iterations, m.opt.ls_iterations = 200, 200
    m.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return m


def random_states(m, count: int, seed: int = 0):
    """States on the way of roll-outs under random controls, some of them pushed: arrays of MuJoCo's `qpos`, `qvel`,
    `act`, `ctrl`, `qacc`, and `qfrc_constraint`, and of the state after a step."""
    random, out = np.random.default_rng(seed), []
    for trial in range(count):
        d = mujoco.MjData(m)
        d.qvel[:] = 0.5 * random.normal(size=m.nv)
        for _ in range(int(random.integers(20, 150))):
            d.ctrl[:] = random.normal(size=m.nu)
            mujoco.mj_step(m, d)
        d.qvel[:] += random.normal(size=m.nv) * (trial % 3 == 2)
        d.ctrl[:] = random.normal(size=m.nu)
        mujoco.mj_forward(m, d)
        before = [x.copy() for x in (d.qpos, d.qvel, d.act, d.ctrl, d.qacc, d.qfrc_constraint)]
        mujoco.mj_step(m, d)
        out.append((*before, *(x.copy() for x in (d.qpos, d.qvel, d.act))))
    return [np.array(x) for x in zip(*out, strict=True)]


def state_of(world: World, qpos, qvel, act) -> State:
    # Copies: MuJoCo writes into its arrays while JAX may still read them.
    q, v, act = (jnp.array(x, copy=True) for x in (qpos, qvel, act))
    return world.state(q, body_velocity(world.model.topology, q, v), act)


def as_mujoco(world: World, q, v):
    """Velocities as MuJoCo has them."""
    return np.asarray(world_velocity(world.model.topology, jnp.asarray(q), jnp.asarray(v)))


def accelerations_as_mujoco(world: World, state: State, a):
    """Accelerations as MuJoCo has them: the rates of its velocities."""
    a, v = np.array(a), np.asarray(state.v)
    topology = world.model.topology
    for i, kind in enumerate(topology.joint_types):
        if kind == "free":
            s = topology.v_starts[i]
            a[..., s : s + 3] += np.cross(v[..., s + 3 : s + 6], v[..., s : s + 3])
    return as_mujoco(world, state.q, a)
