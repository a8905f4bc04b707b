"""What moves a world from outside, as in MuJoCo: forces on bodies and joints, mocap bodies, equality constraints that
are switched; and contacts that are too deep are counted."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, ShapeError, load_world
from tests.worlds.world_oracle import accelerations_as_mujoco, as_mujoco, solved_to_the_end

mujoco = pytest.importorskip("mujoco")
TEXT = """
<mujoco><option timestep=".004" integrator="{integrator}"/>
<worldbody><geom type="plane" size="3 3 .1"/>
<body name="hand" mocap="true" pos=".3 0 .5" quat="1 .2 0 0"><geom type="box" size=".1 .1 .02" pos="0 0 -.05"
 euler="10 0 0"/><site name="grip" pos=".02 0 .01"/><body pos="0 .1 0" euler="0 20 0"><geom size=".04"/></body></body>
<body name="a" pos="0 0 .3"><freejoint/><geom type="capsule" size=".05 .1" euler="30 40 0"/>
 <site name="top" pos="0 0 .1"/>
 <body name="b" pos=".1 0 .1"><joint name="h" axis="0 1 .2" damping=".1"/><geom type="box" size=".05 .04 .03"
  pos=".05 0 0"/><site name="tip" pos=".1 0 0"/></body></body>
<body name="c" pos=".3 0 .3"><joint name="s" type="slide" axis="0 0 1"/><geom size=".06"/></body></worldbody>
<tendon><spatial name="rope" stiffness="20" springlength=".1"><site site="grip"/><site site="tip"/></spatial></tendon>
<equality><weld name="hold" body1="hand" body2="a" solref=".03 1"/>
<joint name="gear" joint1="s" joint2="h" active="false"/>
<connect name="pin" site1="tip" site2="grip" active="false"/></equality>
<actuator><motor joint="h"/></actuator>
<sensor><accelerometer site="top"/><force site="top"/><torque site="tip"/>
<framepos objtype="site" objname="grip"/></sensor>
<keyframe><key name="moved" time="2" qpos="0 0 .4 1 0 0 0 .1 .1" mpos=".2 .1 .5" mquat="1 0 .1 0"/></keyframe>
</mujoco>"""


@functools.cache
def world_of(integrator: str):
    m = solved_to_the_end(mujoco.MjModel.from_xml_string(TEXT.format(integrator=integrator)))
    return m, load_world(m)


def test_states_have_what_is_moved_and_switched():
    m, world = world_of("Euler")
    assert world.mocap_names == ("hand",)
    assert world.equality_names == ("hold", "gear", "pin")
    assert world.body_names[3:] == ("a", "b", "c")
    assert world.state().mocap is world.state().active is None
    state = world.state(keyframe="moved")
    np.testing.assert_allclose(state.mocap, [[0.2, 0.1, 0.5, *m.key_mquat[0]]])
    assert state.time == 2
    state = world.state(mocap=np.zeros((4, 1, 7)), active=[1, 0, 1])
    assert (state.q.shape, state.active.shape, state.time.shape) == ((4, m.nq), (4, 3), (4,))
    for arguments in ({"mocap": np.zeros((2, 7))}, {"active": [1, 0]}):
        with pytest.raises(ShapeError, match=next(iter(arguments))):
            world.state(**arguments)
    with pytest.raises(ShapeError, match="wrenches"):
        world.accelerations(world.state(), wrenches=np.zeros((m.nbody, 3)))


@pytest.mark.slow
def test_mocap_bodies_that_carry_joints_are_not_moved():
    text = TEXT.replace('<body pos="0 .1 0" euler="0 20 0">', '<body><joint axis="1 0 0"/>').format(integrator="Euler")
    world = load_world(text.replace("0 0 0 .1 .1", "0 0 0 .1 .1 0"))
    with pytest.raises(ModelError, match="carry"):
        world.accelerations(world.state(keyframe="moved"))


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["Euler", "RK4"])
def test_inputs_act_as_in_mujoco(integrator):
    """Accelerations, sensors and a step with forces on bodies and joints, a moved mocap body, and other constraints."""
    m, world = world_of(integrator)
    rng = np.random.default_rng(0)
    for active in ((1, 0, 0), (0, 1, 1), (1, 1, 0)):
        d = mujoco.MjData(m)
        d.qvel[:] = rng.normal(size=m.nv)
        d.mocap_pos[:] += 0.05 * rng.normal(size=(1, 3))
        # MuJoCo normalizes it.
        d.mocap_quat[:] += 0.3 * rng.normal(size=(1, 4))
        d.eq_active[:], d.ctrl[:] = active, 0.3
        d.xfrc_applied[:], d.qfrc_applied[:] = rng.normal(size=(m.nbody, 6)), rng.normal(size=m.nv)
        for _ in range(10):
            mujoco.mj_step(m, d)
        mujoco.mj_forward(m, d)
        mocap = np.concatenate([d.mocap_pos, d.mocap_quat], axis=1)
        state = world.state(d.qpos, world.from_qvel(d.qpos, d.qvel), mocap=mocap, active=active)
        inputs = [0.3], world.from_qvel(d.qpos, d.qfrc_applied), np.array(d.xfrc_applied)
        found = accelerations_as_mujoco(world, state, world.accelerations(state, *inputs))
        np.testing.assert_allclose(found, d.qacc, atol=1e-8 * np.abs(d.qacc).max())
        values = world.sensors(state, *inputs)
        np.testing.assert_allclose(np.concatenate([*values.values()]), d.sensordata, rtol=1e-8, atol=1e-8)
        after = world.step(state, *inputs)
        mujoco.mj_step(m, d)
        np.testing.assert_allclose(after.q, d.qpos, atol=1e-10)
        np.testing.assert_allclose(as_mujoco(world, after.q, after.v), d.qvel, atol=1e-8)
        np.testing.assert_array_equal(after.mocap, mocap)


@pytest.mark.slow
def test_inputs_have_derivatives_and_batches():
    _, world = world_of("Euler")
    rng = np.random.default_rng(0)
    # Where the file has the hand, it only just touches another body.
    mocap = world.parts.bodies.mocap + np.array([0.01, 0.02, 0.03, 0, 0, 0, 0])
    state = world.state(v=rng.normal(size=world.model.nv), mocap=mocap)
    wrenches, weights = rng.normal(size=(len(world.body_names), 6)), rng.normal(size=world.model.nv)

    @jax.jit
    def weighted(wrenches, mocap):
        return world.accelerations(dataclasses.replace(state, mocap=mocap), wrenches=wrenches) @ weights

    arguments = jnp.asarray(wrenches), jnp.asarray(state.mocap)
    gradients = jax.jit(jax.grad(weighted, argnums=(0, 1)))(*arguments)
    for i, gradient in enumerate(gradients):
        direction, size = rng.normal(size=gradient.shape), 1e-6
        others = [(*arguments[:i], arguments[i] + s * direction, *arguments[i + 1 :]) for s in (size, -size)]
        ends = [weighted(*x) for x in others]
        assert np.isclose((ends[0] - ends[1]) / (2 * size), np.sum(gradient * direction), rtol=1e-5)
    several = dataclasses.replace(state, mocap=jnp.stack([state.mocap, state.mocap + 0.01]))
    both = world.rollout(several, np.zeros((3, 1)), wrenches=np.broadcast_to(wrenches, (2, 3, *wrenches.shape)))
    one = world.rollout(state, np.zeros((3, 1)), wrenches=np.broadcast_to(wrenches, (3, *wrenches.shape)))
    np.testing.assert_allclose(both.q[0], one.q, atol=1e-13)
    assert np.abs(both.q[1] - one.q).max() > 1e-6


@pytest.mark.slow
def test_contacts_that_are_too_deep_are_counted():
    world = jaxdyn.load_world("""<mujoco><worldbody><geom type="ellipsoid" size=".3 .2 .1"/>
    <body pos="0 0 1"><joint type="slide" axis="0 0 1"/><geom size=".05"/></body></worldbody></mujoco>""")
    heights = np.array([0.5, 0.09, 0.04]) - 1
    found = world.report(world.state(heights[:, None]))
    np.testing.assert_array_equal(found.deep, [0, 0, 1])
    assert found.converged.all()
