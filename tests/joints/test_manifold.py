"""Operations on the configuration manifold match their definitions, Pinocchio and central differences."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio
import pytest
from scipy.spatial.transform import Rotation

import jaxdyn
from jaxdyn import BodyInertia, Joint, Model, ModelBuilder, ShapeError, UnknownNameError, spring_torque

# Pinocchio's bindings have no types.
pin: Any = pinocchio

BALL = BodyInertia.sphere(1.0, 0.1)
OTHERS = {
    "revolute": Joint("revolute", lower=-0.5, upper=1.5),
    "continuous": Joint("continuous"),
    "prismatic": Joint("prismatic", axis=(1, 0, 0), lower=2.0, upper=3.0),
    "helical": Joint("helical", pitch=0.1),
    "cylindrical": Joint("cylindrical", lower=(-np.inf, -0.1), upper=(np.inf, 0.2)),
    "universal": Joint("universal", axis=(1, 0, 0), axis2=(0, 1, 0)),
    "planar": Joint("planar"),
    "ball": Joint("ball"),
    "free": Joint("free"),
}


def chain(*types: str) -> Model:
    builder, parent = ModelBuilder(), "world"
    for k, kind in enumerate(types):
        builder.add_body(f"{kind}_{k}", parent, OTHERS[kind], inertia=BALL)
        parent = f"{kind}_{k}"
    return builder.build()


MODELS = {
    "all": chain("revolute", "free", "prismatic", "helical", "ball", "cylindrical", "universal", "planar", "ball"),
    "free": chain("free"),
    "ball": chain("ball"),
    "revolute": chain("revolute"),
}
# All tests use one batch size, so that few programs are compiled.
N = 40
# Positions of the quaternions in `q`, and of the rotation vectors in `v`.
QUATERNIONS = {"all": [4, 10, 21], "free": [3], "ball": [0], "revolute": []}
ANGULAR = {"all": [4, 9, 19], "free": [3], "ball": [0], "revolute": []}

models = pytest.mark.parametrize("name", ["all", "free"])


def states(name: str, n: int, seed: int, angle: float = 3.0) -> tuple[Any, Any]:
    """Random configurations, and displacements with rotations up to `angle`."""
    model, rng = MODELS[name], np.random.default_rng(seed)
    q, dv = rng.normal(size=(n, model.nq)), rng.normal(size=(n, model.nv))
    for k in QUATERNIONS[name]:
        q[:, k : k + 4] /= np.linalg.norm(q[:, k : k + 4], axis=-1, keepdims=True)
    for k in ANGULAR[name]:
        w = dv[:, k : k + 3]
        dv[:, k : k + 3] = w / np.linalg.norm(w, axis=-1, keepdims=True) * rng.uniform(0, angle, (n, 1))
    return q, dv


def assert_same_configuration(name: str, a, b, atol: float) -> None:
    a, b = np.array(a), np.array(b)
    for k in QUATERNIONS[name]:
        a[..., k : k + 4] *= np.sign((a[..., k : k + 4] * b[..., k : k + 4]).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(a, b, rtol=0, atol=atol)


# Integrate and difference


@models
def test_difference_undoes_integrate(name):
    model = MODELS[name]
    q, dv = states(name, N, 0)
    q1 = model.integrate(q, dv)
    np.testing.assert_allclose(model.difference(q, q1), dv, rtol=0, atol=1e-12)
    for k in QUATERNIONS[name]:
        np.testing.assert_allclose(np.linalg.norm(q1[:, k : k + 4], axis=-1), 1, rtol=0, atol=1e-15)


@models
def test_integrate_undoes_difference(name):
    model = MODELS[name]
    (q0, _), (q1, _) = states(name, N, 1), states(name, N, 2)
    dv = model.difference(q0, q1)
    assert_same_configuration(name, model.integrate(q0, dv), q1, atol=1e-13)
    for k in ANGULAR[name]:
        assert np.linalg.norm(dv[:, k : k + 3], axis=-1).max() <= np.pi + 1e-14


@models
def test_zero_displacement(name):
    model = MODELS[name]
    q, dv = states(name, N, 3)
    np.testing.assert_allclose(model.integrate(q, 0 * dv), q, rtol=0, atol=5e-16)
    np.testing.assert_allclose(model.difference(q, q), 0 * dv, rtol=0, atol=2e-16)


@pytest.mark.parametrize("name", ["all", "free"])
def test_displacements_along_one_twist_add_up(name):
    model = MODELS[name]
    q, dv = states(name, N, 4)
    half = model.integrate(model.integrate(q, 0.3 * dv), 0.7 * dv)
    assert_same_configuration(name, half, model.integrate(q, dv), atol=1e-13)


def test_vector_coordinates_add():
    model = MODELS["all"]
    q, dv = states("all", N, 5)
    difference = np.asarray(model.integrate(q, dv) - q)
    for joint in ("revolute_0", "prismatic_2", "helical_3", "cylindrical_5", "universal_6", "planar_7"):
        joint += "_joint"
        np.testing.assert_allclose(difference[:, model.q_index(joint)], dv[:, model.v_index(joint)], rtol=1e-12)


def test_the_sign_of_a_quaternion_does_not_matter():
    model = MODELS["ball"]
    (q0, dv), (q1, _) = states("ball", N, 6), states("ball", N, 7)
    np.testing.assert_allclose(model.difference(-q0, q1), model.difference(q0, q1), rtol=0, atol=1e-14)
    np.testing.assert_allclose(model.integrate(-q0, dv), -model.integrate(q0, dv), rtol=0, atol=1e-15)


def pinocchio_chain(*types: str):
    joints = {
        "revolute": lambda: pin.JointModelRZ(),
        "prismatic": lambda: pin.JointModelPX(),
        "ball": lambda: pin.JointModelSpherical(),
        "free": lambda: pin.JointModelFreeFlyer(),
    }
    model, parent = pin.Model(), 0
    for k, kind in enumerate(types):
        parent = model.addJoint(parent, joints[kind](), pin.SE3.Identity(), f"{kind}_{k}")
    return model


def beside_pinocchio():
    """Return a model of each library, the positions of quaternions, the order of Pinocchio's coordinates, and random
    configurations and displacements."""
    types = ("free", "ball", "revolute", "prismatic", "free")
    ours, theirs = chain(*types), pinocchio_chain(*types)
    assert (ours.nq, ours.nv) == (theirs.nq, theirs.nv)
    # Pinocchio orders quaternions x y z w; here the order is w x y z.
    order, quaternions = np.arange(ours.nq), [3, 7, 16]
    for k in quaternions:
        order[k : k + 4] = np.roll(order[k : k + 4], -1)
    rng = np.random.default_rng(8)
    q0, q1 = (x for x in rng.normal(size=(2, N, ours.nq)))
    for q in (q0, q1):
        for k in quaternions:
            q[:, k : k + 4] /= np.linalg.norm(q[:, k : k + 4], axis=-1, keepdims=True)
    dv: Any = rng.normal(size=(N, ours.nv))
    return ours, theirs, quaternions, order, q0, q1, dv


def test_integrate_and_difference_match_pinocchio():
    ours, theirs, quaternions, order, q0, q1, dv = beside_pinocchio()
    back = np.argsort(order)
    expected = np.array([pin.integrate(theirs, a, d)[back] for a, d in zip(q0[:, order], dv, strict=True)])
    actual = np.array(ours.integrate(q0, dv))
    for k in quaternions:
        sign = np.sign((actual[:, k : k + 4] * expected[:, k : k + 4]).sum(-1, keepdims=True))
        actual[:, k : k + 4] *= sign
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-13)
    expected = [pin.difference(theirs, a, b) for a, b in zip(q0[:, order], q1[:, order], strict=True)]
    np.testing.assert_allclose(ours.difference(q0, q1), expected, rtol=0, atol=1e-10)


def test_jacobians_match_pinocchio():
    ours, theirs, _, order, q0, q1, dv = beside_pinocchio()
    dv[0], q1[0], dv[1] = 0, q0[0], 1e-9 * dv[1]
    pairs = [pin.dIntegrate(theirs, a, d) for a, d in zip(q0[:, order], dv, strict=True)]
    for actual, expected in zip(ours.integrate_jacobians(q0, dv), zip(*pairs, strict=True), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)
    pairs = [pin.dDifference(theirs, a, b) for a, b in zip(q0[:, order], q1[:, order], strict=True)]
    for actual, expected in zip(ours.difference_jacobians(q0, q1), zip(*pairs, strict=True), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("a", "b"), [pytest.param((), (4,), marks=pytest.mark.slow), ((4,), ()), ((2, 1, 1), (3, 4))])
def test_batch_axes_broadcast(a, b):
    model = MODELS["free"]
    q, dv = states("free", 24, 9)
    q, dv = (x[: int(np.prod(s))].reshape(*s, -1) for x, s in ((q, a), (dv, b)))
    batch = np.broadcast_shapes(a, b)
    Q, DV = jnp.broadcast_to(q, (*batch, 7)), jnp.broadcast_to(dv, (*batch, 6))
    q1 = model.integrate(q, dv)
    assert q1.shape == (*batch, 7)
    expected = model.integrate(Q.reshape(-1, 7), DV.reshape(-1, 6))
    np.testing.assert_allclose(q1.reshape(-1, 7), expected, rtol=0, atol=1e-15)
    assert model.difference(q, q1).shape == (*batch, 6)
    np.testing.assert_allclose(model.difference(q, q1), DV, rtol=0, atol=1e-12)
    for matrix in (*model.integrate_jacobians(q, dv), *model.difference_jacobians(q, q1)):
        assert matrix.shape == (*batch, 6, 6)


def test_jacobians_of_vectors_are_identities():
    model = MODELS["revolute"]
    by_q, by_dv = model.integrate_jacobians(jnp.zeros((5, 1)), jnp.ones(1))
    np.testing.assert_array_equal(by_q, np.ones((5, 1, 1)))
    np.testing.assert_array_equal(by_dv, by_q)


def test_vmap_is_the_batch_axis():
    model = MODELS["all"]
    q, dv = states("all", N, 10)
    np.testing.assert_allclose(jax.vmap(model.integrate)(q, dv), model.integrate(q, dv), rtol=0, atol=1e-15)


def test_single_precision():
    model = MODELS["all"].astype(jnp.float32)
    q, dv = (x.astype(np.float32) for x in states("all", N, 11))
    q1 = model.integrate(q, dv)
    assert q1.dtype == jnp.float32
    back = model.difference(q, q1)
    assert back.dtype == jnp.float32
    np.testing.assert_allclose(back, dv, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.integrate(jnp.zeros(6), jnp.zeros(6)), r"q has shape \(6,\).*nq = 7"),
        (lambda m: m.integrate(m.neutral(), jnp.zeros(7)), r"dv has shape \(7,\).*nv = 6"),
        (lambda m: m.difference(m.neutral(), jnp.zeros((7, 1))), r"q1 has shape \(7, 1\).*nq = 7"),
        (lambda m: m.checked(jnp.zeros(())), r"q has shape \(\).*nq = 7"),
    ],
)
def test_wrong_shapes(call, words):
    with pytest.raises(ShapeError, match=words):
        call(MODELS["free"])


def test_continuous_joints_differ_by_at_most_half_a_turn():
    """Only joints declared as continuous do; their springs count whole turns."""
    model = chain("continuous", "revolute", "ball", "continuous")
    q0, q1 = (np.array(model.neutral()) for _ in range(2))
    q1[[0, 1, -1]] = 2 * np.pi + 0.25, 2 * np.pi + 0.25, -2 * np.pi - 3.0
    expected = np.zeros(model.nv)
    expected[[0, 1, -1]] = 0.25, 2 * np.pi + 0.25, -3.0
    np.testing.assert_allclose(model.difference(q0, q1), expected, rtol=0, atol=1e-14)
    turned = np.linspace(-20, 20, 41)
    away = np.asarray(model.difference(q0, np.tile(q0, (41, 1)) + turned[:, None] * (np.arange(model.nq) == 0)))[:, 0]
    np.testing.assert_allclose(np.exp(1j * away), np.exp(1j * turned), rtol=0, atol=1e-13)
    assert np.abs(away).max() <= np.pi
    for matrix, sign in zip(model.difference_jacobians(q0, q1), (-1, 1), strict=True):
        assert matrix[0, 0] == sign
    builder = ModelBuilder()
    builder.add_body("body", joint=Joint("continuous", stiffness=2.0), inertia=BALL)
    np.testing.assert_allclose(spring_torque(builder.build(), np.array([7.0])), [14.0], rtol=1e-15)


# The chart in which integrators step


@pytest.mark.parametrize("name", ["all", "free"])
def test_chart_point_has_exponentials_and_parent_axes(name):
    model = MODELS[name]
    q, x = states(name, N, 30)
    point = np.asarray(model.chart_point(q, x))
    expected = np.array(model.integrate(q, x))
    if name == "all":
        expected[:, 1:4] = q[:, 1:4] + x[:, 1:4]
    else:
        expected[:, :3] = q[:, :3] + x[:, :3]
    np.testing.assert_allclose(point, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(model.chart_point(q, 0 * x), q, rtol=0, atol=5e-16)


@pytest.mark.parametrize("name", ["all", "free"])
def test_chart_rate_is_the_velocity_in_the_chart(name):
    """Coordinates that change at `chart_rate` move the configuration at its velocity."""
    model = MODELS[name]
    (q0, x), (_, v) = states(name, N, 31), states(name, N, 32)
    x[0] = 0
    q, h = model.chart_point(q0, x), 1e-5
    rate = np.asarray(model.chart_rate(q, x, v))
    ahead, behind = (model.difference(q, model.chart_point(q0, x + s * h * rate)) for s in (1, -1))
    np.testing.assert_allclose((ahead - behind) / (2 * h), v, rtol=0, atol=1e-8)


# Derivatives of a model with one joint of each kind of coordinates

SMALL = chain("prismatic", "free")
NQ, NV = SMALL.nq, SMALL.nv


def small_states(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(n, NQ))
    q[:, 4:] /= np.linalg.norm(q[:, 4:], axis=-1, keepdims=True)
    q[0] = SMALL.neutral()
    return q, rng.normal(size=(n, NV))


def first_derivatives(f, x, y):
    """Return the forward and reverse Jacobians with respect to both arguments, `[n, out, in]`."""

    def both(x, y):
        joined = jnp.concatenate([x, y])

        def g(joined):
            return f(joined[: len(x)], joined[len(x) :])

        return jax.jacfwd(g)(joined), jax.jacrev(g)(joined)

    fast = jax.jit(jax.vmap(both), compiler_options={"xla_backend_optimization_level": 0})
    return map(np.asarray, fast(x, y))


def central(f, x, y, step: float = 1e-5) -> np.ndarray:
    columns = []
    for a, b in ((step, 0), (0, step)):
        size = (x if a else y).shape[-1]
        for unit in np.eye(size):
            plus = f(x + a * unit, y) if a else f(x, y + b * unit)
            minus = f(x - a * unit, y) if a else f(x, y - b * unit)
            columns.append((np.asarray(plus) - np.asarray(minus)) / (2 * step))
    return np.stack(columns, axis=-1)


def test_derivatives_of_integrate():
    """Derivatives are right at zero displacement, at tiny, half and whole turns, and at the neutral configuration."""
    q, dv = small_states(10, 12)
    dv[0] = dv[1] = 0
    dv[2] *= 1e-9
    dv[3, 4:] = 0, -np.pi, 0
    dv[4, 4:] = 2 * np.pi, 0, 0
    forward, reverse = first_derivatives(SMALL.integrate, q, dv)
    assert np.isfinite(forward).all()
    np.testing.assert_allclose(forward, reverse, rtol=0, atol=1e-12)
    np.testing.assert_allclose(forward, central(SMALL.integrate, q, dv), rtol=0, atol=1e-8)


def test_derivatives_of_difference():
    """The derivatives are right between equal, nearly equal and random configurations."""
    (q0, dv), (q1, _) = small_states(10, 13), small_states(10, 14)
    q1[:2] = q0[:2]
    q1[2] = SMALL.integrate(q0[2], 1e-9 * dv[2])
    forward, reverse = first_derivatives(SMALL.difference, q0, q1)
    assert np.isfinite(forward).all()
    np.testing.assert_allclose(forward, reverse, rtol=0, atol=1e-11)
    scale = np.abs(forward).max()
    np.testing.assert_allclose(forward, central(SMALL.difference, q0, q1, 1e-6), rtol=0, atol=1e-8 * scale)


def displacement_jacobians(model):
    """Return functions of the arguments of the closed forms, which differentiate their definitions."""
    zero = jnp.zeros(model.nv)

    def integrate(q, dv):
        end = model.integrate(q, dv)
        return jax.jacfwd(lambda a, b: model.difference(end, model.integrate(model.integrate(q, a), dv + b)), (0, 1))

    def difference(q0, q1):
        return jax.jacfwd(lambda a, b: model.difference(model.integrate(q0, a), model.integrate(q1, b)), (0, 1))

    def point(q0, x, v):
        q = model.chart_point(q0, x)
        return jax.jacfwd(lambda a, b: model.difference(q, model.chart_point(model.integrate(q0, a), x + b)), (0, 1))

    def rate(q0, x, v):
        q = model.chart_point(q0, x)
        return jax.jacfwd(lambda a, b, c: model.chart_rate(model.integrate(q, a), x + b, v + c), (0, 1, 2))

    return {
        "integrate_jacobians": lambda *s: integrate(*s)(zero, zero),
        "difference_jacobians": lambda *s: difference(*s)(zero, zero),
        "chart_jacobians": lambda *s: (*point(*s)(zero, zero), *rate(*s)(zero, zero, zero)),
    }


@pytest.mark.parametrize("method", ["integrate_jacobians", "difference_jacobians", "chart_jacobians"])
def test_jacobians_in_closed_form(method):
    """They are those of forward mode at zero, tiny, small and large displacements, in both precisions, and finite at
    half a turn."""
    model = MODELS["all"]
    (q0, dv), (q1, _), (_, v) = (states("all", N, seed) for seed in (40, 41, 42))
    for k, size in enumerate((0.0, 1e-12, 1e-7, 1e-3, 0.05, 0.2)):
        dv[k] *= size
        q1[k] = model.integrate(q0[k], dv[k])
    arguments = {"integrate_jacobians": (q0, dv), "difference_jacobians": (q0, q1), "chart_jacobians": (q0, dv, v)}
    own = arguments[method]
    fast = jax.jit(
        jax.vmap(displacement_jacobians(model)[method]), compiler_options={"xla_backend_optimization_level": 0}
    )
    actual, expected = getattr(model, method)(*own), fast(*own)
    single = getattr(model.astype(jnp.float32), method)(*(x.astype(np.float32) for x in own))
    for a, b, c in zip(actual, expected, single, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)
        assert c.dtype == jnp.float32
        np.testing.assert_allclose(c, b, rtol=0, atol=4e-6)
    half = np.zeros((3, model.nv))
    half[:, 4:7] = np.pi * np.eye(3)
    turned = {"integrate_jacobians": (q0[:3], half), "chart_jacobians": (q0[:3], half, v[:3])}
    turned["difference_jacobians"] = q0[:3], model.integrate(q0[:3], half)
    assert all(np.isfinite(x).all() for x in getattr(model, method)(*turned[method]))


def gradients_and_hessians(f, x, *arguments):
    """Return the derivatives of a function of rows."""
    n, k = x.shape
    x, *arguments = (np.repeat(y, k, axis=0) for y in (x, *arguments))
    units = np.tile(np.eye(k, dtype=x.dtype), (n, 1))

    @jax.jit
    def along(x, units, *arguments):
        return jax.jvp(jax.grad(lambda x: jnp.sum(f(x, *arguments))), (x,), (units,))

    gradients, hessians = along(x, units, *arguments)
    assert gradients.dtype == hessians.dtype == x.dtype
    return np.asarray(gradients)[::k], np.asarray(hessians).reshape(n, k, k)


@pytest.mark.slow
def test_second_derivatives_are_right_at_zero():
    """`difference(q, integrate(q, x)) = x`, so the gradient is the weights and the Hessian vanishes."""
    model, q = MODELS["free"], states("free", 5, 15)[0]
    q[0] = model.neutral()
    weights = np.random.default_rng(20).normal(size=6)

    def weighted(x, q):
        return model.difference(q, model.integrate(q, x)) @ weights

    gradients, hessians = gradients_and_hessians(weighted, np.zeros((5, 6)), q)
    np.testing.assert_allclose(gradients, np.broadcast_to(weights, (5, 6)), rtol=0, atol=1e-13)
    np.testing.assert_allclose(hessians, np.zeros((5, 6, 6)), rtol=0, atol=1e-12)


def test_derivatives_of_difference_are_finite_at_half_a_turn():
    model = MODELS["ball"]
    q0 = np.array([[1.0, 0, 0, 0]] * 3)
    q1 = np.concatenate([np.zeros((3, 1)), np.eye(3)], axis=-1)
    weights = np.array([1.0, 2, 3])
    gradients, hessians = gradients_and_hessians(lambda q1, q0: model.difference(q0, q1) @ weights, q1, q0)
    # At a half turn d log / dw = -2 v, and log changes by pi times a change of v's direction.
    expected = np.concatenate([-2 * weights[:, None], np.pi * (1 - np.eye(3)) * weights], axis=-1)
    np.testing.assert_allclose(gradients, expected, rtol=0, atol=1e-13)
    assert np.isfinite(hessians).all()


# Neutral and random configurations


@pytest.mark.parametrize("name", list(MODELS))
def test_neutral(name):
    model = MODELS[name]
    expected = np.zeros(model.nq)
    expected[QUATERNIONS[name]] = 1
    np.testing.assert_array_equal(model.neutral(), expected)


@pytest.mark.parametrize("name", ["all", "revolute"])
def test_random_configurations(name):
    model = MODELS[name]
    q = np.asarray(model.random_configuration(jax.random.key(0), (20, 30)))
    assert q.shape == (20, 30, model.nq)
    assert model.random_configuration(jax.random.key(0)).shape == (model.nq,)
    assert ((q >= model.position_lower) & (q <= model.position_upper)).all()
    for k in QUATERNIONS[name]:
        np.testing.assert_allclose(np.linalg.norm(q[..., k : k + 4], axis=-1), 1, rtol=1e-6)
    # Each coordinate has its own random numbers.
    flat = q.reshape(-1, model.nq)
    correlation = np.atleast_2d(np.corrcoef(flat.T)) - np.eye(model.nq)
    assert np.abs(correlation).max() < 0.2
    redrawn = model.random_configuration(jax.random.key(1), (20, 30))
    assert not np.isclose(q, redrawn).any(axis=(0, 1)).all()


def test_random_configurations_fill_their_ranges():
    model = MODELS["all"]
    q = np.asarray(model.random_configuration(jax.random.key(2), (2000,)))
    reach = {
        "revolute_0": [(-0.5, 1.5)],
        "prismatic_2": [(2, 3)],
        "helical_3": [(-np.pi, np.pi)],
        "cylindrical_5": [(-1, 1), (-0.1, 0.2)],
        "universal_6": [(-np.pi, np.pi)] * 2,
        "planar_7": [(-1, 1), (-1, 1), (-np.pi, np.pi)],
    }
    for joint, ranges in reach.items():
        columns = q[:, model.q_index(f"{joint}_joint")].T
        for x, (low, high) in zip(columns, ranges, strict=True):
            u = (x - low) / (high - low)
            assert ((u >= 0) & (u <= 1)).all()
            # The mean and second moment are those of a uniform distribution within four standard errors.
            np.testing.assert_allclose(u.mean(), 1 / 2, atol=4 * np.sqrt(1 / 12 / len(u)))
            np.testing.assert_allclose((u * u).mean(), 1 / 3, atol=4 * np.sqrt(4 / 45 / len(u)))


def test_random_configuration_respects_one_limit_alone():
    builder = ModelBuilder()
    builder.add_body("a", joint=Joint(lower=4.0), inertia=BALL)
    builder.add_body("b", joint=Joint("prismatic", upper=-3.0), inertia=BALL)
    q = builder.build().random_configuration(jax.random.key(0), (100,))
    assert (q[:, 0] >= 4).all()
    assert (q[:, 1] <= -3).all()


def test_random_rotations_are_uniform():
    """The angle of a uniform rotation has density (1 - cos t) / pi; its axis and its images of vectors are uniform."""
    q = np.asarray(MODELS["ball"].random_configuration(jax.random.key(3), (5000,)))
    rotations = Rotation.from_quat(np.roll(q, -1, axis=-1))
    t = np.sort(rotations.magnitude())
    distribution = (t - np.sin(t)) / np.pi
    # The Kolmogorov-Smirnov test has a significance of 1e-3.
    assert np.abs(distribution - (np.arange(5000) + 0.5) / 5000).max() < 1.95 / np.sqrt(5000)
    # Each coordinate of a uniform direction is uniform in [-1, 1] (Archimedes).
    for image in rotations.as_matrix().transpose(1, 2, 0).reshape(9, -1):
        u = np.sort(0.5 * (image + 1))
        assert np.abs(u - (np.arange(5000) + 0.5) / 5000).max() < 1.95 / np.sqrt(5000)


def test_random_configuration_traces_and_maps():
    model = MODELS["all"]
    keys = jax.random.split(jax.random.key(4), 3)
    q = jax.jit(jax.vmap(model.random_configuration))(keys)
    np.testing.assert_allclose(q[1], model.random_configuration(keys[1]), rtol=1e-12)


# Indices and names


def test_indices():
    model = MODELS["all"]
    starts = [(0, 1), (1, 8), (8, 9), (9, 10), (10, 14), (14, 16), (16, 18), (18, 21), (21, 25)]
    speeds = [(0, 1), (1, 7), (7, 8), (8, 9), (9, 12), (12, 14), (14, 16), (16, 19), (19, 22)]
    for name, q, v in zip(model.joint_names, starts, speeds, strict=True):
        assert model.q_index(name) == slice(*q)
        assert model.v_index(name) == slice(*v)
    assert (model.nq, model.nv) == (25, 22)


@pytest.mark.parametrize("method", ["q_index", "v_index"])
def test_unknown_joints_suggest_the_nearest(method):
    with pytest.raises(UnknownNameError, match="no joint named 'planr_7_joint': did you mean 'planar_7_joint'"):
        getattr(MODELS["all"], method)("planr_7_joint")
    with pytest.raises(UnknownNameError, match="no joint named 'xyz': known: 'revolute_0_joint'"):
        getattr(MODELS["revolute"], method)("xyz")
    with pytest.raises(KeyError):
        getattr(MODELS["revolute"], method)("")


# Checks at run time

check_all = eqx.filter_jit(MODELS["all"].checked)


def test_checked_passes_what_is_good():
    q, _ = states("all", 6, 16)
    np.testing.assert_array_equal(check_all(q), q)
    # A quaternion that a controller has rounded passes.
    np.testing.assert_array_equal(check_all(q * 1.0005), q * 1.0005)
    np.testing.assert_array_equal(MODELS["revolute"].checked(jnp.array([100.0])), [100.0])


@pytest.mark.parametrize(
    ("index", "value", "words"),
    [
        (0, np.nan, "q has NaN"),
        (5, np.nan, "q has NaN"),
        (4, 3.0, r"joint 'free_1_joint', q\[4:8\], is not unit"),
        (13, 3.0, r"joint 'ball_4_joint', q\[10:14\], is not unit"),
        (21, -3.0, r"joint 'ball_8_joint', q\[21:25\], is not unit"),
        (21, np.inf, "infinite"),
    ],
)
def test_checked_raises_at_run_time(index, value, words):
    q, _ = states("all", 6, 16)
    q[4, index] = value
    with pytest.raises(eqx.EquinoxRuntimeError, match=words):
        jax.block_until_ready(check_all(q))


def test_checked_under_vmap_and_for_zero_quaternions():
    model = MODELS["free"]
    checked = eqx.filter_jit(lambda q: jax.vmap(model.checked)(q))
    q = np.tile(np.asarray(model.neutral()), (3, 1))
    np.testing.assert_array_equal(checked(q), q)
    q[1] = 0
    with pytest.raises(eqx.EquinoxRuntimeError, match="not unit"):
        jax.block_until_ready(checked(q))


@pytest.mark.slow
def test_quaternions_whose_squares_single_precision_does_not_have():
    """A quaternion stands for its direction, whatever its length: here the squares are infinite or zero."""
    with jax.enable_x64(False):
        model = chain("free", "ball")
        q = np.array([0.3, -0.2, 0.5, 0.5, 0.5, -0.5, 0.5, 0.1, 0.7, 0.1, 0.7], np.float32)
        q[7:] /= np.linalg.norm(q[7:])
        dv = np.linspace(-0.4, 0.6, model.nv, dtype=np.float32)

        @jax.jit
        def answers(q):
            torque = jax.grad(lambda dv: jaxdyn.potential_energy(model, model.integrate(q, dv)))(0 * dv)
            moved = model.integrate(q, dv)
            return {
                "gravity": jaxdyn.generalized_gravity(model, q),
                "slope": torque,
                "moved": moved,
                "difference": model.difference(q, moved),
                "back": model.difference(moved, q),
                "poses": jaxdyn.forward_kinematics(model, q).rotation,
                "gradient": jax.grad(lambda q: jaxdyn.potential_energy(model, q))(q),
            }

        expected = answers(q)
        assert np.abs(expected["gravity"]).max() > 1
        for length in (1e20, 1e-30):
            lengths = np.array([1, 1, 1] + 8 * [length], np.float32)
            got = answers(q * lengths)
            # The slope by a component is that of the unit quaternion divided by the length.
            got["gradient"] = got["gradient"] * lengths
            for name in expected:
                np.testing.assert_allclose(got[name], expected[name], atol=2e-5, err_msg=f"{name} {length}")
