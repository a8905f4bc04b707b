"""A world with the actuators of an MJCF file against MuJoCo: torques and states of all kinds along a motion."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ShapeError, UnknownNameError, World

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.filterwarnings("ignore::jaxdyn.io.LeftOutWarning")  # the servos, which the world has

DT = 0.002
GEOM = '<geom type="capsule" fromto="0 0 0 .3 0 0" size=".04" mass="1"/>'
XML = f"""<mujoco><option timestep="{DT}" integrator="Euler"><flag contact="disable"/></option><worldbody>
  <body><joint name="j" axis="0 1 0" actuatorfrcrange="-6 6"/>{GEOM}
    <body pos=".3 0 0"><joint name="k" type="slide" axis="0 0 1" ref=".2"/>{GEOM}
      <body pos=".3 0 0"><joint name="l" type="ball"/>{GEOM}</body></body></body>
</worldbody><actuator>
  <motor name="motor" joint="j" gear="5" ctrlrange="-1 1" ctrllimited="true"/>
  <position name="position" joint="k" kp="70" kv=".3" gear="2" forcerange="-40 30"/>
  <velocity name="velocity" joint="j" kv=".3"/>
  <damper name="damper" joint="k" kv=".2" ctrlrange="0 1"/>
  <intvelocity name="intvelocity" joint="k" kp="2" actrange="-.1 .1"/>
  <general name="affine" joint="k" gaintype="affine" gainprm="1 2 3" biastype="affine" biasprm="4 -5 -6"/>
  <position name="turn" joint="l" kp=".01" gear="1 2 3"/>
  <position name="exact" joint="j" kp="3" timeconst=".1"/>
  <general name="slow" joint="k" dyntype="filter" dynprm=".05" gainprm="2"/>
</actuator></mujoco>"""


def world(dtype=np.float64, **options) -> World:
    model, actuators = jaxdyn.load_mjcf(XML).astype(dtype), jaxdyn.load_mjcf_actuators(XML)
    sensors = [jaxdyn.Sensor("jointactuatorfrc", joint=joint) for joint in "jk"]
    options = {"integrator": "semi_implicit_euler", "sensors": sensors, "timestep": DT} | options
    return World(model, actuators=actuators, **options)


def test_a_motion_with_all_kinds_is_that_of_mujoco():
    ours, theirs = world(), mujoco.MjModel.from_xml_string(XML)
    data, steps = mujoco.MjData(theirs), 150
    controls = 2 * np.sin(0.05 * np.arange(steps)[:, None] + np.arange(theirs.nu)) + 0.5
    start = np.array(ours.model.random_configuration(jax.random.key(0)))
    data.qpos = start
    q, tau, act = [start], [], []
    for u in controls:
        data.ctrl = u
        mujoco.mj_step(theirs, data)
        q.append(data.qpos.copy())
        tau.append(data.qfrc_actuator[:2].copy())
        act.append(data.act.copy())

    def step(state, control):
        values = ours.sensors(state, control)
        after = ours.step(state, control)
        return after, (after.q, after.activation, jnp.concatenate([values[f"jointactuatorfrc_{x}"] for x in "jk"]))

    _, (found, activation, torque) = jax.lax.scan(step, ours.state(start), controls)
    np.testing.assert_allclose(torque, tau, atol=1e-9)
    np.testing.assert_allclose(found, q[1:], atol=1e-10)
    np.testing.assert_allclose(activation, act, atol=1e-10)
    assert np.abs(tau).max(axis=0)[0] == 6
    assert np.abs(act).max(axis=0)[0] == 0.1  # the integrator reaches its limit


def test_gains_have_batches_and_derivatives_in_single_precision():
    ours = world(np.float32)
    state = ours.state(v=0.1 * jnp.ones((3, ours.model.nv)))

    @jax.jit
    def accelerations(scale):
        scaled = eqx.tree_at(lambda w: w.parts.actuators.gain, ours, ours.parts.actuators.gain * scale[:, None, None])
        return scaled.accelerations(state, 0.3 * jnp.ones(ours.nu))

    out = accelerations(jnp.ones(3))
    assert out.dtype == jnp.float32
    slope = np.asarray(jax.jit(jax.jacfwd(accelerations))(jnp.ones(3)))
    assert slope.shape == (3, ours.model.nv, 3)
    expected = (accelerations(1.01 * jnp.ones(3)) - accelerations(0.99 * jnp.ones(3))) / 0.02
    np.testing.assert_allclose(np.einsum("ivi->iv", slope), expected, rtol=1e-2, atol=0.05)


def test_a_model_from_elsewhere_is_named():
    actuators = jaxdyn.load_mjcf_actuators(XML)
    with pytest.raises(UnknownNameError, match="'j'"):
        World(jaxdyn.samples.arm(), actuators=actuators)
    other = jaxdyn.load_mjcf(f'<mujoco><worldbody><body><joint name="l"/>{GEOM}</body></worldbody></mujoco>')
    with pytest.raises(ShapeError, match=r"'turn' has a gear of 3 numbers, but its joint 'l' has 1"):
        World(other, actuators=[a for a in actuators if a.joint == "l"])
