"""Roll-outs of worlds: policies, samples, sensors, memory of the reverse pass, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, ShapeError, State
from jaxdyn.simulate import DivergenceError, RolloutOptions
from tests.derivatives import check_derivatives

STEPS = 12
# A body that falls on a plane, with an arm whose servo has a state.
TEXT = """
<mujoco><option timestep="0.005"/><worldbody>
  <geom type="plane" size="1 1 1"/>
  <body pos="0 0 0.06"><freejoint/><geom type="capsule" size="0.05 0.1" euler="70 0 0"/><site name="imu"/>
    <body pos="0 0 0.1"><joint name="arm" axis="1 0 0" damping="0.1"/><geom size="0.03" pos="0.1 0 0"/></body>
  </body></worldbody>
  <actuator><position joint="arm" kp="3" timeconst="0.05"/></actuator>
  <sensor><accelerometer name="acceleration" site="imu"/><jointpos name="angle" joint="arm"/></sensor>
</mujoco>"""
CONTROLS = np.random.default_rng(0).normal(size=(STEPS, 1))


@functools.cache
def world() -> jaxdyn.World:
    return jaxdyn.load_world(TEXT)


@functools.cache
def by_steps() -> tuple[list[State], np.ndarray]:
    """The states of single steps, and the accelerations that are measured at their starts."""
    states, measured = [world().state()], []
    for u in CONTROLS:
        measured.append(world().sensors(states[-1], u)["acceleration"])
        states.append(world().step(states[-1], u))
    return states, np.array(measured)


def same(got, want, atol=1e-11):
    np.testing.assert_allclose(got, want, rtol=0, atol=atol)


def test_a_roll_out_is_steps_and_its_sensors_are_those_of_the_steps():
    states, measured = by_steps()
    motion = world().rollout(world().state(), CONTROLS, sensors=True)
    for name in ("q", "v", "activation"):
        same(getattr(motion, name), [getattr(x, name) for x in states])
    same(motion.control, CONTROLS)
    same(motion.t, 0.005 * np.arange(STEPS + 1), 1e-15)
    # Accelerations of a contact are some 1e3 m/s^2.
    same(motion.sensors["acceleration"][:-1], measured, 1e-8)
    same(motion.sensors["acceleration"][-1], world().sensors(states[-1], CONTROLS[-1])["acceleration"], 1e-8)
    same(motion.sensors["angle"][:, 0], motion.q[:, -1])
    assert motion.tau is None
    assert motion.contact.converged.all()
    assert motion.contact.iterations.sum() > 0
    for a, b in zip(jax.tree.leaves(motion.final), jax.tree.leaves(states[-1]), strict=True):
        same(a, b)
    same(jaxdyn.rollout(world(), world().state(), CONTROLS).q, motion.q, 0)


def test_a_policy_that_is_held_and_thinned_samples():
    """Every other row is held for two steps, and every third of these is a sample."""
    held = np.repeat(CONTROLS[::2], 2, axis=0)
    want = world().rollout(world().state(), held, sensors=True)
    rows = jnp.asarray(CONTROLS[::2])

    def play(k, state, t):
        assert state.activation.shape == (1,)
        return k + 1, rows[k]

    options = RolloutOptions(save_every=3, checkpoint="sqrt", check=True)
    motion = world().rollout(
        State(world().start), play, steps=STEPS // 2, policy_state=0, substeps=2, sensors=True, options=options
    )
    for name in ("q", "v", "activation", "t"):
        same(getattr(motion, name), getattr(want, name)[::6])
    same(motion.control, held[::6])
    same(motion.sensors["acceleration"][:-1], want.sensors["acceleration"][:-1:6], 1e-8)
    assert motion.policy_state == STEPS // 2
    same(motion.contact.iterations.sum(), want.contact.iterations.sum(), 0)


def test_sensors_of_the_user_batches_and_no_controls():
    controls = CONTROLS * np.arange(3.0)[:, None, None]
    motion = world().rollout(world().state(), controls, sensors=lambda world, state, t: state.q[..., 2] - t)
    assert motion.q.shape == (3, STEPS + 1, 8)
    assert motion.sensors.shape == (3, STEPS + 1)
    same(motion.sensors, motion.q[..., 2] - motion.t)
    same(motion.q[1], world().rollout(world().state(), CONTROLS).q)
    still = world().rollout(State(world().start), steps=STEPS)
    same(still.q, motion.q[0])
    # One torque for all steps, and the same in each.
    torque = np.zeros((STEPS, 7))
    torque[:, -1] = 0.1
    pushed = [world().rollout(world().state(), CONTROLS, torques=x).q for x in (torque, torque[:1])]
    same(*pushed)
    assert np.abs(pushed[0] - motion.q[1]).max() > 1e-3


@pytest.mark.parametrize("checkpoint", ["none", "sqrt"])
def test_gradients_are_differences(checkpoint):
    options = RolloutOptions(checkpoint=checkpoint, save_every=3)
    start, actuators = world().state(), world().parts.actuators

    def end(gain):
        changed = jax.tree.map(lambda x: gain * x if x is actuators.gain else x, world())
        return changed.rollout(start, CONTROLS, options=options).q[-1, -1]

    check_derivatives(end, 1.0, modes=["reverse"], step=1e-5)


def test_what_is_refused():
    state, roll = world().state(), world().rollout
    wrong = {
        "takes no dt: its time step": lambda: jaxdyn.rollout(world(), state, CONTROLS, 0.01),
        "takes no integrator": lambda: jaxdyn.rollout(world(), state, CONTROLS, integrator="rk4"),
        "takes no f_ext": lambda: jaxdyn.rollout(world(), state, CONTROLS, f_ext=np.zeros((2, 6))),
        "so is steps": lambda: roll(state),
        r"controls has shape \(5, 3\), but \[..., 5, 1\]": lambda: roll(state, np.zeros((5, 3))),
        r"the policy's control has shape \(2,\)": lambda: roll(state, lambda c, x, t: (c, jnp.zeros(2)), steps=3),
        "needs dt": lambda: jaxdyn.rollout(world().model, State(world().start), np.zeros((2, 7))),
        "torques has shape": lambda: roll(state, CONTROLS, torques=np.zeros((3, 7))),
    }
    for words, call in wrong.items():
        with pytest.raises((ModelError, ShapeError), match=words):
            call()
    bad = CONTROLS.copy()
    bad[4] = np.nan
    with pytest.raises(DivergenceError, match=r"step 4 .*the torques or wrenches of that step were not finite"):
        roll(state, bad, options=RolloutOptions(check=True))


def test_single_precision_stays_single():
    motion = world().astype(np.float32).rollout(world().astype(np.float32).state(), CONTROLS.astype(np.float32))
    assert {x.dtype for x in jax.tree.leaves(motion) if x.dtype != np.int32} == {np.dtype(np.float32)}
