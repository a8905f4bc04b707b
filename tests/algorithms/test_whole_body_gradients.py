"""Momentum, frame motion, regressors, power, Lagrangian terms and reactions have right derivatives with respect to
the model's arrays (forward, reverse, central differences) and support batches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import algorithms as alg
from tests import draws

LEAVES = ("inertial_parameters", "joint_placement", "joint_axis", "joint_pitch", "gravity", "armature")
GROUPS = {
    "momentum": lambda m, q, v, a, f: (
        alg.centroidal_momentum(m, q, v),
        alg.centroidal_momentum_time_derivative(m, q, v, a),
        alg.centroidal_momentum_matrix(m, q),
        alg.centroidal_momentum_matrix_time_derivative(m, q, v),
        alg.centroidal_inertia(m, q),
    ),
    "center of mass": lambda m, q, v, a, f: (
        alg.com_jacobian(m, q),
        alg.com_velocity(m, q, v),
        alg.com_acceleration(m, q, v, a),
        alg.com_bias_acceleration(m, q, v),
    ),
    "frames": lambda m, q, v, a, f: (
        alg.frame_acceleration(m, q, v, a, "body2"),
        alg.frame_acceleration(m, q, v, a, "body2", "local", "spatial"),
        alg.frame_jacobian_time_derivative(m, q, v, "body2", "local"),
    ),
    "regressors": lambda m, q, v, a, f: (
        alg.slotine_li_regressor(m, q, v, a, v),
        alg.momentum_regressor(m, q, v),
        *alg.energy_regressors(m, q, v),
        alg.body_regressor(m, q, v, a),
    ),
    "power": lambda m, q, v, a, f: (
        *alg.power(m, q, v, a, f),
        alg.mechanical_energy(m, q, v),
        alg.potential_energy_gradient(m, q),
    ),
    "Lagrangian": lambda m, q, v, a, f: (
        alg.christoffel_symbols(m, q),
        alg.mass_matrix_derivative(m, q),
        alg.generalized_gravity(m, q),
        alg.friction_torque(m, v),
    ),
    "reactions": lambda m, q, v, a, f: (
        alg.joint_reactions(m, q, v, a=a, f_ext=f),
        alg.base_reaction(m, q, v, a=a, f_ext=f),
        alg.articulated_inertias(m, q),
        alg.operational_space_inertia(m, q, "body2", part="linear"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_forward_reverse_and_central_differences(group):
    model = jaxdyn.samples.random_tree(jax.random.key(1), 3, ("free", "helical", "universal"), branching=1)
    q = model.random_configuration(jax.random.key(2))
    v, a = jax.random.normal(jax.random.key(3), (2, model.nv))
    f_ext = jax.random.normal(jax.random.key(4), (model.nb, 6))
    sizes = jax.eval_shape(lambda: GROUPS[group](model, q, v, a, f_ext))
    weights = [jax.random.normal(jax.random.key(i), x.shape) for i, x in enumerate(sizes)]

    def scalar(leaves, q, v):
        changed = eqx.tree_at(lambda m: [getattr(m, name) for name in LEAVES], model, leaves)
        values = GROUPS[group](changed, q, v, a, f_ext)
        return sum(jnp.vdot(w, jnp.sin(0.1 * x)) for w, x in zip(weights, values, strict=True))

    @jax.jit
    def all_of(inputs, direction):
        value, gradient = jax.value_and_grad(scalar, (0, 1, 2))(*inputs)
        return value, gradient, jax.jvp(scalar, inputs, direction)[1]

    inputs = ([getattr(model, name) for name in LEAVES], q, v)
    leaves, structure = jax.tree.flatten(inputs)
    rng, step, zeros = np.random.default_rng(0), 1e-6, [jnp.zeros_like(x) for x in leaves]
    # Each direction changes only one argument.
    for i, leaf in enumerate(leaves):
        direction = jnp.asarray(rng.normal(size=leaf.shape)) * (0.01 if i == 0 else 1.0)
        along = jax.tree.unflatten(structure, [*zeros[:i], direction, *zeros[i + 1 :]])
        _, gradient, forward = all_of(inputs, along)
        reverse = jnp.vdot(jax.tree.leaves(gradient)[i], direction)
        up, down = (all_of(jax.tree.map(lambda x, d, s=s: x + s * d, inputs, along), along)[0] for s in (step, -step))
        assert float(forward) == pytest.approx(float(reverse), rel=1e-8, abs=1e-10), i
        assert float(forward) == pytest.approx(float(up - down) / (2 * step), rel=1e-5, abs=1e-7), i


@pytest.mark.parametrize(
    "group", ["reactions", *(pytest.param(x, marks=pytest.mark.slow) for x in GROUPS if x != "reactions")]
)
def test_vmap_over_models_and_states_is_what_batch_axes_give(group):
    model = jaxdyn.samples.random_tree(jax.random.key(1), 3, ("free", "helical", "universal"), branching=1)
    parameters = jnp.stack([model.inertial_parameters, 1.5 * model.inertial_parameters])
    q, v, a, f_ext = draws.states(model, 2, 3)

    def of(parameters, *state):
        changed = eqx.tree_at(lambda m: m.inertial_parameters, model, parameters)
        return jax.tree.leaves(GROUPS[group](changed, *state))

    over_states = jax.vmap(of, in_axes=(None, 0, 0, 0, 0))
    mapped = jax.jit(jax.vmap(over_states, in_axes=(0, None, None, None, None)))(parameters, q, v, a, f_ext)
    native = jax.jit(of)(parameters[:, None], q, v, a, f_ext)
    for got, want in zip(mapped, native, strict=True):
        want = jnp.broadcast_to(want, got.shape)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11 * float(jnp.abs(got).max()))
