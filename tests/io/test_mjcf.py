"""Models from MJCF files match MuJoCo in mass matrix, torques, accelerations and poses at random states."""

import copy
import dataclasses
import importlib.util
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import jaxdyn
from jaxdyn.io import RobotFileWarning, is_mjcf, left_out, load_mjcf, load_mjcf_actuators
from jaxdyn.io.mjcf import compile_mjcf
from jaxdyn.spatial import compose_poses as compose
from jaxdyn.spatial import rotation_to_quaternion
from tests.mutations import patience
from tests.oracles import MujocoOracle, relative_error

STATES = 5


@pytest.fixture(autouse=True)
def logs_elsewhere(tmp_path, monkeypatch):
    """Change to a temporary directory, because MuJoCo logs its compiler's warnings in the working directory."""
    monkeypatch.chdir(tmp_path)


# `answers` compiles everything that is compared. `quick_answers`, which most tests use, compiles a few functions and
# derives the other quantities from them.


def without(model, *fields):
    """Return the model with zeros in the fields."""
    return dataclasses.replace(model, **{name: jax.tree.map(jnp.zeros_like, getattr(model, name)) for name in fields})


def passive(model, q, v):
    return -jaxdyn.spring_torque(model, q) - model.damping * v


@jax.jit
def answers(model, q, v, tau):
    # MuJoCo treats friction loss as a constraint, which is off here.
    model = without(model, "friction")
    bare = without(model, "damping", "stiffness")
    return {
        "mass matrix": jaxdyn.crba(model, q),
        "bias": jaxdyn.rnea(bare, q, v, jnp.zeros_like(v)),
        "passive": passive(model, q, v),
        "acceleration": jaxdyn.aba(model, q, v, tau),
    }, jaxdyn.forward_kinematics(model, q)


@jax.jit
def quick_terms(model, q, v, a):
    bare = without(model, "friction", "damping", "stiffness")
    return jaxdyn.rnea(bare, q, v, a), passive(model, q, v), jaxdyn.forward_kinematics(model, q)


def quick_answers(model, q, v, tau):
    """Return the answers; torques of unit accelerations give the mass matrix, and solving with it the accelerations."""
    a = np.vstack([np.zeros(model.nv), np.eye(model.nv)])
    torques, forces, poses = jax.tree.map(np.asarray, quick_terms(model, q[:, None], v[:, None], a))
    h, M, forces = torques[:, 0], torques[:, 1:] - torques[:, :1], forces[:, 0]
    accelerations = np.linalg.solve(M, (tau - h + forces)[..., None])[..., 0]
    quantities = {"mass matrix": M, "bias": h, "passive": forces, "acceleration": accelerations}
    return quantities, jax.tree.map(lambda x: x[:, 0], poses)


class Live(MujocoOracle):
    """MuJoCo's answers for a file, in the conventions of the model that was loaded from it. Friction loss, a constraint
    in MuJoCo, is off."""

    def __init__(self, mj, model):
        self.model, self.mj = model, mj
        bits = mujoco.mjtDisableBit
        mj.opt.disableflags |= bits.mjDSBL_CONTACT | bits.mjDSBL_CONSTRAINT | bits.mjDSBL_ACTUATION
        # With the discrete inverse, `qacc` is the difference quotient of a time step.
        if mj.opt.integrator == getattr(mujoco.mjtIntegrator, "mjINT_DISCRETE", -1):
            mj.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
        self.data = mujoco.MjData(mj)
        free = np.flatnonzero(mj.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
        self.free = [(int(mj.jnt_qposadr[j]), int(mj.jnt_dofadr[j])) for j in free]

    def at(self, q, v, tau):
        J, extra = self._set(q, v)
        self.data.qfrc_applied[:] = J.T @ tau
        mujoco.mj_forward(self.mj, self.data)
        M = np.zeros((self.mj.nv, self.mj.nv))
        mujoco.mj_fullM(self.mj, self.data, M)
        M = J @ M @ J.T
        return {
            "mass matrix": M,
            "bias": J @ self.data.qfrc_bias - M @ extra,
            "passive": J @ self.data.qfrc_passive,
            "acceleration": J @ self.data.qacc + extra,
        }


def states(model, seed=0):
    """Return random `q`, `v` and torques; they ignore the limits of the joints."""
    rng = np.random.default_rng(seed)
    q, (v, tau) = rng.normal(size=(STATES, model.nq)), rng.normal(size=(2, STATES, model.nv))
    for joint, kind in zip(model.joint_names, model.topology.joint_types, strict=True):
        if kind in ("ball", "free"):
            stop = model.q_index(joint).stop
            q[:, stop - 4 : stop] /= np.linalg.norm(q[:, stop - 4 : stop], axis=1, keepdims=True)
    return q, v, tau


def check(mj, model, answer=quick_answers, tolerance=1e-9):
    """Assert that the model's answers equal MuJoCo's; the coordinates have MuJoCo's order."""
    assert (model.nq, model.nv) == (mj.nq, mj.nv)
    q, v, tau = states(model)
    live = Live(mj, model)
    quantities, poses = jax.tree.map(np.asarray, answer(model, q, v, tau))
    for k in range(STATES):
        expected = live.at(q[k], v[k], tau[k])
        for name, value in quantities.items():
            scale = np.abs(expected[name]).max()
            if name in ("bias", "passive"):
                # A vector that is zero up to rounding is compared relative to the torques of unit accelerations.
                scale = max(scale, np.abs(expected["mass matrix"]).max())
            assert np.abs(value[k] - expected[name]).max() < tolerance * scale, name
        check_frames(live, model, jax.tree.map(lambda x, k=k: x[k], poses))


def check_frames(live, model, bodies):
    """Assert that the poses of all bodies and sites of the file are right; names identify them."""
    mj, data = live.mj, live.data
    poses = [
        np.concatenate([p, rotation_to_quaternion(R)]) for R, p in zip(bodies.rotation, bodies.translation, strict=True)
    ]
    poses.append(np.array([0.0, 0, 0, 1, 0, 0, 0]))
    topology, placements = model.topology, np.asarray(model.frame_placement)
    for i in range(1, mj.nbody):
        frame = topology.frame(mj.body(i).name or f"body_{i}")
        position, quaternion = np.split(compose(poses[topology.frame_bodies[frame]], placements[frame]), [3])
        np.testing.assert_allclose(position, data.xpos[i], atol=1e-10)
        np.testing.assert_allclose(abs(quaternion @ data.xquat[i]), 1, atol=1e-10)
    for i in range(mj.nsite):
        name = mj.site(i).name or f"site_{i}"
        frame = topology.frame(name if f"{name}:site" not in topology.frame_names else f"{name}:site")
        position, quaternion = np.split(compose(poses[topology.frame_bodies[frame]], placements[frame]), [3])
        np.testing.assert_allclose(position, data.site_xpos[i], atol=1e-10)
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, quaternion)
        np.testing.assert_allclose(matrix, data.site_xmat[i], atol=1e-10)


BAR = "<geom type='box' size='.1 .2 .3' pos='.1 .02 -.3' euler='10 20 30' mass='1.5'/>"

# One world with all of these features compiles as fast as a world with one.
TOGETHER = f"""
<mujoco>
<default><joint armature=".1" damping=".3"/><default class="soft"><joint damping=".2" stiffness="3" springref="30"/>
  <default class="softer"><joint axis="0 1 0" stiffness="1"/></default></default></default>
<worldbody>
  <!-- Several joints, anchors, references. -->
  <body name="a" pos=".1 .2 .3" euler="20 10 5">
    <joint name="a1" type="slide" axis="1 2 0" ref="1.25" pos="1 1 1"/>
    <joint name="a2" axis="0 1 1" pos=".1 -.2 .3" ref="40"/>
    <joint name="a3" axis="1 0 .2" pos="-.3 .1 0" ref="-20"/>{BAR}
    <body name="b" pos="0 .3 -.2" quat=".6 .5 .4 .3">
      <joint name="b1" axis="0 0 1" pos="0 .1 .2" ref="10"/>
      <joint name="b2" type="slide" axis="0 1 1" ref="-.3" stiffness="4" springref=".2"/>{BAR}
      <body name="c" pos=".2 0 0"><joint name="c1" axis="1 1 1" ref="100"/>{BAR}</body>
    </body>
  </body>
  <!-- A ball, with a spring; springs with references. -->
  <body name="upper" pos="0 0 1" euler="10 20 30">
    <joint name="shoulder" type="ball" stiffness="3" damping=".4" armature=".05" pos=".1 .2 .05"/>{BAR}
    <body name="fore" pos="0 0 -.5">
      <joint name="elbow" axis="0 1 0" stiffness="2" springref="40" ref="15" damping=".1" pos="0 0 .1"/>{BAR}
      <body name="wrist"><joint name="slip" type="ball"/><joint name="out" type="slide" axis="0 1 1" stiffness="5"
        springref=".3"/>{BAR}</body>
    </body>
  </body>
  <!-- A free joint with spring and damping. -->
  <body name="base" pos="1 2 3" euler="10 20 30"><joint type="free" stiffness="4" armature="0"/>{BAR}
    <body name="arm" pos=".3 0 0"><joint axis="0 1 0" armature=".1"/>{BAR}</body>
  </body>
  <!-- Several trees, fixed bodies with inertia and without, massless ones, a mocap body that carries a tree. -->
  <body name="table" pos="1 0 0" euler="0 0 30">{BAR}
    <body name="first" pos="0 .1 .2"><joint/>{BAR}
      <body name="flange" pos=".1 .2 .3" euler="0 40 0">
        <inertial pos=".1 0 .2" mass=".7" fullinertia=".02 .03 .04 .001 .002 -.003"/>
        <body name="tool" pos="0 0 .2">{BAR}<body name="finger"><joint type="slide"/>{BAR}</body></body>
        <body name="empty" pos="1 1 1"/>
      </body>
      <body name="second" pos="0 .2 0"><joint axis="0 1 0"/><body name="weight" pos="0 .1 0">{BAR}</body></body>
    </body>
  </body>
  <body name="ball"><freejoint/>{BAR}<body name="hat" pos="0 0 .4">{BAR}</body></body>
  <body name="target" mocap="true" pos="3 0 0"><geom size=".1"/>
    <body name="pendulum" pos="0 0 1"><joint axis="1 0 0" pos="0 0 .2"/>{BAR}</body></body>
  <body name="cube"><freejoint/>{BAR}</body>
  <!-- Classes. -->
  <body name="d" childclass="soft"><joint/>{BAR}
    <body name="e" pos="0 0 .5"><joint class="softer"/>{BAR}<body name="f" pos="0 0 .5" childclass="softer"><joint/>
      {BAR}</body></body>
  </body>
  <!-- Sites; names, or none. -->
  <site name="world_site" pos="1 2 3"/>
  <body><joint pos="0 0 .1"/><joint axis="0 1 0"/>{BAR}<site pos="0 0 1" euler="0 20 0"/>
    <body name="hand" pos="0 .1 0"><joint axis="1 0 0" name="hand" pos="0 .2 0"/>{BAR}<site name="hand" pos=".1 0 0"/>
      <body name="joint_0"/></body></body>
  <!-- What actuators add. -->
  <body name="g"><joint name="g" armature=".1" damping=".2"/>{BAR}
    <body name="h" pos="0 .1 0"><joint name="h" type="ball" damping=".3"/>{BAR}</body></body>
</worldbody>
<actuator><motor joint="g" gear="3" armature=".02" damping=".1"/><position joint="g" gear="-2" armature=".01" kp="5"/>
  <motor joint="h" gear="2 1 0" armature=".05" damping=".4"/></actuator>
</mujoco>"""  # fmt: skip


@pytest.mark.slow
def test_many_features_together():
    text = TOGETHER
    if not hasattr(mujoco.MjModel, "actuator_armature"):
        text = re.sub("<actuator>.*</actuator>", "", text, flags=re.DOTALL)
    check(mujoco.MjModel.from_xml_string(text), load_mjcf(text), answers)


PENDULUM = f"""<mujoco>%s<worldbody>
  <body name="a" gravcomp="%s"><joint name="a" axis="0 1 0" stiffness="3" %s/>{BAR}</body>
</worldbody>%s</mujoco>"""

TEXTS = {
    "degrees, Euler sequence, inertia from shapes": """
<mujoco><compiler angle="degree" eulerseq="ZYX" inertiafromgeom="true"/>
<asset><mesh name="wedge" vertex="0 0 0  .4 0 0  0 .3 0  0 0 .5"/></asset><worldbody>
  <body name="a" euler="20 30 40"><inertial pos="5 5 5" mass="100" diaginertia="1 1 1"/>
    <joint axis="0 1 1" ref="25" range="-10 60"/><geom type="mesh" mesh="wedge" pos=".1 0 0" euler="10 0 50"/>
    <body name="b" axisangle="0 1 1 50" pos="0 .2 .2"><joint axis="1 0 0"/><geom type="capsule" fromto="0 0 0 .1 .2 .4"
      size=".05" density="500"/><geom type="ellipsoid" size=".1 .2 .3" mass=".4"/></body>
  </body>
</worldbody></mujoco>""",
    "radians, frames, replicas, balanced inertias, fused and aligned bodies": f"""
<mujoco><compiler angle="radian" balanceinertia="true" boundmass=".1" boundinertia=".001" fusestatic="true"
  alignfree="true"/>
<worldbody><frame pos="0 0 1" euler="0 .3 0"><body name="a"><joint axis="0 1 0" ref=".2" pos=".1 0 0"/>
    <inertial pos="0 .1 0" mass="1" diaginertia=".01 .02 .1"/>
    <replicate count="3" offset="0 0 .2" euler="0 0 .2"><body name="r" pos=".3 0 0"><joint axis="1 1 0"/>{BAR}
      <site name="s" pos="0 .1 0"/></body></replicate>
    <body name="plate" pos=".1 0 0">{BAR}<body name="d"><joint type="slide"/>{BAR}</body></body>
  </body></frame>
  <body name="lump" euler="0 0 .4"><freejoint/>{BAR}<geom size=".1" pos=".4 0 0"/><site name="p" pos="1 0 0"/></body>
</worldbody></mujoco>""",
    "spring from a time constant": PENDULUM % ("", 0, "springdamper='.3 .7'", ""),
    "no gravity": PENDULUM % ("<option><flag gravity='disable'/></option>", 1, "damping='.3'", ""),
    "no springs": PENDULUM % ("<option><flag spring='disable'/></option>", 0, "damping='.3'", ""),
    "no dampers": PENDULUM % ("<option gravity='1 2 -3'><flag damper='disable'/></option>", 0, "damping='1 2 3'", ""),
    "no passive force": PENDULUM
    % ("<option density='9'><flag damper='disable' spring='disable'/></option>", 1, "damping='1'", ""),
    "no constraints": PENDULUM
    % (
        "<option><flag constraint='disable'/></option>",
        0,
        "frictionloss='4'",
        "<equality><joint joint1='a'/></equality>",
    ),
    "inertial frames that MuJoCo takes for the body's": """
<mujoco><worldbody>
  <body name="a"><joint axis="0 1 0"/><inertial pos="5e-7 0 0" quat="1 2e-7 0 0" mass="1" diaginertia="1 2 2.5"/>
    <site name="s" pos="0 4e-7 0"/>
    <body name="b"><joint axis="1 0 0"/><inertial pos=".1 0 0" quat="1 0 0 5e-7" mass="1" diaginertia="1 2 2.5"/></body>
  </body>
</worldbody></mujoco>""",
    "a step that is no acceleration": PENDULUM % ("<option integrator='implicit'/>", 0, "damping='3'", ""),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name):
    check(mujoco.MjModel.from_xml_string(TEXTS[name]), load_mjcf(TEXTS[name]))


# Files of other packages


def package_files(package: str, folder: str = "", quick: tuple[str, ...] | None = None) -> list:
    """The files of a package; all but those of these names are slow tests."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"{package} is not installed"), id=package)]
    root = Path(spec.submodule_search_locations[0]) / folder
    paths = sorted(root.rglob("*.xml"))
    marks = [() if quick is None or path.name in quick else pytest.mark.slow for path in paths]
    return [pytest.param(x, id=str(x.relative_to(root)), marks=m) for x, m in zip(paths, marks, strict=True)]


def check_file(path, answer=quick_answers):
    try:
        mj = mujoco.MjModel.from_xml_path(str(path))
    except ValueError:
        # The file is not a complete model, or it needs another version of MuJoCo.
        with pytest.raises(jaxdyn.RobotFileError, match="MuJoCo's compiler refuses it"):
            load_mjcf(path)
        return
    if mj.nv == 0:
        with pytest.raises(jaxdyn.ModelError):
            load_mjcf(path)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_mjcf(path, unsupported="warn")
    left_out = [str(w.message) for w in caught if "\n- parts that act " in str(w.message)]
    if left_out:
        with pytest.raises(jaxdyn.RobotFileError, match="no model has them"):
            load_mjcf(path)
    # Switch off in MuJoCo what the loader leaves out, where MuJoCo can.
    mj.opt.density = mj.opt.viscosity = 0
    mj.tendon_stiffness[:] = mj.tendon_damping[:] = mj.tendon_armature[:] = 0
    if any("armature of the translation" in message for message in left_out):
        for j in np.flatnonzero(mj.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
            mj.dof_armature[mj.jnt_dofadr[j] : mj.jnt_dofadr[j] + 3] = 0
        mujoco.mj_setConst(mj, mujoco.MjData(mj))
    check(mj, model.without_loops(), answer)


@pytest.mark.parametrize("path", package_files("gymnasium", "envs/mujoco/assets", ("ant.xml",)))
def test_gymnasium(path):
    check_file(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", package_files("brax"))
def test_brax(path):
    check_file(path, answers)


@pytest.mark.slow
@pytest.mark.parametrize("path", package_files("dm_control"))
def test_dm_control(path):
    check_file(path, answers)


# Features that models do not support

JOINT = "<joint name='j' {}/>"


def world(joint="", body="", *, options="", tail="", kind="hinge"):
    """Return a file of two moving bodies, with extra attributes of the first body and joint and extra elements."""
    return f"""<mujoco>{options}<worldbody>
  <body name="a" {body}><joint name="j" type="{kind}" {joint}/>{BAR}<site name="s"/></body>
  <body name="b" pos="1 0 0"><joint name="k" axis="0 1 0"/>{BAR}<site name="t"/></body>
</worldbody>{tail}</mujoco>"""


TENDON = "<tendon><spatial name='cord' {}><site site='s'/><site site='t'/></spatial></tendon>{}"
TIE = "<equality><tendon {} tendon1='cord'/></equality>"
FLEX = """<deformable><flex name='cloth' dim='2' body='a a b b' vertex='0 0 0  .1 0 0  0 .1 0  .1 .1 0'
  element='0 1 2 1 3 2'/></deformable>"""

EXTENSION = """<extension><plugin plugin='mujoco.sdf.torus'><instance name='p'><config key='radius1' value='.3'/>
  <config key='radius2' value='.1'/></instance></plugin></extension>"""

# Message -> (file with the unsupported feature, file that describes the model that remains without it).
UNSUPPORTED = {
    "equality 'grip'": (world(tail=TENDON.format("", TIE.format("name='grip'"))), world()),
    "equality 'equality_0'": (world(tail=TENDON.format("", TIE.format(""))), world()),
    "tendon 'cord'; remove its limits": (world(tail=TENDON.format("range='0 1'", "")), world()),
    "tendon 'cord'; remove its limits, spring": (world(tail=TENDON.format("stiffness='1'", "")), world()),
    "tendon 'cord'; remove its limits, spring, damping": (world(tail=TENDON.format("damping='1'", "")), world()),
    "tendon 'cord'; .* friction": (world(tail=TENDON.format("frictionloss='1'", "")), world()),
    "tendon 'cord'; .* armature": (world(tail=TENDON.format("armature='1'", "")), world()),
    "tendon 'cord'": (
        world(tail=TENDON.format("", "<actuator><motor tendon='cord' armature='1'/></actuator>")),
        world(),
    ),
    "density 1.2 kg/m.3 and viscosity 0": (world(options="<option density='1.2'/>"), world()),
    "viscosity 0.1 Pa s": (world(options="<option viscosity='.1' wind='1 0 0'/>"), world()),
    r"\(gravcomp\) of body 'a'": (world(body="gravcomp='.5'"), world()),
    "quadratic and cubic damping of joint 'j'": (world("damping='1 2 0'"), world("damping='1'")),
    "quadratic and cubic stiffness of joint 'j'": (world("stiffness='1 0 2'"), world("stiffness='1'")),
    "cubic damping of joint 'k'": (
        world(tail="<actuator><motor joint='k' damping='0 0 1'/></actuator>"),
        world(),
    ),
    r"\(springyield\) of the spring of joint 'j'": (world("stiffness='1' springyield='3'"), world("stiffness='1'")),
    "flex 'cloth'": (world(tail=FLEX), world()),
    "plugin 'p'": (world(options=EXTENSION), world()),
    "actuator 'biceps'; it is a muscle": (
        world(tail="<actuator><muscle name='biceps' joint='j' lengthrange='0 1'/></actuator>"),
        world(),
    ),
    "limit of the angle of joint 'j'": (world("range='0 50'", kind="ball"), world(kind="ball")),
    "asymmetric actuatorfrcrange of joint 'j'": (world("actuatorfrcrange='-1 2'"), world()),
    "negative damping of joint 'j'": (world("damping='-1'"), world()),
    "negative armature of joint 'j'": (world("armature='-.01'"), world()),
    "negative stiffness of joint 'j'": (world("stiffness='-1'"), world()),
    "negative frictionloss of joint 'j'": (world("frictionloss='-1'"), world()),
    "armature of the translation .* of joint 'j'": (world("armature='1'", kind="free"), world(kind="free")),
    "frictionloss .* of joint 'j'": (world("frictionloss='1'", kind="free"), world(kind="free")),
}


@pytest.mark.filterwarnings("ignore:.*compiler warns.*is not rigid:jaxdyn.RobotFileWarning")
@pytest.mark.parametrize("message", UNSUPPORTED)
def test_what_no_model_has_is_refused_by_name_or_left_out_with_a_warning(message):
    text, without = UNSUPPORTED[message]
    with pytest.raises(jaxdyn.RobotFileError, match=message):
        load_mjcf(text)
    with pytest.warns(jaxdyn.RobotFileWarning, match=message.split(";")[0]) as caught:
        model = load_mjcf(text, unsupported="warn")
    assert sum("\n- parts that act (1): " in str(w.message) for w in caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jaxdyn.LeftOutWarning)
        expected = load_mjcf(without)
    if "armature of the translation" in message:
        # The armature of the rotation remains.
        expected = eqx.tree_at(lambda m: m.armature, expected, expected.armature.at[3:6].set(1.0))
    assert eqx.tree_equal(*(jax.tree.map(np.asarray, m) for m in (model, expected)))


def test_all_that_no_model_has_is_listed_at_once():
    text = world("damping='1 2 0'", body="gravcomp='1'", options="<option density='2'/>")
    with pytest.raises(jaxdyn.RobotFileError) as caught:
        load_mjcf(text)
    message = str(caught.value)
    assert message.count("\n- ") == 3
    assert all(part in message for part in ("MJCF text", "joint 'j'", "body 'a'", "density 2", "unsupported='warn'"))
    with pytest.warns(jaxdyn.RobotFileWarning) as warned:
        load_mjcf(text, unsupported="warn")
    (warning,) = warned
    assert "parts that act (3): " in str(warning.message)
    assert warning.filename == __file__


def test_compiled_models_that_no_file_gives():
    """A script can set an `MjModel`'s arrays to values that MuJoCo's compiler does not produce."""
    mj = mujoco.MjModel.from_xml_string(world(kind="free"))
    mj.dof_damping[:3] = 1, 2, 3
    with pytest.raises(jaxdyn.RobotFileError, match=r"uneven damping .* of joint 'j'"):
        load_mjcf(mj)
    mj.dof_damping[:3] = 2
    mj.dof_armature[3:6] = 0.1, 0.2, 0.3
    check(mj, load_mjcf(mj))


def test_what_does_not_act_is_no_obstacle():
    inert = TENDON.format("", "<actuator><motor tendon='cord'/></actuator>")
    idle = "<equality><weld body1='a' body2='b' active='false'/></equality>"
    contact = "<contact><exclude body1='a' body2='b'/><pair geom1='g' geom2='g2'/></contact>"
    geoms = BAR.replace("<geom", "<geom name='g'"), BAR.replace("<geom", "<geom name='g2'")
    text = world("springyield='3'", options="<option wind='1 2 3' magnetic='1 0 0'/>", tail=inert + idle + contact)
    text = text.replace(BAR, geoms[0], 1).replace(BAR, geoms[1], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", jaxdyn.LeftOutWarning)
        # In NumPy: JAX would compile a comparison for each shape.
        assert eqx.tree_equal(*(jax.tree.map(np.asarray, load_mjcf(x)) for x in (text, world())))


def test_plugins_that_exert_no_passive_force():
    pid = "<extension><plugin plugin='mujoco.pid'/></extension>"
    text = world(options=pid, tail="<actuator><plugin name='p' plugin='mujoco.pid' joint='j'/></actuator>")
    assert eqx.tree_equal(load_mjcf(text), load_mjcf(world()))
    with pytest.raises(jaxdyn.RobotFileError, match="'p', which is a plugin"):
        load_mjcf_actuators(text)


def test_only_the_two_ways_to_treat_what_is_unsupported():
    with pytest.raises(jaxdyn.ModelError, match="unsupported is 'ignore'"):
        load_mjcf(world(), unsupported="ignore")
    with pytest.raises(jaxdyn.ModelError, match="unsupported is 'ignore'"):
        load_mjcf_actuators(world(), unsupported="ignore")


# Reading


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<mujoco", "MJCF text: MuJoCo's compiler refuses it"),
        ("<mujoco><worldbody><body><joint/></body></worldbody></mujoco>", "mass and inertia of moving bodies"),
        ("\n\n<mujoco>\n<worldbody>\n<bodi/></worldbody></mujoco>", "Schema violation.*'bodi', line 5"),
        ("<other/>", "Unrecognized XML model type"),
        ("<!-- <mujoco> --><robot name='r'><link name='l'/></robot>", "load_urdf"),
        ("<?xml version='1.0'?><robot name='r'><link name='l'/></robot>", "load_urdf"),
        ("<mujoco><include file='nowhere.xml'/></mujoco>", "nowhere.xml"),
        ("<mujoco>\ud800</mujoco>", "refuses it"),
        ("<mujoco>\0</mujoco>", "refuses it"),
        ("nowhere.xml", "cannot read the robot's file 'nowhere.xml': No such file"),
        ("a\0b", "cannot read the robot's file"),
        ("x" * 5000, "cannot read the robot's file"),
        (Path(__file__).parent, "cannot read the robot's file"),
        (3, "a mujoco.MjModel is needed, not int"),
        (None, "a mujoco.MjModel is needed, not NoneType"),
    ],
)
def test_what_cannot_be_read(text, message):
    for load in (load_mjcf, load_mjcf_actuators):
        with pytest.raises(jaxdyn.RobotFileError, match=message):
            load(text)


def test_nothing_moves():
    with pytest.raises(jaxdyn.ModelError, match="no moving body") as caught:
        load_mjcf("<mujoco/>")
    assert "MJCF text" in caught.value.__notes__[0]


def test_mangled_text_raises_nothing_else():
    text, rng = TEXTS["degrees, Euler sequence, inertia from shapes"], np.random.default_rng(0)
    read = 0
    for _ in range(150):
        mangled = list(text)
        for _ in range(rng.integers(1, 4)):
            place = rng.integers(len(mangled))
            mangled[place : place + rng.integers(0, 8)] = rng.choice(["", "<", "/>", "0", "-1e9", "nan", "'", "&", "é"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                load_mjcf("".join(mangled))
                read += 1
            except jaxdyn.JaxdynError:
                pass
    assert 0 < read < 150


def test_paths_text_and_compiled_models_are_the_same(tmp_path):
    (tmp_path / "joints.xml").write_text("<mujoco><default><joint armature='.2'/></default></mujoco>")
    text = world(options="<include file='joints.xml'/>")
    (tmp_path / "robot.xml").write_text("\ufeff" + text, encoding="utf-8")
    expected = load_mjcf(world("armature='.2'").replace('name="k"', "name=\"k\" armature='.2'"))
    assert eqx.tree_equal(load_mjcf(tmp_path / "robot.xml"), expected)
    assert eqx.tree_equal(load_mjcf(str(tmp_path / "robot.xml")), expected)
    assert eqx.tree_equal(load_mjcf(mujoco.MjModel.from_xml_path(str(tmp_path / "robot.xml"))), expected)
    assert eqx.tree_equal(load_mjcf("\n \ufeff" + world()), load_mjcf(world()))


def test_warnings_of_the_compiler(tmp_path):
    text = world(options="<compiler settotalmass='3'/>")
    with pytest.warns(jaxdyn.RobotFileWarning, match="MJCF text: MuJoCo's compiler warns: .*'settotalmass'") as caught:
        model = load_mjcf(text)
    np.testing.assert_allclose(model.mass.sum(), 3)
    assert caught[0].filename == __file__
    assert list(tmp_path.iterdir()) == []
    heard = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        load_mjcf(text)
    finally:
        mujoco.set_mju_user_warning(None)
    assert len(heard) == 1


def test_without_mujoco(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'jaxdyn[mjcf]'")):
        load_mjcf(world())


def test_gravity():
    gravity = "<option gravity='1 2 3'/>"
    np.testing.assert_array_equal(load_mjcf(world(options=gravity)).gravity, [1, 2, 3])
    np.testing.assert_array_equal(load_mjcf(world(options=gravity), gravity=(0, 0, -1.62)).gravity, [0, 0, -1.62])
    # Without gravity, gravity compensation has no effect.
    load_mjcf(world(body="gravcomp='1'"), gravity=np.zeros(3))
    with pytest.raises(jaxdyn.ShapeError, match="gravity"):
        load_mjcf(world(), gravity=(1, 2))


def test_limits_and_friction():
    text = world("range='-30 60' actuatorfrcrange='-5 5' frictionloss='.7' damping='.2'")
    model = load_mjcf(text)
    np.testing.assert_allclose(model.position_lower, [-np.pi / 6, -np.inf])
    np.testing.assert_allclose(model.position_upper, [np.pi / 3, np.inf])
    np.testing.assert_array_equal(model.effort_limit, [5, np.inf])
    np.testing.assert_array_equal(model.friction, [0.7, 0])
    np.testing.assert_array_equal(model.damping, [0.2, 0])
    disabled = world("frictionloss='.7'", options="<option><flag frictionloss='disable'/></option>")
    np.testing.assert_array_equal(load_mjcf(disabled).friction, 0)
    switched_off = world("range='-30 60' limited='false'", options="<compiler autolimits='false'/>")
    assert not np.isfinite(load_mjcf(switched_off).position_upper).any()


def test_names():
    model = load_mjcf(TOGETHER)
    assert {"a:a1", "a:a2", "a:a3", "a"} <= set(model.topology.frame_names)
    assert model.frames["a"].body == "a:a3"
    np.testing.assert_allclose(model.frames["a"].placement[:3], [0.3, -0.1, 0])
    # A body whose joint lies at its origin keeps its name; a fixed body becomes a frame with its name.
    assert {"b", "c", "first", "finger"} <= set(model.body_names)
    assert model.frames["tool"].body == "first"
    assert model.frames["world_site"].body == "world"
    unnamed = [name for name in model.joint_names if name.startswith("joint_")]
    assert len(unnamed) == 13
    assert "hand" in model.joint_names
    body = next(n for n in model.body_names if re.fullmatch(r"body_\d+", n))
    assert model.frames["hand:site"].body == "hand:hand"
    assert model.frames["hand"].body == "hand:hand"
    assert model.frames["site_1"].body == body


def test_links_keep_their_inertia():
    """Link parameters equal the file's inertias in the file's frames, even where the model's bodies differ."""
    model, mj = load_mjcf(TOGETHER), mujoco.MjModel.from_xml_string(TOGETHER)
    for name in ("a", "c", "upper", "flange", "tool", "cube", "weight"):
        i = mj.body(name).id
        R = np.zeros(9)
        mujoco.mju_quat2Mat(R, mj.body_iquat[i])
        R = R.reshape(3, 3)
        inertia = jaxdyn.BodyInertia(mj.body_mass[i], mj.body_ipos[i], R @ np.diag(mj.body_inertia[i]) @ R.T)
        np.testing.assert_allclose(model.link_parameters(name), inertia.parameters(), atol=1e-12)


# Round trips through the writer


def without_free_joint_effects(model):
    """Remove the free joints' armature, friction and placement, because MuJoCo uses the world's axes for them."""
    free = np.array([t == "free" for t in model.topology.joint_types])
    mask = np.repeat(~free, np.diff(model.topology.v_starts)).astype(float)
    placement = np.where(free[:, None], [0.0, 0, 0, 1, 0, 0, 0], model.joint_placement)
    return eqx.tree_at(
        lambda m: (m.armature, m.friction, m.joint_placement),
        model,
        (model.armature * mask, model.friction * mask, jnp.asarray(placement)),
    )


def thick(model):
    """Give every body inertia about all axes, as MuJoCo requires."""
    return eqx.tree_at(lambda m: m.inertial_parameters, model, model.inertial_parameters.at[:, [4, 6, 9]].add(1e-3))


KINDS = ("free", "revolute", "prismatic", "universal", "continuous", "cylindrical", "planar", "ball")

SAMPLES = {
    "pendulum": lambda: thick(jaxdyn.samples.pendulum()),
    "double_pendulum": lambda: thick(jaxdyn.samples.double_pendulum()),
    "cartpole": lambda: thick(jaxdyn.samples.cartpole()),
    "acrobot": lambda: thick(jaxdyn.samples.acrobot()),
    "arm": jaxdyn.samples.arm,
    "quadruped": jaxdyn.samples.quadruped,
    "chain": lambda: jaxdyn.samples.chain(5),
    "tree": lambda: without_free_joint_effects(jaxdyn.samples.random_tree(jax.random.key(3), 12, KINDS)),
}


@pytest.mark.filterwarnings("ignore::jaxdyn.PhysicalityWarning")
@pytest.mark.parametrize("name", SAMPLES)
def test_round_trip(name):
    """A joint with several axes becomes a chain of massless bodies that ends with the body itself."""
    model = SAMPLES[name]()
    loaded = load_mjcf(jaxdyn.to_mjcf(model))
    bodies = [loaded.topology.body(name) for name in model.body_names]
    first = [0, *(b + 1 for b in bodies[:-1])]
    rows = {"inertial_parameters": bodies, "joint_placement": first}
    for field in ("joint_placement", "joint_axis", "inertial_parameters", "armature", "damping", "friction", "gravity"):
        value, expected = np.asarray(getattr(loaded, field)), np.asarray(getattr(model, field))
        value = value[rows[field]] if field in rows else value
        if field == "joint_axis":
            expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        if field == "joint_placement":
            expected = np.where(
                (expected[:, 3:4] < 0) != (value[:, 3:4] < 0), expected * [1, 1, 1, -1, -1, -1, -1], expected
            )
        assert relative_error(value[None], expected[None]) < 1e-12, field
    chained = np.setdiff1d(np.arange(loaded.nb), bodies)
    assert not np.asarray(loaded.inertial_parameters)[chained].any()
    assert (loaded.nq, loaded.nv) == (model.nq, model.nv)
    kinds = np.repeat(model.topology.joint_types, np.diff(model.topology.v_starts))
    for field in ("position_lower", "position_upper"):
        np.testing.assert_allclose(getattr(loaded, field), getattr(model, field), rtol=1e-15, err_msg=field)
    written = (kinds != "free") & (kinds != "ball") & (np.asarray(model.effort_limit) > 0)
    expected = np.where(written, model.effort_limit, np.inf)
    np.testing.assert_allclose(loaded.effort_limit, expected, rtol=1e-15)


def test_limits_are_written_and_those_that_cannot_be_are_named():
    builder, ball = jaxdyn.ModelBuilder(), jaxdyn.BodyInertia.sphere(1.0, 0.1)
    joints = {
        "hip": jaxdyn.Joint("revolute", lower=-0.5, effort_limit=3.0),
        "slide": jaxdyn.Joint("prismatic", (1, 0, 0), lower=0.1, upper=0.2, velocity_limit=2.0),
        "pair": jaxdyn.Joint("cylindrical", lower=[-1, -np.inf], upper=[1, np.inf], effort_limit=[4, np.inf]),
        "stuck": jaxdyn.Joint("revolute", lower=0.3, upper=0.3),
        "ankle": jaxdyn.Joint("ball", effort_limit=5.0),
    }
    parent = "world"
    for name, joint in joints.items():
        builder.add_body(f"{name}_link", parent, dataclasses.replace(joint, name=name), (0, 0, 0.1), ball)
        parent = f"{name}_link"
    model = builder.build()
    with pytest.warns(RobotFileWarning) as caught:
        text = jaxdyn.to_mjcf(model, actuators=(), shapes=())
    (message,) = [str(w.message) for w in caught]
    wanted = "velocity limits of joint 'slide'; ranges of joint 'stuck'; effort limits of joint 'ankle'"
    assert message.endswith(wanted)
    m = mujoco.MjModel.from_xml_string(text)
    assert m.jnt_limited.tolist() == [1, 1, 1, 0, 0, 0]
    np.testing.assert_allclose(m.jnt_range[1:3], [[0.1, 0.2], [-1, 1]])
    assert m.jnt_range[0, 0] == -0.5
    assert m.jnt_range[0, 1] > 1e12
    np.testing.assert_allclose(m.jnt_actfrcrange[[0, 2]], [[-3, 3], [-4, 4]])
    assert m.jnt_actfrclimited.tolist() == [1, 0, 1, 0, 0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare = mujoco.MjModel.from_xml_string(jaxdyn.to_mjcf(model, limits=False, actuators=(), shapes=()))
    assert not bare.jnt_limited.any()
    assert not bare.jnt_actfrclimited.any()


# Actuators

ACTUATED = f"""<mujoco><worldbody>
  <body name="a"><joint name="j"/>{BAR}<body name="b"><joint name="k" type="slide" ref=".2"/>{BAR}
    <body name="c"><joint name="l" type="ball"/>{BAR}</body></body></body>
</worldbody><actuator>
  <motor name="motor" joint="j" gear="50" ctrlrange="-1 1"/>
  <position name="position" joint="k" kp="7" kv=".3" gear="2" forcerange="-4 5"/>
  <velocity name="velocity" joint="j" kv="3"/>
  <damper name="damper" joint="j" kv="2" ctrlrange="0 1"/>
  <intvelocity name="intvelocity" joint="k" kp="2" actrange="-1 1"/>
  <general joint="k" gaintype="affine" gainprm="1 2 3" biastype="affine" biasprm="4 5 6" dyntype="none"/>
  <motor name="turn" joint="l" gear="1 2 3"/>
  <position name="filtered" joint="j" kp="3" timeconst=".1"/>
</actuator></mujoco>"""


def test_actuators():
    actuators = load_mjcf_actuators(ACTUATED)
    kinds = [(a.name, a.kind, a.joint) for a in actuators]
    assert kinds == [
        ("motor", "motor", "j"),
        ("position", "position", "k"),
        ("velocity", "velocity", "j"),
        ("damper", "damper", "j"),
        ("intvelocity", "intvelocity", "k"),
        ("actuator_5", "general", "k"),
        ("turn", "motor", "l"),
        ("filtered", "position", "j"),
    ]
    by_name = {a.name: a for a in actuators}
    assert by_name["motor"].gear == (50.0,)
    assert by_name["motor"].control_range == (-1.0, 1.0)
    assert by_name["position"].control_range is None
    assert by_name["position"].force_range == (-4.0, 5.0)
    assert (by_name["position"].kp, by_name["position"].kv) == (7, 0.3)
    assert by_name["position"].terms == ((7, 0, 0), (0, -7, -0.3))
    assert by_name["actuator_5"].terms == ((1, 2, 3), (4, 5, 6))
    assert by_name["turn"].gear == (1.0, 2.0, 3.0)
    assert by_name["intvelocity"].activation_range == (-1.0, 1.0)
    assert (by_name["filtered"].dynamics_type, by_name["filtered"].time_constant) == ("filterexact", 0.1)
    assert load_mjcf_actuators(mujoco.MjModel.from_xml_string(ACTUATED)) == actuators


def test_actuators_and_shapes_are_written_or_named():
    model, actuators = load_mjcf(ACTUATED), load_mjcf_actuators(ACTUATED)
    with pytest.warns(
        jaxdyn.LeftOutWarning, match=r"no actuators and shapes, .* give actuators=\.\.\., shapes=\.\.\., or \(\)"
    ):
        jaxdyn.to_mjcf(model)
    placed, half = jaxdyn.SE3(np.diag([1.0, -1, -1]), np.array([0.1, 0.2, 0.3])), [0.1, 0.2, 0.3]
    shapes = [
        jaxdyn.ContactShape("a", jaxdyn.Sphere(0.1), (0.0, 0.0, 0.4)),
        jaxdyn.ContactShape("b", jaxdyn.Capsule(0.1, 0.2), placed),
        jaxdyn.ContactShape("b", jaxdyn.Cylinder(0.1, 0.2)),
        jaxdyn.ContactShape("c", jaxdyn.Box(half)),
        jaxdyn.ContactShape("world", jaxdyn.Ellipsoid(half)),
        jaxdyn.ContactShape("c", jaxdyn.Points([[0.0, 0, 0.1], [0, 0, 0.2]])),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = jaxdyn.to_mjcf(model, actuators=actuators, shapes=shapes)
    assert load_mjcf_actuators(text) == actuators
    m = mujoco.MjModel.from_xml_string(text)
    np.testing.assert_allclose(m.body_mass[1:], model.inertial_parameters[:, 0])
    # The geoms of the world come first.
    kinds = [mujoco.mjtGeom(x).name.removeprefix("mjGEOM_").lower() for x in m.geom_type]
    assert kinds == ["ellipsoid", "sphere", "capsule", "cylinder", "box", "sphere", "sphere"]
    assert m.geom_bodyid.tolist() == [0, 1, 2, 2, 3, 3, 3]
    np.testing.assert_allclose(m.geom_size[[0, 2, 4]], [half, [0.1, 0.2, 0], half])
    np.testing.assert_allclose(m.geom_pos[[1, 2, 5]], [[0, 0, 0.4], placed.translation, [0, 0, 0.1]])
    np.testing.assert_allclose(np.abs(m.geom_quat[2]), [0, 1, 0, 0], atol=1e-12)
    wrong = {"shapes": [[jaxdyn.Sphere(0.1)], [shapes[0]._replace(link="none")]]}
    wrong["actuators"] = [["motor"], [dataclasses.replace(actuators[0], joint="none")]]
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(jaxdyn.JaxdynError, match=r"to_mjcf: element 0|`actuators\[0\]`|named 'none'"):
                jaxdyn.to_mjcf(model, **{name: value})


def test_torques_of_actuators_as_documented():
    actuators, model = load_mjcf_actuators(ACTUATED), load_mjcf(ACTUATED)
    mj = mujoco.MjModel.from_xml_string(ACTUATED)
    data = mujoco.MjData(mj)
    for q, v, _ in zip(*states(model), strict=True):
        data.qpos[:], data.qvel[:] = q, v
        data.ctrl[:] = np.random.default_rng(1).normal(size=mj.nu)
        data.act[:] = 0.3
        mujoco.mj_forward(mj, data)
        tau, state = np.zeros(model.nv), iter(data.act)
        for actuator, control in zip(actuators, data.ctrl, strict=True):
            g, rows = np.array(actuator.gear), model.v_index(actuator.joint)
            position = q[model.q_index(actuator.joint)]
            # The ball's actuator does not depend on its length.
            length, speed = g @ position if len(position) == 1 else 0.0, g @ v[rows]
            free, (gain, bias) = (-np.inf, np.inf), actuator.terms
            w = np.clip(control, *actuator.control_range or free)
            w = w if actuator.dynamics_type == "none" else next(state)
            terms = 1.0, length, speed
            tau[rows] += g * np.clip(np.dot(gain, terms) * w + np.dot(bias, terms), *actuator.force_range or free)
        np.testing.assert_allclose(tau, data.qfrc_actuator, atol=1e-12)


@pytest.mark.parametrize(
    ("actuator", "message"),
    [
        ("<motor name='m' tendon='cord'/>", "'m', which acts on a tendon"),
        ("<motor site='s'/>", "'actuator_0', which acts on a site"),
        ("<motor name='m' joint='free'/>", "'m', which acts on a free joint.*f_ext"),
        ("<motor name='m' jointinparent='ball'/>", "'m', which acts on a ball joint along axes of the parent"),
        ("<muscle name='m' joint='j' lengthrange='0 1'/>", "'m', which has gain 'muscle'"),
        ("<general name='m' joint='j' dyntype='user'/>", "'m', which has .* dynamics 'user'"),
        ("<motor name='m' joint='j' delay='.1' nsample='60'/>", "'m', which has a delay"),
        ("<motor name='m' joint='j' group='3'/>", "'m', which is disabled"),
    ],
)
def test_actuators_that_are_not_read(actuator, message):
    text = f"""<mujoco><option actuatorgroupdisable="3"/><worldbody>
      <body><joint name="j"/>{BAR}<site name="s"/><site name="t" pos="1 0 0"/></body>
      <body><joint name="ball" type="ball"/>{BAR}</body><body><joint name="free" type="free"/>{BAR}</body>
    </worldbody><tendon><spatial name="cord"><site site="s"/><site site="t"/></spatial></tendon>
    <actuator>{actuator}<motor name="plain" joint="j"/></actuator></mujoco>"""
    with pytest.raises(jaxdyn.RobotFileError, match=message):
        load_mjcf_actuators(text)
    with pytest.warns(jaxdyn.RobotFileWarning, match=message) as caught:
        (actuator_read,) = load_mjcf_actuators(text, unsupported="warn")
    assert actuator_read.name == "plain"
    assert len(caught) == 1


# Which files are MJCF


@pytest.mark.parametrize("beginning", ["<!--", "<!-->", "<!-- -->", "<?", "<!", "<a><!--"])
def test_the_root_element_is_found_in_a_time_proportional_to_the_length(beginning):
    text = beginning * (2**20 // len(beginning))
    with patience(2):
        assert not is_mjcf(text)


def test_the_root_element_says_whether_a_file_is_mjcf(tmp_path):
    # MuJoCo reads comments with two hyphens inside, which XML forbids.
    before = '\ufeff\n<?xml version="1.0"?>\n<!-- <robot> -- -->\n<!DOCTYPE mujoco>'
    for tag, expected in (("mujoco", True), ("mujocoinclude", True), ("robot", False), ("mujocos", False)):
        text = f"{before}<{tag} model='<robot>'/>"
        path = tmp_path / "file.xml"
        path.write_text(text)
        assert is_mjcf(text) == is_mjcf(path) == expected
    assert not is_mjcf("<!-- <mujoco> -->")
    assert not is_mjcf(tmp_path / "none.xml")


# What models leave out

RICH = """<mujoco>{}<worldbody><geom name="floor" type="plane" size="1 1 .1"/><camera name="eye"/><light name="sun"/>
  <body name="arm"><joint name="hinge" axis="0 1 0" range="-90 90" frictionloss=".1"/><geom name="rod" size=".1"/>
    <body name="hand"><joint name="wrist" type="slide"/><geom name="palm" size=".2"/>
      <geom name="paint" size=".1" contype="0" conaffinity="0"/></body></body>
</worldbody><actuator><position name="servo" joint="hinge" kp="3"/><motor name="motor" joint="wrist"/></actuator>
<sensor><jointpos name="angle" joint="hinge"/></sensor><keyframe><key name="home"/></keyframe></mujoco>"""


def test_what_acts_and_is_left_out_is_named_once():
    with pytest.warns(jaxdyn.LeftOutWarning) as caught:
        load_mjcf(RICH.format(""))
    (warning,) = caught
    first, *lines = str(warning.message).splitlines()
    assert first.startswith("MJCF text: the model leaves out")
    assert [line.split(";")[0] for line in lines] == [
        "- geoms that may touch others (3): 'floor', 'rod', 'palm'",
        "- ranges of joints (1): 'hinge'",
        "- actuators with torque at zero control (1): 'servo'",
    ]
    parts = {part.kind: (part.names, part.acts) for part in left_out(RICH.format(""))}
    assert parts["actuators of other kinds"] == (("'motor'",), False)
    assert parts["friction loss as a constraint"] == (("'hinge'",), False)
    assert {"sensors", "keyframes", "cameras", "lights"} < set(parts)


def test_what_a_flag_disables_is_not_left_out():
    disabled = ("contact", "limit", "actuation")
    flags = " ".join(f'{name}="disable"' for name in disabled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_mjcf(RICH.format(f"<option><flag {flags}/></option>"))
    for name, kind in zip(disabled, ("geoms that", "ranges of", "actuators with"), strict=True):
        parts = left_out(RICH.format(f'<option><flag {name}="disable"/></option>'))
        assert not any(part.kind.startswith(kind) for part in parts)


def test_geoms_of_a_body_and_its_parent_do_not_touch():
    """MuJoCo's own list of contacts in a configuration where all geoms overlap is the reference."""
    text = RICH.format("").replace('<geom name="floor" type="plane" size="1 1 .1"/>', "")
    mj = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(mj)
    mujoco.mj_forward(mj, data)
    assert data.ncon == 0
    assert not any(part.kind.startswith("geoms") for part in left_out(text))
    mj.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_FILTERPARENT
    mujoco.mj_forward(mj, data)
    assert data.ncon > 0
    assert any(part.kind.startswith("geoms") for part in left_out(mj))


# Numbers that no robot has

INERTIAL = "<inertial pos='0 0 0' mass='1' diaginertia='1 1 1'/>"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e14", "1e39", "1e200", "1e308"])
@pytest.mark.parametrize(
    ("element", "attribute", "old"),
    [
        ("body", "pos", ""),
        ("joint", "pos", ""),
        ("joint", "damping", ""),
        ("joint", "armature", ""),
        ("joint", "stiffness", ""),
        ("joint", "frictionloss", ""),
        ("joint", "ref", ""),
        ("inertial", "pos", "0 0 0"),
        ("inertial", "mass", "1"),
        ("inertial", "diaginertia", "1 1 1"),
    ],
)
def test_numbers_that_no_robot_has_are_refused_by_element_attribute_and_value(element, attribute, old, value):
    count = 3 if attribute in ("pos", "diaginertia") else 1
    numbers = " ".join([value] * count)
    body = f"<body name='a'><joint name='j'/>{INERTIAL}</body>"
    if old:
        body = body.replace(f"{attribute}='{old}'", f"{attribute}='{numbers}'")
    else:
        body = body.replace(f"<{element} ", f"<{element} {attribute}='{numbers}' ")
    text = f"<mujoco>\n<worldbody>\n{body}</worldbody></mujoco>"
    with pytest.raises(jaxdyn.RobotFileError) as caught:
        load_mjcf(text)
    assert f"{attribute}='{numbers}' of <{element}> in line 3" in str(caught.value)


def test_ranges_beyond_all_motion_are_no_limits():
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", jaxdyn.LeftOutWarning)
        model = load_mjcf(world("range='-1e300 1e300'", options="<compiler angle='radian'/>"))
    assert model.position_lower[0] == -np.inf
    assert model.position_upper[0] == np.inf


def test_compiled_models_with_numbers_that_no_robot_has():
    mj = mujoco.MjModel.from_xml_string(world())
    mj.body_inertia[1] = np.nan
    with pytest.raises(jaxdyn.RobotFileError, match=r"body 'a': inertia .* is nan nan nan"):
        load_mjcf(mj)


EVERY_KIND = """<mujoco><asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/>
<hfield name="h" nrow="3" ncol="3" size="1 1 1 .1" elevation="0 1 0 1 0 1 0 1 0"/></asset><worldbody>
<geom name="floor" type="plane" size="1 1 1"/><geom type="hfield" hfield="h"/><body mocap="true"/>
<body name="b"><joint name="j"/><geom name="ball" size=".1"/><geom type="mesh" mesh="m"/><site name="s"/></body>
</worldbody><contact><pair geom1="floor" geom2="ball"/></contact><tendon><fixed><joint joint="j" coef="1"/></fixed>
</tendon><equality><connect body1="b" anchor="0 0 0"/></equality><actuator><motor joint="j"/></actuator>
<sensor><jointpos joint="j"/></sensor><keyframe><key/></keyframe></mujoco>"""
UNREAD_NUMBERS = {"bvh_aabb", "geom_rgba", "site_rgba", "tendon_rgba"}
UNREAD_NUMBERS |= {f"opt.{x}_tolerance" for x in ("ccd", "ls", "noslip", "sleep")} | {"opt.tolerance"}


def numbers_of(mj) -> dict[str, Any]:
    """All fields of a compiled model and its options that have floating-point numbers."""
    found = {name: getattr(mj, name) for name in dir(mj) if not name.startswith("_")}
    found |= {f"opt.{name}": getattr(mj.opt, name) for name in dir(mj.opt) if not name.startswith("_")}
    arrays = {name: x for name, x in found.items() if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size}
    return arrays | {name: x for name, x in found.items() if isinstance(x, float)}


def test_compiled_models_with_nan_in_any_field_that_is_read_are_refused():
    original = mujoco.MjModel.from_xml_string(EVERY_KIND)
    assert len(numbers_of(original)) > 100
    accepted, reasons = set(), {}
    for name, values in numbers_of(original).items():
        mj = copy.copy(original)
        if isinstance(values, float):
            setattr(mj.opt, name.removeprefix("opt."), np.nan)
        else:
            numbers_of(mj)[name].flat[-1] = np.nan
        try:
            compile_mjcf(mj)
            accepted.add(name)
        except jaxdyn.RobotFileError as error:
            reasons[name] = str(error)
    assert all("nan" in reason for reason in reasons.values())
    assert accepted == UNREAD_NUMBERS
    # Limits, but no other numbers, may be infinite.
    mj = copy.copy(original)
    for name in ("jnt_range", "actuator_ctrlrange", "actuator_forcerange", "sensor_cutoff", "body_invweight0"):
        getattr(mj, name)[:] = np.inf
    compile_mjcf(mj)
    mj.geom_margin[1] = np.inf
    with pytest.raises(jaxdyn.RobotFileError, match="geom 'geom_1': margin is inf"):
        compile_mjcf(mj)


def test_nan_in_files_is_refused_whoever_hears_the_warnings_of_mujoco():
    heard = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        with pytest.raises(jaxdyn.RobotFileError, match=r"NaN stands for a number.*margin='nan' of <geom>"):
            load_mjcf(EVERY_KIND.replace('name="ball"', 'name="ball" margin="nan"'))
        assert mujoco.get_mju_user_warning() == heard.append
    finally:
        mujoco.set_mju_user_warning(None)
    assert len(heard) == 1


@pytest.mark.parametrize("room", ["nkey='100000'", "nuserdata='1000000000'", "nuser_geom='100000000'"])
def test_files_that_make_room_for_very_many_things_are_refused(room):
    text = EVERY_KIND.replace("<asset>", f"\n<size {room}/><asset>", 1)
    with (
        patience(2),
        pytest.raises(jaxdyn.RobotFileError, match=f"line 2: <size> asks for {room.split('=')[0]} beyond"),
    ):
        load_mjcf(text)


@pytest.mark.parametrize(
    "inside",
    [
        "<replicate count='2'>" * 40 + "<geom size='.1'/>" + "</replicate>" * 40,
        "<replicate count='1000000000'><geom size='.1'/></replicate>",
        "<replicate count='1e400'><geom size='.1'/></replicate>",
    ],
)
def test_short_files_that_ask_for_very_many_copies_are_refused(inside):
    # A comment that XML forbids, and that MuJoCo reads.
    text = (
        f"<mujoco><!-- a -- b\n--><worldbody><body><freejoint/>\n{inside}<geom size='.1'/></body></worldbody></mujoco>"
    )
    with patience(2), pytest.raises(jaxdyn.RobotFileError, match=r"line 3.* more than 20000 copies"):
        load_mjcf(text)


def test_arrays_that_fill_the_memory_are_refused():
    asset = "<asset><texture type='2d' builtin='flat' width='1000000' height='1000000'/></asset>"
    with pytest.raises(jaxdyn.RobotFileError, match=r"<texture> asks for an array beyond 1e\+08"):
        load_mjcf(world().replace("<worldbody>", f"{asset}<worldbody>", 1))
