"""Policies judged in MuJoCo's C code."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import ModelError, World, learn, samples
from jaxdyn.model import Actuator
from tests.learn.learn_environments import SCENE, Roll, rolling

pytest.importorskip("mujoco")

POLICY = eqx.nn.MLP(14, 2, 8, 1, final_activation=jnp.tanh, dtype=jnp.float64, key=jax.random.key(0))


@jax.jit
def own(env, keys):
    """The returns and lengths of episodes of at most 20 steps in the library's own simulation, and whether the task
    ended them."""

    def episode(key):
        def step(carry, _):
            state, running = carry
            state = env.step(state, POLICY(state.obs))
            return (state, running * (1 - state.done)), (running * state.reward, running)

        (_, running), (reward, counted) = jax.lax.scan(step, (env.reset(key), 1.0), length=20)
        return reward.sum(), counted.sum(), running == 0

    return jax.vmap(episode)(keys)


@pytest.mark.parametrize("mass", ["of the file", "changed"])
def test_a_judged_return_is_that_of_the_own_simulation(mass):
    env = rolling()
    if mass == "changed":
        model = env.world.model.with_link_parameters("trunk", 1.3 * env.world.model.link_parameters("trunk"))
        env = eqx.tree_at(lambda env: env.world, env, env.world.with_model(model))
    judged = learn.judge(POLICY, env, starts=6, steps=20)
    returns, lengths, ended = own(env, jax.random.split(jax.random.key(0), 6))
    np.testing.assert_allclose(judged.returns, returns, rtol=1e-8)
    np.testing.assert_array_equal(judged.lengths, lengths)
    assert judged.ends == tuple("task" if x else "time limit" for x in ended)
    assert set(judged.ends) == {"task", "time limit"}
    assert "ended by" in str(judged)


def test_a_diverged_simulation_ends_without_its_last_step():
    env = learn.Environment(rolling().world, Thrown(), scene=SCENE)
    judged = learn.judge(lambda obs: jnp.zeros(2), env, starts=2, steps=3)
    assert judged.ends == ("diverged", "diverged")
    assert (judged.lengths == 0).all()
    assert (judged.returns == 0).all()


class Thrown(Roll):
    """The trunk starts at a speed that MuJoCo calls bad."""

    def start(self, world, key):
        return dataclasses.replace(super().start(world, key), v=jnp.full(world.model.nv, 1e12))


def test_scenes_that_are_not_the_worlds_are_refused():
    env = rolling()
    with pytest.raises(ModelError, match="does not say from which MJCF file"):
        learn.judge(POLICY, learn.Environment(env.world, Roll()))
    with pytest.raises(ModelError, match="other parts"):
        learn.judge(POLICY, env, SCENE.replace("<motor", '<motor name="second" joint="j"/><motor'))
    arm = World(samples.pendulum(), actuators=[Actuator("hinge", control_range=(-1, 1))])
    with pytest.raises(ModelError, match="to_mjcf"):
        learn.judge(POLICY, learn.Environment(arm, Roll()))
