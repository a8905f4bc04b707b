"""Tasks: those of Gymnasium against Gymnasium, the quadruped against MuJoCo, and environments by name."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import jaxdyn
from jaxdyn import learn

gymnasium = pytest.importorskip("gymnasium")

INCLUDED = [f"include_{x}_in_observation" for x in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")]
# Heights at which legs touch the ground, and what is observed.
TASKS = {
    "half_cheetah": ("HalfCheetah-v5", -0.1, {}),
    "hopper": ("Hopper-v5", 1.24, {}),
    "walker": ("Walker2d-v5", 1.24, {}),
    "ant": ("Ant-v5", 0.4, {INCLUDED[3]: True}),
    "humanoid": ("Humanoid-v5", 1.3, dict.fromkeys(INCLUDED, True)),
}

NAMES = [*list(TASKS)[:4], pytest.param("humanoid", marks=pytest.mark.slow)]


@functools.cache
def ours(name):
    """An environment with its compiled functions, in double precision."""
    env = learn.environment(name, dtype="float64", **TASKS[name][2])
    return env, jax.jit(env.reset), jax.jit(env.step)


def theirs(name):
    """Gymnasium's environment, whose simulation solves the constraints to the end, as ours does."""
    env = gymnasium.make(TASKS[name][0], **TASKS[name][2]).unwrapped
    option = env.model.opt
    option.solver, option.tolerance, option.ls_tolerance = mujoco.mjtSolver.mjSOL_NEWTON, 0.0, 1e-14
    option.iterations = option.ls_iterations = 200
    return env


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_those_of_gymnasium(name):
    env, reset, step = ours(name)
    gym = theirs(name)
    state = reset(jax.random.key(1))
    z = 2 if name in ("ant", "humanoid") else 1
    q = np.array(state.data.q)
    q[z] = TASKS[name][1]
    gym.reset(seed=0)
    gym.set_state(q, np.array(env.world.to_qvel(q, state.data.v)))
    data = env.world.state(q, env.world.from_qvel(q, gym.data.qvel))
    obs = env.task.observe(env.world, data, state.info)
    np.testing.assert_allclose(obs, gym._get_obs(), rtol=1e-12, atol=1e-12)
    state, rng, ended = state.replace(data=data, obs=obs), np.random.default_rng(0), False
    assert env.scene == gym.fullpath
    forces = 0.0
    for _ in range(8):
        action = rng.uniform(-1, 1, env.action_size)
        state = step(state, action)
        control = action * (0.4 if name == "humanoid" else 1)
        obs, reward, end, _, info = gym.step(control)
        scale = np.maximum(1, np.abs(obs))
        np.testing.assert_allclose(state.obs / scale, obs / scale, rtol=0, atol=1e-8)
        np.testing.assert_allclose(state.reward, reward, rtol=1e-8, atol=1e-8)
        for part in state.metrics.keys() & info.keys():
            np.testing.assert_allclose(state.metrics[part], info[part], rtol=1e-8, atol=1e-8)
        assert len(state.metrics.keys() & info.keys()) >= 2
        assert bool(state.done) == end
        ended, forces = ended or end, max(forces, abs(gym.data.cfrc_ext).max())
    # It was about contacts.
    assert forces > 1


@pytest.mark.parametrize("name", NAMES)
def test_starts_have_the_noise_of_gymnasium(name):
    env, reset, _ = ours(name)
    gym = theirs(name)
    states = jax.jit(jax.vmap(reset))(jax.random.split(jax.random.key(0), 200)).data
    scale = env.task.reset_noise_scale
    q = np.array(states.q) - gym.init_qpos
    v = np.array(env.world.to_qvel(states.q, states.v))
    gym.reset(seed=0)
    drawn = []
    for _ in range(200):
        gym.reset()
        drawn.append(np.concatenate([gym.data.qpos - gym.init_qpos, gym.data.qvel]))
    drawn = np.array(drawn)
    assert np.abs(q).max() <= scale
    # Uniform noise has the standard deviation scale / sqrt(3), and normal noise the deviation scale.
    for mine, other in ((q, drawn[:, : q.shape[1]]), (v, drawn[:, q.shape[1] :])):
        np.testing.assert_allclose(mine.std(), other.std(), rtol=0.05)
        np.testing.assert_allclose(mine.mean(), other.mean(), atol=0.1 * scale)


def test_ends_are_those_of_gymnasium():
    """The functions that say whether a robot fell, in states near the bounds."""
    rng = np.random.default_rng(0)
    for name in ("hopper", "walker", "ant", "humanoid"):
        env, _, _ = ours(name)
        gym, ends = theirs(name), []
        ended = jax.jit(jax.vmap(lambda q, v, env=env: env.task.ended(env.world, jaxdyn.State(q, v), {})))
        q, v = (rng.normal(size=(50, n)) for n in (gym.model.nq, gym.model.nv))
        z = 2 if name in ("ant", "humanoid") else 1
        q[:, z] = rng.uniform(0, 2.2, 50)
        q[:, z + 1 :] *= 0.3
        v[::7] *= 60
        for a, b in zip(q, v, strict=True):
            gym.data.qpos[:], gym.data.qvel[:] = a, b
            ends.append(not gym.is_healthy)
        np.testing.assert_array_equal(ended(q, v), ends)
        assert 0 < sum(ends) < 50


def test_randomized_masses_of_the_ant_are_those_of_a_scene_with_them():
    env, _, _ = ours("ant")
    world = env.world
    heavy = learn.randomly_scaled(world, {"body.mass": (0.5, 2.0)}, jax.random.key(4))
    ratio = np.array(heavy.model.inertial_parameters[:, 0] / world.model.inertial_parameters[:, 0])
    assert np.ptp(ratio) > 0.5
    spec = mujoco.MjSpec.from_file(env.scene)
    m = mujoco.MjModel.from_xml_path(env.scene)
    last = m.body_dofadr + m.body_dofnum - 1
    moving = world.model.topology.body_dofs
    for geom in spec.geoms:
        body = m.geom_bodyid[m.geom(geom.name).id]
        while body and not m.body_dofnum[body]:
            body = m.body_parentid[body]
        if body:
            geom.density *= ratio[list(moving).index(last[body])]
    scene = jaxdyn.load_world(spec.compile()).astype(world.model.dtype)
    changed = 0
    for a, b, c in zip(*map(jax.tree.leaves, (heavy, scene, world)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        changed += not np.array_equal(a, c)
    # Inertias, and the weights of contacts and limits that follow from them.
    assert changed >= 3


@functools.cache
def quadruped():
    env = learn.environment("quadruped", dtype="float64", pushes=0.5, push_interval=2)
    return env, jax.jit(env.reset), jax.jit(env.step)


def test_the_quadruped_moves_as_in_mujoco_and_falls():
    env, reset, step = quadruped()
    state = reset(jax.random.key(0))
    m = mujoco.MjModel.from_xml_string(env.scene)
    m.opt.tolerance, m.opt.ls_tolerance, m.opt.iterations, m.opt.ls_iterations = 0.0, 1e-14, 100, 100
    d = mujoco.MjData(m)
    d.time = float(state.data.time)
    rng, kicks = np.random.default_rng(0), 0
    for _ in range(12):
        action = rng.uniform(-1, 1, 12)
        before = env.task.disturb(env.world, state.data, state.info)
        kicks += not np.array_equal(before.v, state.data.v)
        d.qpos[:], d.qvel[:] = before.q, env.world.to_qvel(before.q, before.v)
        d.ctrl[:] = env.task.control(env.world, before, jnp.asarray(action))
        d.qacc_warmstart[:] = 0
        mujoco.mj_step(m, d, env.n_substeps)
        state = step(state, action)
        np.testing.assert_allclose(state.data.q, d.qpos, atol=1e-8)
    assert kicks == 6
    assert float(state.done) == 0
    # The observation: velocities and gravity in axes of the trunk, joints, the last action, the command.
    mujoco.mj_kinematics(m, d)
    R = d.body("base").xmat.reshape(3, 3)
    np.testing.assert_allclose(state.obs[:3], R.T @ d.qvel[:3], atol=1e-7)
    np.testing.assert_allclose(state.obs[3:6], d.qvel[3:6], atol=1e-7)
    np.testing.assert_allclose(state.obs[6:9], -R[2], atol=1e-8)
    np.testing.assert_array_equal(state.obs[-17:-5], action)
    np.testing.assert_array_equal(state.obs[-5:-2], state.info["command"])
    # The clock, which goes on with the time.
    phase = 2 * np.pi * 2.5 * d.time
    np.testing.assert_allclose(state.obs[-2:], [np.cos(phase), np.sin(phase)], atol=1e-6)
    excess = [state.metrics[f"{name}_excess"] for name in ("forward", "sideways", "yaw")]
    np.testing.assert_allclose(state.obs[np.array([0, 1, 5])] - state.info["command"], excess, atol=1e-12)
    assert float(state.metrics["velocity_error"]) == pytest.approx(np.hypot(*excess[:2]))
    assert float(state.metrics["commanded_speed"]) == pytest.approx(np.hypot(*state.info["command"][:2]))
    tilted = np.array(state.data.q)
    tilted[3:7] = np.cos(0.6), np.sin(0.6), 0, 0
    ended = [bool(env.task.ended(env.world, jaxdyn.State(jnp.asarray(q)), {})) for q in (state.data.q, tilted)]
    assert ended == [False, True]


def test_the_servos_of_the_quadruped_trot_in_place():
    env, reset, _ = quadruped()
    m = mujoco.MjModel.from_xml_string(env.scene)
    d = mujoco.MjData(m)
    feet = [m.geom(f"{leg}_foot").id for leg in ("FR", "FL", "RR", "RL")]
    state = reset(jax.random.key(0)).data
    for phase, want in ((0.0, [0, 0, 0, 0]), (0.25, [0.08, 0, 0, 0.08]), (0.75, [0, 0.08, 0.08, 0])):
        now = eqx.tree_at(lambda x: x.time, state, jnp.asarray(phase / 2.5))
        d.qpos[7:] = env.task.control(env.world, now, jnp.zeros(12))
        mujoco.mj_kinematics(m, d)
        hips = d.xanchor[[m.joint(f"{leg}_thigh_joint").id for leg in ("FR", "FL", "RR", "RL")]]
        reach = d.geom_xpos[feet] - hips
        np.testing.assert_allclose(reach[:, 0], 0, atol=1e-9)
        np.testing.assert_allclose(reach[:, 2] + 2 * 0.213 * np.cos(0.9), want, atol=1e-6)


def test_the_quadruped_has_privileged_observations():
    env = learn.environment("quadruped", base_velocity="privileged")
    assert env.observation_size == {"state": 47, "privileged_state": 50}
    state = jax.jit(env.reset)(jax.random.key(0))
    assert state.obs["state"].dtype == jnp.float32
    np.testing.assert_array_equal(state.obs["privileged_state"][3:], state.obs["state"])


@pytest.mark.slow
def test_the_quadruped_stands_on_rough_terrain():
    env = learn.environment("quadruped", terrain="rough")
    step = jax.jit(env.step)
    state = env.reset(jax.random.key(0))
    for _ in range(50):
        state = step(state, jnp.zeros(12))
    assert float(state.done) == 0


def test_the_pole_hangs_and_swings():
    env = learn.environment("cartpole_swingup", start_range=0.0)
    state = env.reset(jax.random.key(0))
    np.testing.assert_allclose(state.obs, [0, -1, 0, 0, 0], atol=1e-6)
    after = jax.jit(env.step)(state, jnp.ones(1))
    # 10 N on 1.1 kg: half of it and more reach the cart while the pole lags behind.
    assert 0.1 < after.data.v[0] < 0.21
    assert after.reward.dtype == jnp.float32
    np.testing.assert_allclose(
        after.reward, sum(x for name, x in after.metrics.items() if name != "diverged"), rtol=1e-6
    )


def test_unknown_names_and_options():
    assert {"ant", "hopper", "quadruped", "cartpole_swingup"} <= set(learn.environments())
    with pytest.raises(jaxdyn.UnknownNameError, match="half_cheetah"):
        learn.environment("halfcheetah")
    with pytest.raises(jaxdyn.ArgumentError, match="ctrl_cost_weight"):
        learn.environment("ant", control_cost_weight=0.1)
    with pytest.raises(jaxdyn.ModelError, match="terrain"):
        learn.environment("quadruped", terrain="steep")
    with pytest.raises(jaxdyn.ModelError, match="base_velocity"):
        learn.environment("quadruped", base_velocity="seen")
