"""Derivatives of locomotion worlds at states with contacts: forward mode, reverse mode and central differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import State, load_world
from tests.worlds.world_oracle import LOCOMOTION, path_of, solved_to_the_end, state_of

mujoco = pytest.importorskip("mujoco")
PHYSICAL = ("mass", "friction", "solref", "gain")
STEP = 1e-5
"""Of the differences: relative for physical numbers, in rad, m and their rates for states."""


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), LOCOMOTION)
def test_derivatives_of_a_world(package, name):
    """By the state, the control, and some physical numbers, of weighted accelerations and of one step.

    Where differences of two sizes do not agree, a row of the constraints switches between them; such directions are
    left out, and at least three quarters must be kept.
    """
    m = solved_to_the_end(mujoco.MjModel.from_xml_path(str(path_of(package, name))))
    world, found = load_world(m), []
    evaluate = jax.jit(derivatives_of(world))
    cases = list(states_with_contacts(m, 3))
    rng = np.random.default_rng(1)
    directions = directions_of(m, rng)
    weights = rng.normal(size=(2, m.nv))
    for qpos, qvel, act, control in cases:
        state = state_of(world, qpos, qvel, act)
        found.append(evaluate(state, jnp.asarray(control), jnp.asarray(weights), jnp.asarray(directions)))
    forward, backward, wide, narrow, scale = (np.array(x) for x in zip(*found, strict=True))
    assert np.abs(forward - backward).max() < 1e-8 * scale.max()
    smooth = np.abs(wide - narrow) < 1e-6 * scale[:, None]
    assert smooth.mean() > 0.75, smooth
    errors = np.abs(narrow - forward) / scale[:, None]
    assert errors[smooth].max() < 1e-5, errors
    # The last directions are those of physical numbers, of which masses always matter.
    assert (np.abs(forward[:, -len(PHYSICAL)]) > 0).all()


def states_with_contacts(m, count: int):
    """Yield states of motions with random controls, those with contacts first if there are any."""
    rng, d, found = np.random.default_rng(0), mujoco.MjData(m), []
    limited = np.asarray(m.actuator_ctrllimited, bool)[:, None]
    low, high = np.where(limited, m.actuator_ctrlrange, (-1.0, 1.0)).T
    for _ in range(12):
        mujoco.mj_resetData(m, d)
        if m.nkey:
            mujoco.mj_resetDataKeyframe(m, d, int(rng.integers(m.nkey)))
        d.qvel[:] += 0.3 * rng.normal(size=m.nv)
        for _ in range(int(rng.integers(50, 300))):
            # Inside the ranges, because controls are clipped to them.
            d.ctrl[:] = rng.uniform(0.9 * low + 0.1 * high, 0.1 * low + 0.9 * high)
            mujoco.mj_step(m, d)
        mujoco.mj_forward(m, d)
        found.append((d.ncon, [x.copy() for x in (d.qpos, d.qvel, d.act, d.ctrl)]))
    found.sort(key=lambda x: -min(x[0], 1))
    yield from (x for _, x in found[:count])


def directions_of(m, rng) -> np.ndarray:
    """Directions of `changed`: two random ones of the state and control, and each physical number alone."""
    count = 2 * m.nv + m.na + m.nu
    random = np.zeros((2, count + len(PHYSICAL)))
    random[:, :count] = rng.normal(size=(2, count))
    return np.concatenate([random, np.eye(len(PHYSICAL), count + len(PHYSICAL), count)])


def derivatives_of(world):
    """A function that returns the derivatives along directions in forward mode, in reverse mode, and as differences of
    two sizes, and the size of the gradient."""

    def evaluate(state, control, weights, directions):
        def weighted(x):
            world, at, u = changed(x, state, control)
            a, after = world.accelerations(at, u), world.step(at, u)
            return weights[0] @ a + (weights[1] @ after.v) / world.timestep

        start = jnp.zeros(directions.shape[1])
        gradient = jax.grad(weighted)(start)
        forward = jax.vmap(lambda d: jax.jvp(weighted, (start,), (d,))[1])(directions)
        points = STEP * jnp.array([1.0, -1.0, 0.5, -0.5])[:, None, None] * directions
        values = jax.vmap(jax.vmap(weighted))(points)
        differences = (values[0] - values[1]) / (2 * STEP), (values[2] - values[3]) / STEP
        return forward, directions @ gradient, *differences, jnp.linalg.norm(gradient)

    def changed(x, state, control):
        nv, na, nu = world.model.nv, world.na, world.nu
        dq, dv, da, du, physical = jnp.split(x, np.cumsum([nv, nv, na, nu]))
        at = State(world.model.integrate(state.q, dq), state.v + dv, state.activation + da, state.time)
        mass, friction, solref, gain = 1 + physical
        other = eqx.tree_at(lambda s: s.model, world, jaxdyn.scaled(world.model, mass=mass))
        other = eqx.tree_at(lambda s: s.parts.actuators.gain, other, replace_fn=lambda a: a * gain)
        for name, factor in (("friction", friction), ("solref", solref)):
            for i in range(len(world.parts.constraints.contacts.pairs)):
                other = eqx.tree_at(
                    lambda s, i=i, name=name: getattr(s.parts.constraints.contacts.pairs[i], name),
                    other,
                    replace_fn=lambda a, factor=factor: a * factor,
                )
        return other, at, control + du

    return evaluate


def test_the_derivative_of_a_step_with_stages_keeps_few_arrays():
    """Each of them is stored by a loop over steps, at a cost of compilation that does not depend on its size."""
    world = load_world("""
        <mujoco><option integrator="RK4"/><worldbody><geom type="plane" size="1 1 1"/>
          <body pos="0 0 1"><freejoint/><geom size="0.1"/></body></worldbody></mujoco>""")
    kept = jax.eval_shape(lambda state: jax.vjp(lambda state: world.step(state), state)[1], world.state())
    # About 100, of the contacts and of the operands in four stages. Numbers of rotations one by one are hundreds more.
    assert len(jax.tree.leaves(kept)) < 150
