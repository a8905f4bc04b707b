"""The block `MjcfActuators` against MuJoCo: torques and states of all kinds of actuators along a motion."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, ShapeError, State, UnknownNameError
from jaxdyn.simulate import Actuation, EffortLimits, MjcfActuators

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.filterwarnings("ignore::jaxdyn.io.LeftOutWarning")  # the servos, which the block has

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


def test_a_motion_with_all_kinds_is_that_of_mujoco():
    model, actuators = jaxdyn.load_mjcf(XML), jaxdyn.load_mjcf_actuators(XML)
    theirs = mujoco.MjModel.from_xml_string(XML)
    data, steps = mujoco.MjData(theirs), 150
    controls = 2 * np.sin(0.05 * np.arange(steps)[:, None] + np.arange(theirs.nu)) + 0.5
    start = State(np.array(model.random_configuration(jax.random.key(0))), np.zeros(model.nv))
    data.qpos = start.q
    q, tau, act = [start.q], [], []
    for u in controls:
        data.ctrl = u
        mujoco.mj_step(theirs, data)
        q.append(data.qpos.copy())
        tau.append(data.qfrc_actuator.copy())
        act.append(data.act.copy())
    motors = Actuation(MjcfActuators(model, actuators, DT), EffortLimits(model.effort_limit))
    policy = motors.driven_by(controls)
    motion = jaxdyn.rollout(model, start, policy, DT, steps=steps, policy_state=policy.init(start))
    np.testing.assert_allclose(motion.tau, tau, atol=1e-9)
    np.testing.assert_allclose(motion.q, q, atol=1e-10)
    (memory, _) = motion.policy_state[1]
    stateful = [i for i, a in enumerate(actuators) if a.dynamics_type != "none"]
    assert [actuators[i].name for i in stateful] == ["intvelocity", "exact", "slow"]
    np.testing.assert_allclose(memory[np.array(stateful)], act[-1], atol=1e-10)
    limits = np.abs(tau).max(axis=0)
    assert limits[0] == 6
    assert np.abs(act).max(axis=0)[0] == 0.1  # the integrator reaches its limit


def test_gains_have_batches_and_derivatives_in_single_precision():
    model, actuators = jaxdyn.load_mjcf(XML).astype(jnp.float32), jaxdyn.load_mjcf_actuators(XML)[:4]
    block = MjcfActuators(model, actuators, DT)
    states = State(jnp.tile(model.neutral(), (3, 1)), jnp.ones((3, model.nv), jnp.float32))
    assert block.init(jnp.zeros((3, 4)), states) is None

    @jax.jit
    def torque(scale):
        other = eqx.tree_at(lambda b: b.gain, block, block.gain * scale[:, None, None])
        return other(None, 0.5 * jnp.ones(4), states, 0.0)[1]

    out = torque(jnp.ones(3))
    assert out.dtype == jnp.float32
    slope = np.asarray(jax.jit(jax.jacfwd(torque))(jnp.ones(3)))
    assert slope.shape == (3, model.nv, 3)
    np.testing.assert_allclose(np.einsum("ivi->iv", slope), torque(2 * jnp.ones(3)) - out, rtol=1e-5, atol=1e-5)


def test_a_model_from_elsewhere_is_named():
    model, actuators = jaxdyn.load_mjcf(XML), jaxdyn.load_mjcf_actuators(XML)
    with pytest.raises(UnknownNameError, match="'j'"):
        MjcfActuators(jaxdyn.samples.arm(), actuators, DT)
    with pytest.raises(ModelError, match=r"dt is .*positive"):
        MjcfActuators(model, actuators, 0.0)
    other = jaxdyn.load_mjcf(f'<mujoco><worldbody><body><joint name="l"/>{GEOM}</body></worldbody></mujoco>')
    with pytest.raises(ModelError, match=r"'turn' has 3 gears, but joint 'l' .* 1 velocities"):
        MjcfActuators(other, [a for a in actuators if a.joint == "l"], DT)
    rest = State(model.neutral(), jnp.zeros(model.nv))
    with pytest.raises(ShapeError, match="controls of motor, position"):
        Actuation(MjcfActuators(model, actuators, DT)).driven_by(jnp.zeros((1, 4))).init(rest)
