"""Derivatives with respect to every argument and every physical array agree: forward and reverse mode, central
differences, higher orders, under `vmap`, and at singular points."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder
from tests import draws

LEAVES = {
    "gravity": lambda m: m.gravity,
    "inertial_parameters": lambda m: m.inertial_parameters,
    "armature": lambda m: m.armature,
    "damping": lambda m: m.damping,
    "friction": lambda m: m.friction,
    "joint_placement": lambda m: m.joint_placement,
    "joint_axis": lambda m: m.joint_axis,
    "joint_pitch": lambda m: m.joint_pitch,
}
MODELS = {
    "tree": lambda: jaxdyn.samples.random_tree(
        jax.random.key(1), 6, ("free", "helical", "universal", "ball", "planar", "revolute"), branching=2
    ),
    "arm": jaxdyn.samples.arm,
}
FUNCTIONS = {
    "rnea": lambda m, q, v, x, f: jaxdyn.rnea(m, q, v, x, f),
    "aba": lambda m, q, v, x, f: jaxdyn.aba(m, q, v, x, f),
    "crba": lambda m, q, v, x, f: jaxdyn.crba(m, q),
}


@functools.cache
def state(name: str):
    model = MODELS[name]()
    return model, *jax.device_put(draws.states(model, 2))


def arguments(model, q, v, x, f_ext) -> dict:
    """The arguments of differentiation: every state, wrench and physical array, by name."""
    return {"q": q, "v": v, "x": x, "f_ext": f_ext} | {name: get(model) for name, get in LEAVES.items()}


def scalar(function, model, weights, values: dict):
    """A smooth scalar of a function's value, so that one gradient depends on every output."""
    model = eqx.tree_at(lambda m: [get(m) for get in LEAVES.values()], model, [values[name] for name in LEAVES])
    y = FUNCTIONS[function](model, *(values[name] for name in ("q", "v", "x", "f_ext")))
    return jnp.vdot(weights, jnp.sin(0.1 * y))


@functools.cache
def compiled(function: str, name: str):
    """Return one program of the gradient, the value, and its derivative along a direction, for all arguments."""
    model, *state_and_wrenches = state(name)
    size = jax.eval_shape(lambda: FUNCTIONS[function](model, *state_and_wrenches))
    weights = draws.normal(5, *size.shape)
    f = functools.partial(scalar, function, model, weights)
    return jax.jit(lambda values, dots: (jax.grad(f)(values), *jax.jvp(f, (values,), (dots,))))


@pytest.mark.parametrize("name", ["tree", pytest.param("arm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", [pytest.param(x, marks=[pytest.mark.slow] * (x != "aba")) for x in FUNCTIONS])
def test_forward_reverse_and_central_differences(function, name):
    values = jax.tree.map(np.asarray, arguments(*state(name)))
    derivatives = compiled(function, name)
    zeros = jax.tree.map(np.zeros_like, values)
    reverse = jax.tree.map(np.asarray, derivatives(values, zeros)[0])
    rng = np.random.default_rng(0)
    for argument, value in values.items():
        if not value.size:
            continue
        # The inertias of light links are small, so their steps must be small, too.
        size = 0.01 if argument == "inertial_parameters" else 1.0
        direction = size * rng.normal(size=value.shape)
        forward = derivatives(values, zeros | {argument: direction})[2]
        assert np.isfinite(forward)
        expected = np.vdot(reverse[argument], direction)
        scale = max(abs(expected), np.abs(reverse[argument]).max(), 1e-3)
        assert abs(forward - expected) <= 1e-8 * scale, argument
        step = 1e-6
        up, down = (derivatives(values | {argument: value + s * step * direction}, zeros)[1] for s in (1, -1))
        assert abs((up - down) / (2 * step) - forward) <= 1e-6 * scale, argument
        # Where the value depends on the argument, a gradient of zeros must not pass.
        depends = function != "crba" or argument in (
            "q",
            "inertial_parameters",
            "armature",
            "joint_axis",
            "joint_pitch",
        )
        if depends and argument != "joint_placement":
            assert np.abs(reverse[argument]).max() > 1e-6, argument


@pytest.mark.slow
def test_gradient_at_mass_first_moment_and_rotational_inertia():
    """Inverse dynamics is linear in the parameters, so its derivative is the regressor."""
    model, q, v, a, _ = state("tree")
    jacobian = jax.jit(jax.jacfwd(lambda p: jaxdyn.rnea(with_parameters(model, p), q, v, a)))(model.inertial_parameters)
    Y = jaxdyn.torque_regressor(model, q, v, a)
    np.testing.assert_allclose(jacobian.reshape(Y.shape), Y, rtol=1e-9, atol=1e-9)
    torque = Y @ model.inertial_parameters.reshape(-1) + model.armature * a
    np.testing.assert_allclose(torque, jaxdyn.rnea(model, q, v, a, joint_friction=False), rtol=1e-10, atol=1e-10)


def with_parameters(model, parameters):
    return eqx.tree_at(lambda m: m.inertial_parameters, model, parameters)


def test_compositions_of_vmap_and_grad():
    model = state("arm")[0]
    batch = 5
    qs, vs, taus, _ = draws.states(model, 9, batch)

    def loss(q, v, tau):
        return jnp.sum(jnp.sin(jaxdyn.aba(model, q, v, tau)))

    singly = jax.jit(jax.grad(loss))
    one_by_one = jnp.stack([singly(*s) for s in zip(qs, vs, taus, strict=True)])
    mapped = jax.jit(jax.vmap(jax.grad(loss)))(qs, vs, taus)
    summed = jax.jit(jax.grad(lambda q, v, tau: jax.vmap(loss)(q, v, tau).sum()))(qs, vs, taus)
    native = jax.jit(jax.grad(loss))(qs, vs, taus)
    for value in (mapped, summed, native):
        np.testing.assert_allclose(value, one_by_one, rtol=1e-9, atol=1e-9)


def test_batches_of_models():
    """Models in leading axes of the arrays and under `vmap` give the same values and gradients."""
    model, q, v, tau, _ = state("arm")
    scales = jnp.linspace(0.5, 2, 3)
    models = jax.vmap(lambda s: with_parameters(model, model.inertial_parameters * s))(scales)
    singly = [jaxdyn.aba(with_parameters(model, p), q, v, tau) for p in models.inertial_parameters]
    native = jaxdyn.aba(models, q, v, tau)
    np.testing.assert_allclose(native, singly, rtol=1e-9, atol=1e-9)
    by_vmap = jax.jit(jax.vmap(lambda m: jaxdyn.aba(m, q, v, tau)))(models)
    np.testing.assert_allclose(by_vmap, singly, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_second_order():
    model, q, v, tau, _ = state("arm")

    def f(z):
        return jnp.sum(jnp.sin(jaxdyn.aba(model, z[0], z[1], tau)))

    z = jnp.stack([q, v])
    hessian = jax.jit(jax.jacfwd(jax.jacrev(f)))(z).reshape(z.size, z.size)
    scale = np.abs(hessian).max()
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-9 * scale)
    direction = np.random.default_rng(1).normal(size=z.shape)
    gradient, step = jax.jit(jax.grad(f)), 1e-5
    expected = (gradient(z + step * direction) - gradient(z - step * direction)) / (2 * step)
    np.testing.assert_allclose(hessian @ direction.ravel(), expected.ravel(), atol=1e-6 * scale)
    # Reverse over forward mode, along one direction, gives the same.
    other = jax.jit(jax.grad(lambda z: jax.jvp(f, (z,), (jnp.asarray(direction),))[1]))(z)
    np.testing.assert_allclose(other.ravel(), hessian @ direction.ravel(), atol=1e-9 * scale)


def test_implicit_derivative_is_that_of_the_recursion():
    """The derivatives satisfy `M da/dtau = 1`, and `da = -M^-1 dtau` for all other arguments."""
    model, q, v, tau, _ = state("arm")
    a = jaxdyn.aba(model, q, v, tau)
    M = jaxdyn.crba(model, q)
    da_dq, da_dv, da_dtau = jax.jit(jax.jacfwd(lambda *s: jaxdyn.aba(model, *s), argnums=(0, 1, 2)))(q, v, tau)
    dtau_dq, dtau_dv = jax.jit(jax.jacrev(lambda q, v: jaxdyn.rnea(model, q, v, a), argnums=(0, 1)))(q, v)
    np.testing.assert_allclose(M @ da_dtau, np.eye(model.nv), atol=1e-10)
    for M_da, minus_dtau in ((M @ da_dq, -dtau_dq), (M @ da_dv, -dtau_dv)):
        np.testing.assert_allclose(M_da, minus_dtau, atol=1e-9 * np.abs(minus_dtau).max())


def singular_model():
    """A robot with a free, a ball and a universal joint, and massless bodies between them."""
    builder = ModelBuilder().add_body("base", joint=Joint("free"), inertia=BodyInertia.box(2.0, (0.3, 0.2, 0.1)))
    builder.add_body("hub", "base", Joint("ball"), (0.1, 0, 0))
    builder.add_body("arm", "hub", Joint("universal", axis=(1, 0, 0), axis2=(0, 1, 0)), (0, 0, 0.1))
    builder.add_body(
        "tip", "arm", Joint("prismatic", axis=(0, 0, 1)), inertia=BodyInertia.sphere(0.5, 0.1, (0, 0, 0.2))
    )
    return builder.build()


SINGULAR = {
    "identity": (1.0, 0, 0, 0),
    "half turn about x": (0.0, 1, 0, 0),
    "half turn about y": (0.0, 0, 1, 0),
    "half turn about z": (0.0, 0, 0, 1),
    "full turn": (-1.0, 0, 0, 0),
}


@pytest.mark.parametrize(
    ("dtype", "order"),
    [(jnp.float64, 1), *(pytest.param(x, 2, marks=pytest.mark.slow) for x in (jnp.float32, jnp.float64))],
)
def test_finite_at_singular_points(dtype, order):
    model = singular_model().astype(dtype)
    at_base, at_ball = model.q_index("base_joint").stop - 4, model.q_index("hub_joint").start

    def f(model, q, v, tau):
        a = jaxdyn.aba(model, q, v, tau)
        after = model.integrate(q, 0.01 * v)
        return jnp.sum(a) + jnp.sum(model.difference(q, after))

    gradient = jax.grad(f, argnums=(0, 1, 2, 3))
    zero_velocity, along = jnp.zeros(model.nv, dtype), jnp.ones(model.nq, dtype)

    @jax.jit
    def derivatives(model, q):
        """Return the gradient; for the second order also its derivative along one direction of `q` and `v`."""
        if order == 1:
            return gradient(model, q, zero_velocity, zero_velocity)
        return jax.jvp(
            lambda q, v: gradient(model, q, v, zero_velocity), (q, zero_velocity), (along, along[: model.nv])
        )

    for quaternion in SINGULAR.values():
        value = jnp.array(quaternion, dtype)
        q = model.neutral().at[at_base : at_base + 4].set(value).at[at_ball : at_ball + 4].set(value)
        # At zero velocity Coulomb friction, rotations and the rates of quaternions are all at their singular points.
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(derivatives(model, q)) if x.size)
