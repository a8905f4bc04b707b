"""Sweeps against slip (`noslip_iterations`) end where MuJoCo's do, with its forces, sensors and steps, and have
derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import State, load_world
from jaxdyn.io import RobotFileWarning
from tests.worlds.world_oracle import (
    MIXED,
    accelerations_as_mujoco,
    as_mujoco,
    compiled,
    random_states,
    state_of,
    with_sensors,
)

mujoco = pytest.importorskip("mujoco")
BOX = """
<mujoco><option noslip_iterations="{sweeps}" noslip_tolerance="1e-9" cone="{cone}" timestep=".004"/>
<worldbody><geom type="plane" size="5 5 1" friction=".3 .02 .001" condim="{dim}"/>
<body pos="0 0 .098"><freejoint/><geom type="box" size=".1 .12 .1" condim="{dim}"/>
 <body pos="0 0 .19"><joint axis="0 1 0" frictionloss=".05"/><geom size=".05" pos="0 0 .05"/></body></body>
</worldbody></mujoco>"""
BOXES = BOX.replace(
    "</worldbody>",
    """<body pos=".6 0 .098"><freejoint/><geom type="box" size=".1 .12 .1" condim="{dim}"/></body>
<body pos=".6 0 .29"><freejoint/><geom type="capsule" size=".1 .12" euler="90 3 0" condim="{dim}"/></body>
</worldbody>""",
)
"""Two islands, whose sweeps end at different times."""
TENDON = BOX.replace(
    "</worldbody>",
    """<body pos="3 0 2"><joint name="a" axis="0 1 0" armature="1e4"/><geom size=".1" pos=".3 0 0"/>
<body pos=".6 0 0"><joint name="b" axis="0 1 0" armature="1e4"/><geom size=".1" pos=".3 0 0"/></body></body>
</worldbody><tendon><fixed limited="true" range="-3 -2"><joint joint="a" coef="1"/><joint joint="b" coef="1"/></fixed>
</tendon>""",
)
"""Two islands, one of which a tendon at its limit holds together. It is so heavy that with its mass the sweeps of the
other one would end earlier."""
SCENES = {"one island": BOX, "two islands": BOXES, "tendon": TENDON}


def sweeping(text: str, sweeps: int) -> str:
    return text.replace("<option ", f'<option noslip_iterations="{sweeps}" ')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cone", "dim", "sweeps"),
    [
        ("one island", "pyramidal", 3, 50),
        ("tendon", "pyramidal", 4, 50),
        *(("two islands", "pyramidal", *x) for x in ((4, 50), (6, 2))),
        *(("two islands", "elliptic", *x) for x in ((3, 3), (4, 50), (6, 50))),
    ],
)
def test_boxes_stand_as_in_mujoco(name, cone, dim, sweeps):
    text = SCENES[name]
    m = compiled(text.format(cone=cone, dim=dim, sweeps=sweeps))
    soft = compiled(text.format(cone=cone, dim=dim, sweeps=0))
    world, states = load_world(m), random_states(m, 12)
    qpos, qvel, act, _, qacc, forces = states[:6]
    state = state_of(world, qpos, qvel, act)
    a, found = jax.jit(lambda at: (world.accelerations(at), world.constraint_forces(at)))(state)
    size = np.maximum(1, np.abs(qacc).max(axis=1, keepdims=True))
    np.testing.assert_allclose(accelerations_as_mujoco(world, state, a) / size, qacc / size, atol=1e-8)
    np.testing.assert_allclose(as_mujoco(world, qpos, found), forces, atol=1e-7 * np.abs(forces).max())
    # The sweeps change what they are for.
    d, changes = mujoco.MjData(soft), []
    for q, v, expected in zip(qpos, qvel, qacc, strict=True):
        d.qpos[:], d.qvel[:] = q, v
        mujoco.mj_forward(soft, d)
        changes.append(np.abs(d.qacc - expected).max())
    assert max(changes) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
@pytest.mark.parametrize("sweeps", [1, 5])
def test_all_kinds_of_rows_with_sensors_and_a_step(cone, sweeps):
    m = compiled(sweeping(with_sensors(MIXED), sweeps), cone, "implicitfast")
    world = load_world(m)
    qpos, qvel, act, ctrl, qacc, _, *after = random_states(m, 6)
    d = mujoco.MjData(m)
    for i in range(len(qpos)):
        state = state_of(world, qpos[i], qvel[i], act[i])
        a = accelerations_as_mujoco(world, state, world.accelerations(state, ctrl[i]))
        np.testing.assert_allclose(a, qacc[i], atol=1e-8 * max(1, np.abs(qacc[i]).max()))
        d.qpos[:], d.qvel[:], d.act[:], d.ctrl[:] = qpos[i], qvel[i], act[i], ctrl[i]
        mujoco.mj_forward(m, d)
        found = world.sensors(state, ctrl[i])
        values = np.concatenate([found[name] for name in world.parts.sensors.names])
        np.testing.assert_allclose(values, d.sensordata, atol=1e-8 * max(1, np.abs(d.sensordata).max()))
        end = world.step(state, ctrl[i])
        np.testing.assert_allclose(end.q, after[0][i], atol=1e-9)
        np.testing.assert_allclose(as_mujoco(world, end.q, end.v), after[1][i], atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("cone", "dim"), [("pyramidal", 4), ("elliptic", 3)])
def test_derivatives(cone, dim):
    """Forward mode, reverse mode and central differences, where those of two sizes agree."""
    m = compiled(BOXES.format(cone=cone, dim=dim, sweeps=3))
    world, (qpos, qvel, act, *_) = load_world(m), random_states(m, 6)
    rng = np.random.default_rng(0)
    weights, directions = rng.normal(size=m.nv), rng.normal(size=(3, 2 * m.nv))

    @jax.jit
    def evaluate(state, directions):
        def weighted(x):
            q, v = world.model.integrate(state.q, x[: m.nv]), state.v + x[m.nv :]
            return weights @ world.accelerations(State(q, v, state.activation, state.time))

        start = jnp.zeros(2 * m.nv)
        gradient = jax.grad(weighted)(start)
        forward = jax.vmap(lambda d: jax.jvp(weighted, (start,), (d,))[1])(directions)
        points = 1e-6 * jnp.array([1.0, -1.0, 0.5, -0.5])[:, None, None] * directions
        values = jax.vmap(jax.vmap(weighted))(points)
        differences = (values[0] - values[1]) / 2e-6, (values[2] - values[3]) / 1e-6
        return forward, directions @ gradient, *differences, jnp.linalg.norm(gradient)

    found = [evaluate(state_of(world, *case), directions) for case in zip(qpos, qvel, act, strict=True)]
    forward, backward, wide, narrow, scale = (np.array(x) for x in zip(*found, strict=True))
    np.testing.assert_allclose(forward, backward, atol=1e-9 * scale.max())
    smooth = np.abs(wide - narrow) < 1e-5 * scale[:, None]
    assert smooth.mean() > 0.6, smooth
    assert (np.abs(narrow - forward) / scale[:, None])[smooth].max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("floor", ["", '<geom type="plane" size="1 1 1"/>'])
def test_scenes_without_losses_or_any_rows(floor):
    m = compiled(
        f'<mujoco><option noslip_iterations="3"/><worldbody>{floor}<body pos="0 0 .099"><freejoint/><geom size=".1"/>'
        "</body></worldbody></mujoco>"
    )
    world, d = load_world(m), mujoco.MjData(m)
    d.qvel[:] = np.linspace(-1, 1, 6)
    mujoco.mj_forward(m, d)
    state = state_of(world, d.qpos, d.qvel, d.act)
    a = accelerations_as_mujoco(world, state, world.accelerations(state))
    np.testing.assert_allclose(a, d.qacc, atol=1e-9 * max(1, np.abs(d.qacc).max()))


def test_contacts_whose_order_is_unknown_are_warned_of():
    text = """<mujoco><option noslip_iterations="3"/><worldbody><geom name="table" type="box" size="1 1 .1"/>
    <body pos="0 0 .2"><freejoint/><geom name="can" type="cylinder" size=".05 .1"/></body></worldbody></mujoco>"""
    with pytest.warns(RobotFileWarning, match="noslip_iterations.*'can' and 'table'"):
        load_world(text)
