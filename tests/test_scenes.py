"""Scenes move as in MuJoCo: accelerations, steps, and derivatives; what they do not have is refused."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scene_oracle import (
    MIXED,
    SMALL,
    accelerations_as_mujoco,
    as_mujoco,
    compiled,
    random_states,
    state_of,
    with_sensors,
)
from scene_oracle import solved_to_the_end as tight

import jaxdyn
from jaxdyn import RobotFileError, SceneOptions, SceneState, ShapeError, UnknownNameError, load_scene, native
from jaxdyn.scenes import accelerations_and_step

mujoco = pytest.importorskip("mujoco")
GYMNASIUM = ("ant", "half_cheetah", "hopper", "humanoid", "humanoidstandup", "inverted_double_pendulum")
GYMNASIUM += ("inverted_pendulum", "pusher_v5", "reacher", "swimmer", "walker2d_v5")


def relative(found, expected) -> float:
    return float((np.abs(found - expected).max(axis=-1) / np.maximum(1, np.abs(expected).max(axis=-1))).max())


def check_against_mujoco(m, count: int = 12, tolerance: float = 1e-8) -> None:
    """Accelerations and one step at random states."""
    scene = load_scene(m)
    qpos, qvel, act, control, qacc, _, *after = random_states(m, count)
    state = state_of(scene, qpos, qvel, act)
    a = scene.accelerations(state, control)
    assert relative(accelerations_as_mujoco(scene, state, a), qacc) < tolerance
    assert scene.report(state, control).converged.all()
    end = scene.step(state, control)
    found = end.q, as_mujoco(scene, end.q, end.v), end.activation
    for x, y in zip(found, after, strict=True):
        assert np.abs(np.asarray(x) - y).max(initial=0) < tolerance * max(1, np.abs(y).max(initial=0))


@functools.cache
def small(cone: str = "elliptic"):
    m = compiled(SMALL, cone)
    return m, load_scene(m), random_states(m, 8)


@pytest.mark.parametrize("cone", [pytest.param("pyramidal", marks=pytest.mark.slow), "elliptic"])
def test_accelerations_are_mujocos(cone):
    _, scene, (qpos, qvel, act, control, qacc, *_) = small(cone)
    state = state_of(scene, qpos, qvel, act)
    found = accelerations_as_mujoco(scene, state, scene.accelerations(state, control))
    assert relative(found, qacc) < 1e-8


@pytest.mark.slow
def test_a_scene_without_native_code_moves_alike():
    """XLA has the matrices of the constraints as a whole, and the check solves them once for both answers."""
    _, scene, (qpos, qvel, act, control, *_) = small()
    state = state_of(scene, qpos, qvel, act)
    with native.disabled():
        quickly = jax.jit(accelerations_and_step, compiler_options={"xla_backend_optimization_level": 0})
        a, after = quickly(scene, state, control)
    assert relative(np.asarray(a), np.asarray(scene.accelerations(state, control))) < 1e-11
    assert relative(np.asarray(after.v), np.asarray(scene.step(state, control).v)) < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast", "RK4"])
@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_a_scene_with_every_kind_of_row(cone, integrator):
    check_against_mujoco(compiled(MIXED, cone, integrator), count=24)


@pytest.mark.slow
@pytest.mark.parametrize("cone", [0, 1])
@pytest.mark.parametrize("name", GYMNASIUM)
def test_scenes_of_gymnasium(name, cone):
    folder = pytest.importorskip("gymnasium").__path__[0]
    m = mujoco.MjModel.from_xml_path(f"{folder}/envs/mujoco/assets/{name}.xml")
    m.opt.cone = cone
    check_against_mujoco(tight(m))


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["Euler", "implicit"])
def test_armature_of_free_joints(integrator):
    """It resists accelerations along the axes of the world."""
    m = mujoco.MjModel.from_xml_string(f"""
    <mujoco><option integrator="{integrator}"/><worldbody><geom type="plane" size="3 3 1"/>
    <body pos="0 0 .2"><joint name="free" type="free" armature=".7"/><geom type="capsule" size=".05 .1" pos=".1 0 0"/>
    <body pos=".2 0 0"><joint axis="0 1 0" armature=".1"/><geom size=".1"/></body></body></worldbody>
    <actuator><motor joint="free" gear="1 2 3 1 0 1"/></actuator></mujoco>""")
    check_against_mujoco(tight(m))


@pytest.mark.slow
def test_armature_of_a_body_that_carries_nothing():
    """`implicitfast` takes its gyroscopic forces implicitly."""
    m = mujoco.MjModel.from_xml_string("""
    <mujoco><option integrator="implicitfast" timestep=".01"/><worldbody>
    <body pos="0 0 .2"><joint name="free" type="free" armature=".7" damping=".1"/>
    <geom type="capsule" size=".05 .1" pos=".1 0 0"/></body></worldbody>
    <actuator><motor joint="free" gear="1 2 3 1 0 1"/></actuator></mujoco>""")
    check_against_mujoco(tight(m))


@pytest.mark.slow
def test_a_fluid_in_the_integrator_implicit():
    """Its derivatives are not symmetric; also around a free body that carries nothing."""
    shaped = 'fluidshape="ellipsoid" contype="0"'
    m = mujoco.MjModel.from_xml_string(
        f"""
    <mujoco><option timestep=".01" integrator="implicit" density="900" viscosity=".3" wind=".3 0 .1"/><worldbody>
    <body><freejoint/><geom type="box" size=".1 .2 .05" contype="0"/></body>
    <body pos="0 0 1"><freejoint/><geom type="ellipsoid" size=".1 .2 .05" {shaped}/>
    <body pos=".2 0 0"><joint axis="0 1 0" damping=".1"/><geom type="capsule" size=".03 .1" {shaped}/></body></body>
    </worldbody></mujoco>""".replace('contype="0"', 'contype="0" conaffinity="0"')
    )
    check_against_mujoco(tight(m))


@pytest.mark.slow
def test_sensors_read_what_mujocos_read():
    m = compiled(with_sensors(MIXED), "elliptic")
    scene = load_scene(m)
    qpos, qvel, act, control, *_ = random_states(m, 12)
    d, expected = mujoco.MjData(m), []
    for d.qpos[:], d.qvel[:], d.act[:], d.ctrl[:] in zip(qpos, qvel, act, control, strict=True):
        mujoco.mj_forward(m, d)
        expected.append(d.sensordata.copy())
    values = scene.sensors(state_of(scene, qpos, qvel, act), control)
    assert len(values) == m.nsensor
    found = np.concatenate([values[name] for name in scene.parts.sensors.names], axis=-1)
    size = np.abs(expected).max(axis=0)
    assert (size > 0).sum() > 20
    assert (np.abs(found - expected).max(axis=0) < 1e-7 * np.maximum(1, size)).all()


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["Euler", "implicit", "implicitfast", "RK4"])
def test_rollouts_stay_together(integrator):
    m = compiled(SMALL, "elliptic", integrator)
    scene, random, steps = load_scene(m), np.random.default_rng(0), 500
    controls, d = random.normal(size=(steps, m.nu)), mujoco.MjData(m)
    d.qvel[:] = 0.3 * random.normal(size=m.nv)
    states = scene.rollout(state_of(scene, d.qpos, d.qvel, d.act), controls)
    expected = []
    for control in controls:
        d.ctrl[:] = control
        mujoco.mj_step(m, d)
        expected.append(d.qpos.copy())
    assert states.q.shape == (steps + 1, m.nq)
    assert np.abs(np.asarray(states.q[1:]) - np.array(expected)).max() < 1e-7
    assert np.isclose(states.time[-1], d.time)


@pytest.mark.slow
def test_derivatives_are_those_of_differences():
    """Forward and reverse mode, and second derivatives, of accelerations and of a step, by the state, the control, the
    masses and the numbers of the contacts."""
    m, scene, (qpos, qvel, act, control, *_) = small()
    random, where = np.random.default_rng(0), 1
    sizes = m.nv, m.nv, m.nu, m.na, 1, 1
    direction = jnp.asarray(random.normal(size=sum(sizes)))
    weights = jnp.asarray(random.normal(size=(2, m.nv)))
    state = state_of(scene, qpos[where], qvel[where], act[where])

    def weighted(x):
        dq, dv, du, da, stiffer, heavier = jnp.split(x, np.cumsum(sizes)[:-1])
        q = scene.model.integrate(state.q, dq)
        at = SceneState(q, state.v + dv, state.activation + da, state.time)
        pairs = jax.tree.map(lambda a: a * (1 + 0.1 * stiffer), scene.parts.constraints.contacts.pairs)
        changed = eqx.tree_at(lambda s: s.parts.constraints.contacts.pairs, scene, pairs)
        model = jaxdyn.scaled(scene.model, mass=1 + 0.1 * heavier[0])
        changed = eqx.tree_at(lambda s: s.model, changed, model)
        u = control[where] + du
        return weights[0] @ changed.accelerations(at, u) + 100 * weights[1] @ changed.step(at, u).v

    x, step = jnp.zeros(len(direction)), 1e-6
    value, gradient = jax.jit(weighted), jax.jit(jax.grad(weighted))
    forward = jax.jit(lambda x: jax.jvp(weighted, (x,), (direction,))[1])(x)
    differences = (value(x + step * direction) - value(x - step * direction)) / (2 * step)
    assert np.isclose(forward, gradient(x) @ direction, rtol=1e-10)
    assert np.isclose(forward, differences, rtol=1e-5)
    second = jax.jit(lambda x: jax.jvp(jax.grad(weighted), (x,), (direction,))[1])(x)
    differences = (gradient(x + step * direction) - gradient(x - step * direction)) / (2 * step)
    assert np.abs(second - differences).max() < 1e-5 * np.abs(second).max()


def test_keyframes_and_errors():
    _, scene, _ = small()
    lifted = scene.state(keyframe="lifted")
    np.testing.assert_allclose(lifted.q, [0, 0, 1, 1, 0, 0, 0, 0.1, 0.02])
    np.testing.assert_allclose(lifted.activation, [0.3])
    assert (scene.nu, scene.na, scene.timestep) == (2, 1, 0.002)
    with pytest.raises(UnknownNameError, match="lifted"):
        scene.state(keyframe="lift")
    with pytest.raises(ShapeError, match="control"):
        scene.accelerations(lifted, np.zeros(3))
    with pytest.raises(jaxdyn.ModelError, match="iterations"):
        SceneOptions(iterations=0)


BODY = '<worldbody><body><joint {0}/><geom size=".1"/></body></worldbody>'
REFUSED = {
    "sleep": '<option><flag sleep="enable"/></option>' + BODY.format('type="free"'),
    "multiccd": '<option><flag multiccd="disable"/></option><worldbody><geom type="cylinder" size=".1 .1"/>'
    '<body><joint/><geom type="capsule" size=".1 .1"/></body></worldbody>',
    "frictionloss": BODY.format('type="free" frictionloss="1"'),
    "ellipsoid": '<asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset><worldbody>'
    '<geom type="ellipsoid" size=".1 .1 .2"/><body><joint/><geom type="mesh" mesh="m"/></body></worldbody>',
    "acts on a body": '<worldbody><geom type="plane" size="1 1 1"/><body name="b"><joint/><geom size=".1"/></body>'
    '</worldbody><actuator><adhesion name="glue" body="b" ctrlrange="0 1"/></actuator>',
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_built_is_refused_by_name(what):
    with pytest.raises(RobotFileError, match=what):
        load_scene(f"<mujoco>{REFUSED[what].replace('{0}', '')}</mujoco>")
