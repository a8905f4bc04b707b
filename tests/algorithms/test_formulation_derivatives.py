"""Derivatives of the formulations' quantities by states and by every physical array of the model are correct."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.formulation_cases import QUANTITIES, case

LEAVES = {
    "gravity": lambda m: m.gravity,
    "inertial_parameters": lambda m: m.inertial_parameters,
    "armature": lambda m: m.armature,
    "joint_placement": lambda m: m.joint_placement,
    "joint_axis": lambda m: m.joint_axis,
    "joint_pitch": lambda m: m.joint_pitch,
}
# The other quantities are computed from these. Friction is left out: it is linear in its parameters except its width.
QUICK = ("LD",)
OTHERS = (("Minv", "solved"), ("C", "M of jacobians"), ("newton_euler", "denoc"), ("bodies",))


@pytest.mark.parametrize("names", [QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in OTHERS)])
def test_forward_reverse_and_central_differences(names):
    """Derivatives of a smooth function of the results, for a model with a massless body, agree; only the slow tests use
    forward mode."""
    model, *arrays = case("chain")
    model = eqx.tree_at(lambda m: m.inertial_parameters, model, model.inertial_parameters.at[0].set(0))
    q, v, x, f_ext = (y[0] for y in arrays)
    arguments = {"q": q, "v": v, "x": x, "f_ext": f_ext} | {name: get(model) for name, get in LEAVES.items()}

    def results(values):
        changed = eqx.tree_at(lambda m: [get(m) for get in LEAVES.values()], model, [values[n] for n in LEAVES])
        state = [values[name] for name in ("q", "v", "x", "f_ext")]
        return [QUANTITIES[name](changed, *state) for name in names]

    rng = np.random.default_rng(0)
    weights = jax.tree.map(lambda y: rng.normal(size=y.shape), jax.eval_shape(results, arguments))

    def scalar(values):
        pairs = zip(jax.tree.leaves(weights), jax.tree.leaves(results(values)), strict=True)
        return sum(jnp.vdot(w, jnp.sin(0.1 * y)) for w, y in pairs)

    value_and_gradient = jax.jit(jax.value_and_grad(scalar))
    along = jax.jit(lambda values, dots: jax.jvp(scalar, (values,), (dots,))[1])
    reverse, zeros = value_and_gradient(arguments)[1], jax.tree.map(jnp.zeros_like, arguments)
    for argument, value in arguments.items():
        direction = rng.normal(size=value.shape)
        if argument == "inertial_parameters":
            # The massless body stays massless: its center of mass could not change smoothly.
            direction *= 0.01 * np.arange(len(value))[:, None]
        expected = float(jnp.vdot(reverse[argument], direction))
        scale = max(abs(expected), float(jnp.abs(reverse[argument]).max()))
        step = 1e-6
        up, down = (float(value_and_gradient(arguments | {argument: value + s * step * direction})[0]) for s in (1, -1))
        assert abs((up - down) / (2 * step) - expected) <= 1e-6 * max(scale, 1e-3), argument
        if names != QUICK:
            forward = along(arguments, zeros | {argument: jnp.asarray(direction)})
            assert abs(float(forward) - expected) <= 1e-8 * scale, argument
        # The value depends on these arguments, so a gradient of zeros must not pass.
        if argument in ("q", "inertial_parameters", "joint_axis", "joint_pitch", "joint_placement"):
            assert scale > 1e-6, argument
