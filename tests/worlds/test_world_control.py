"""Optimal control of worlds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, ShapeError, State, trajopt
from jaxdyn.trajopt import ControlResidual, Problem, QuadraticCost, StateResidual, WorldDynamics

# A body on a plane with an arm, whose servo has a state.
TOUCHING = """
<mujoco><option timestep="0.005"/><worldbody>
  <geom type="plane" size="1 1 1"/>
  <body pos="0 0 0.06"><freejoint/><geom type="capsule" size="0.05 0.1" euler="70 0 0"/>
    <body pos="0 0 0.1"><joint name="arm" axis="1 0 0" damping="0.1"/><geom size="0.03" pos="0.1 0 0"/></body>
  </body></worldbody>
  <actuator><position joint="arm" kp="3" timeconst="0.05" ctrlrange="-1 2"/></actuator>
</mujoco>"""
PENDULUM = """
<mujoco><option timestep="0.01" integrator="implicitfast"/><worldbody>
  <body><joint name="hinge" axis="0 1 0" damping="0.01"/><geom type="capsule" fromto="0 0 0 0 0 -.5" size=".02"/></body>
  </worldbody><actuator><motor joint="hinge" gear="2" ctrlrange="-1 1"/></actuator></mujoco>"""


@functools.cache
def touching() -> WorldDynamics:
    return WorldDynamics(jaxdyn.load_world(TOUCHING), substeps=2)


def swing_up(horizon: int = 60) -> Problem:
    dynamics = WorldDynamics(jaxdyn.load_world(PENDULUM), substeps=2)
    goal = StateResidual(np.array([np.pi, 0.0]))
    problem = Problem(
        dynamics,
        np.array([0.1, 0.0]),
        horizon,
        stage_costs=[QuadraticCost(ControlResidual(), 1e-2)],
        terminal_costs=[QuadraticCost(goal, 100.0)],
    )
    return problem.with_model_limits()


def test_steps_are_those_of_the_world():
    dynamics, rng = touching(), np.random.default_rng(0)
    world = dynamics.world
    state = world.state(v=0.3 * rng.normal(size=7), activation=[0.2])
    x, u = dynamics.join(state), jnp.array([0.7])
    after = world.step(world.step(state, u), u)
    np.testing.assert_allclose(dynamics.step(x, u, 0), dynamics.join(after), atol=1e-12)
    np.testing.assert_allclose(dynamics.dt, 0.01)
    assert (dynamics.nx, dynamics.ndx, dynamics.nu) == (16, 15, 1)
    np.testing.assert_allclose(dynamics.join(State(world.start)), dynamics.join(world.state()))
    low, high = trajopt.effort_bounds(dynamics)
    assert (float(low[0]), float(high[0])) == (-1, 2)
    field = jaxdyn.vector_field(world, lambda t, state, args: args * u)(0.0, state, 1.0)
    np.testing.assert_allclose(field.v, world.accelerations(state, u), rtol=1e-12)
    np.testing.assert_allclose(field.activation, (0.7 - 0.2) / 0.05, rtol=1e-12)
    with pytest.raises(ShapeError, match=r"control has shape \(7,\), .*nu = 1"):
        jaxdyn.vector_field(world, np.zeros(7))


def test_derivatives_are_differences():
    dynamics, rng = touching(), np.random.default_rng(1)
    state = dynamics.world.state(v=0.3 * rng.normal(size=7), activation=[0.2])
    x, u, size = dynamics.join(state), jnp.array([0.7]), 1e-6
    after = dynamics.step(x, u, 0)
    A, B = jax.jit(lambda x, u, after: dynamics.linearize(x, u, 0, after))(x, u, after)

    def ends(dx, du):
        return dynamics.difference(after, dynamics.step(dynamics.integrate(x, dx), u + du, 0))

    step = jax.jit(ends)
    for _ in range(3):
        dx, du = rng.normal(size=15), rng.normal(size=1)
        difference = (step(size * dx, size * du) - step(-size * dx, -size * du)) / (2 * size)
        np.testing.assert_allclose(A @ dx + B @ du, difference, rtol=1e-6, atol=1e-6)


def test_a_plan_is_a_motion_of_the_world():
    problem = swing_up()
    solution = trajopt.ddp(problem, 0.1 * np.ones((60, 1)))
    assert solution.success, solution
    world = problem.dynamics.world
    motion = world.rollout(world.state([0.1]), solution.us, substeps=2)
    np.testing.assert_allclose(motion.q[:, 0], solution.xs[:, 0], atol=1e-9)
    assert abs(motion.q[-1, 0] - np.pi) < 0.1
    assert abs(solution.us).max() <= 1


@pytest.mark.slow
def test_sampling_and_mpc_take_worlds():
    problem = swing_up(30)
    dynamics = problem.dynamics
    found = trajopt.mppi(problem)
    assert found.cost < problem.total_cost(jnp.tile(problem.x0, (31, 1)), jnp.zeros((30, 1)))
    controller = trajopt.MPC(problem.starting_at(np.array([2.9, 0.0])))
    run = trajopt.closed_loop(controller, lambda x, u: dynamics.step(jnp.asarray(x), jnp.asarray(u), 0), [2.9, 0.0], 60)
    assert abs(run.xs[-1, 0] - np.pi) < 0.02


def test_what_is_refused():
    with pytest.raises(ModelError, match=r"must be a jaxdyn\.World, not Model"):
        WorldDynamics(touching().world.model)
    with pytest.raises(ModelError, match="substeps"):
        WorldDynamics(touching().world, substeps=0)
    with pytest.raises(ModelError, match="dt"):
        touching().world.with_timestep(-1.0)
