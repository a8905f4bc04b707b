"""Laws of mechanics that hold for every algorithm: center of mass, energy, momentum."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn


def motion(model, q, v, a):
    """The configuration and velocity near `t = 0` of a motion with velocity `v` and acceleration `a`."""
    return lambda t: (model.integrate(q, t * v + 0.5 * t**2 * a), v + t * a)


@pytest.fixture(scope="module")
def state():
    model = jaxdyn.samples.random_tree(jax.random.key(4), 4, ("free", "revolute", "prismatic"), branching=2)
    model = model.with_joint_friction(damping=0.0, friction=0.0)
    model = eqx.tree_at(lambda m: m.armature, model, model.armature.at[:6].set(0.0).at[6:].set(0.01))
    q = model.random_configuration(jax.random.key(0))
    v, tau = jax.random.normal(jax.random.key(1), (2, model.nv))
    return model, q, v, tau


def test_center_of_mass_of_a_floating_robot_falls(state):
    model, q, v, tau = state
    # Joint torques are internal forces, and no force drives the base.
    a = jaxdyn.aba(model, q, v, tau.at[:6].set(0.0))
    state_at = motion(model, q, v, a)
    acceleration = jax.jit(jax.jacfwd(jax.jacfwd(lambda t: jaxdyn.center_of_mass(model, state_at(t)[0]))))(0.0)
    # The armature has no reaction on the base: subtracted from the torques instead, it gives the same accelerations.
    rotors = model.armature * a
    light = eqx.tree_at(lambda m: m.armature, model, 0 * model.armature)
    np.testing.assert_allclose(jaxdyn.aba(light, q, v, tau.at[:6].set(0.0) - rotors), a, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(acceleration, model.gravity, atol=1e-9 * np.abs(a).max())


def test_power_balance(state):
    """`d(kinetic + potential)/dt = tau . v` holds without friction, also for a driven base."""
    model, q, v, tau = state
    state_at = motion(model, q, v, jaxdyn.aba(model, q, v, tau))

    def energy(t):
        q, v = state_at(t)
        return jaxdyn.kinetic_energy(model, q, v) + jaxdyn.potential_energy(model, q)

    rate = jax.jit(jax.jacfwd(energy))(0.0)
    assert float(rate) == pytest.approx(float(tau @ v), rel=1e-9)


def test_friction_dissipates():
    model = jaxdyn.samples.double_pendulum()
    q, v = jnp.array([0.3, -0.8]), jnp.array([1.5, -0.7])
    state_at = motion(model, q, v, jaxdyn.aba(model, q, v, jnp.zeros(2)))

    def energy(t):
        q, v = state_at(t)
        return jaxdyn.kinetic_energy(model, q, v) + jaxdyn.potential_energy(model, q)

    friction = model.damping * v + model.friction * jnp.tanh(v / model.friction_velocity)
    assert float(jax.jacfwd(energy)(0.0)) == pytest.approx(-float(friction @ v), rel=1e-9)


@pytest.mark.slow
def test_momentum_of_a_floating_robot_is_constant():
    """Without gravity the momentum about a fixed point is constant over a roll-out, to the order of the integrator."""
    model = jaxdyn.samples.quadruped()
    model = eqx.tree_at(lambda m: m.gravity, model, jnp.zeros(3))
    q = model.neutral()
    v = jax.random.normal(jax.random.key(3), (model.nv,))
    trajectory = jaxdyn.rollout(model, jaxdyn.State(q, v), jnp.zeros((200, model.nv)), 5e-4, integrator="rk4")

    def momentum(q, v):
        """The momentum of the robot in world axes about the world's origin, from the base's rows of `M v`."""
        base = (jaxdyn.crba(model, q) @ v)[:6]
        pose = jaxdyn.frame_pose(model, q, "base")
        force, moment = pose.rotation @ base[:3], pose.rotation @ base[3:]
        return jnp.concatenate([force, moment + jnp.cross(pose.translation, force)])

    start, end = (momentum(trajectory.q[k], trajectory.v[k]) for k in (0, -1))
    assert float(jnp.abs(trajectory.v[-1] - v).max()) > 0.1
    np.testing.assert_allclose(end, start, atol=1e-7 * float(jnp.abs(start).max()))
