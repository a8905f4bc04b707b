"""Analytic derivatives of inverse and forward dynamics equal Pinocchio's, central differences along the manifold, and
generic derivatives of the recursions."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

import jaxdyn
from jaxdyn import ShapeError
from jaxdyn.algorithms import _first_derivatives
from jaxdyn.algorithms.recursions import _dof_matrices
from jaxdyn.io import load_urdf
from jaxdyn.native import _target
from tests import draws
from tests.oracles import PinocchioOracle, relative_error, to_pinocchio
from tests.robots import robot_path

STATES = 3
TOLERANCE = 1e-10
ROBOTS = {"ur5": False, "solo12": True, "panda": False, "kinova": False, "anymal": True, "talos_reduced": True}
JOINTS = ("free", "ball", "planar", "helical", "universal")


class Case(NamedTuple):
    model: jaxdyn.Model
    oracle: PinocchioOracle
    q: jax.Array
    v: jax.Array
    a: jax.Array


@functools.cache
def case(name: str) -> Case:
    """A model with friction in every joint, Pinocchio's model without friction, and random states."""
    if name in ROBOTS:
        path, free = str(robot_path(name)), ROBOTS[name]
        model = load_urdf(path, free_base=free, mimic="independent")
        pin_model = pin.buildModelFromUrdf(path, pin.JointModelFreeFlyer()) if free else pin.buildModelFromUrdf(path)
    else:
        model = jaxdyn.samples.random_tree(jax.random.key(2), len(JOINTS), JOINTS, branching=2)
        pin_model = to_pinocchio(model)
    damping, friction = np.random.default_rng(0).uniform(0.1, 0.5, (2, model.nv))
    # The friction velocity of 2 is so wide that Coulomb friction has a slope at the velocities of the tests.
    values = [jnp.asarray(damping), jnp.asarray(friction), jnp.full(model.nv, 2.0)]
    model = eqx.tree_at(lambda m: (m.damping, m.friction, m.friction_velocity), model, values)
    q, v, a, _ = jax.device_put(draws.states(model, 7, STATES))
    # All arrays get one dtype that is not weak, so that one program serves all models and models derived from them.
    model = model.astype(jnp.float64)
    return Case(model, PinocchioOracle(model, pin_model), q, v, a)


def friction(model, v):
    return model.damping * v + model.friction * np.tanh(v / model.friction_velocity)


def friction_slope(model, v):
    """The derivative of `friction` by `v`, as diagonal matrices."""
    slope = model.damping + model.friction / model.friction_velocity / np.cosh(v / model.friction_velocity) ** 2
    return np.asarray(slope)[..., None] * np.eye(model.nv)


def arguments(name: str, joint_friction: bool):
    """Return the model, `q`, `v`, `a`, and a torque with the same acceleration with and without friction."""
    model, _, q, v, a = case(name)
    return model, q, v, a, 10 * a + (friction(model, v) if joint_friction else 0)


def matrices(joint_friction: bool):
    """Return a function of the derivatives of inverse dynamics at `a` and of forward dynamics at `tau`."""

    def evaluate(model, q, v, a, tau):
        inverse = jaxdyn.rnea_derivatives(model, q, v, a, joint_friction=joint_friction)
        return inverse, jaxdyn.aba_derivatives(model, q, v, tau, joint_friction=joint_friction)

    return evaluate


@functools.cache
def program(joint_friction: bool):
    return jax.jit(matrices(joint_friction))


@functools.cache
def computed(name: str, joint_friction: bool):
    return program(joint_friction)(*arguments(name, joint_friction))


def run(f, *args):
    """Compile `f` as a new function, and call it."""
    return jax.jit(lambda *args: f(*args))(*args)


# Pinocchio


def symmetric(upper):
    return np.triu(upper) + np.triu(upper, 1).T


@functools.cache
def pinocchio_matrices(name: str):
    """Pinocchio's derivatives without friction, in the order of our model."""
    _, oracle, q, v, x = case(name)
    rows, pin_model, data = oracle.v_rows, oracle.pin_model, oracle.data
    inverse, forward = [], []
    for state in zip(q, v, x, strict=True):
        q_and_v = oracle.q(state[0]), oracle.v(state[1])
        pin.computeRNEADerivatives(pin_model, data, *q_and_v, oracle.v(state[2]))
        inverse.append([data.dtau_dq.copy(), data.dtau_dv.copy(), symmetric(data.M)])
        pin.computeABADerivatives(pin_model, data, *q_and_v, oracle.v(10 * state[2]))
        forward.append([data.ddq_dq.copy(), data.ddq_dv.copy(), symmetric(data.Minv)])
    return [[np.array(x)[:, rows][:, :, rows] for x in zip(*y, strict=True)] for y in (inverse, forward)]


NAMES = ("dtau_dq", "dtau_dv", "M", "da_dq", "da_dv", "Minv")


def check_against_pinocchio(name: str, computed, joint_friction: bool) -> None:
    (dtau_dq, dtau_dv, M), (da_dq, da_dv, Minv) = pinocchio_matrices(name)
    model, _, _, v, _ = case(name)
    if joint_friction:
        slope = friction_slope(model, v)
        dtau_dv = dtau_dv + slope
        da_dv = da_dv - Minv @ slope
    # Pinocchio 4.1 treats the axes of a universal joint as fixed in the moving body; central differences disagree.
    kinds = np.repeat(model.topology.joint_types, np.diff(model.topology.v_starts))
    compared = np.flatnonzero(kinds != "universal")
    expected = dtau_dq, dtau_dv, M, da_dq, da_dv, Minv
    for what, got, want in zip(NAMES, jax.tree.leaves(computed), expected, strict=True):
        assert relative_error(got[..., compared], want[..., compared]) < TOLERANCE, what
    for symmetric in (computed[0][2], computed[1][2]):
        np.testing.assert_allclose(symmetric, np.swapaxes(symmetric, -1, -2), atol=1e-12 * np.abs(symmetric).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ROBOTS)
def test_robots_without_friction(name):
    check_against_pinocchio(name, computed(name, False), False)


def test_a_tree_with_friction():
    check_against_pinocchio("tree", computed("tree", True), True)


def test_the_robots_have_matrices_of_both_layouts():
    """Some models are small enough for matrices with the batch last: the tests above, with the slow ones, cover both
    layouts."""
    assert case("ur5").model.nv < case("tree").model.nv <= _dof_matrices.BATCH_LAST_LIMIT < case("solo12").model.nv


@pytest.fixture(params=[True, False], ids=["batch last", "batch first"])
def layout(request, monkeypatch):
    """One layout for all robots. No program with the other one is used: each test compiles new functions, and native
    programs are forgotten."""
    _target.cached_target.cache_clear()
    used = []

    class Spy(_dof_matrices.DofMatrices):
        def __init__(self, *args):
            super().__init__(*args)
            used.append(self.batch_last)

    monkeypatch.setattr(_dof_matrices, "BATCH_LAST_LIMIT", 1000 if request.param else 0)
    monkeypatch.setattr(_first_derivatives, "DofMatrices", Spy)
    yield request.param
    _target.cached_target.cache_clear()
    assert set(used) == {request.param}


@pytest.mark.slow
@pytest.mark.parametrize("layout", [False], ids=["batch first"], indirect=True)
def test_the_other_layout(layout):
    """The layout with the batch first is correct for a robot that has its batch last by default."""
    check_against_pinocchio("tree", run(matrices(True), *arguments("tree", True)), True)


# Central differences


def test_central_differences_along_the_manifold():
    model, q, v, a, tau = arguments("tree", True)
    step, eye = 1e-6, jnp.eye(model.nv)
    signed = jnp.stack([step * eye, -step * eye])[:, :, None]
    none = jnp.zeros_like(signed)
    # One batch holds both displacements along every direction of each argument.
    dq, dv, dx = (jnp.stack([signed if k == i else none for i in range(3)]) for k in range(3))

    for function, x, got in zip((jaxdyn.rnea, jaxdyn.aba), (a, tau), computed("tree", True), strict=True):
        values = function(model, model.integrate(q, dq), v + dv, x + dx)
        expected = np.moveaxis((values[:, 0] - values[:, 1]) / (2 * step), 1, -1)
        for k in range(3):
            assert relative_error(got[k], expected[k]) < 1e-7, (function, k)


@pytest.mark.slow
def test_external_wrenches_do_not_turn_with_the_bodies():
    """Derivatives under wrenches are central differences, and those that reverse mode takes are the same."""
    model, q, v, a, tau = (x[0] if k else x for k, x in enumerate(arguments("tree", True)))
    f_ext = jax.random.normal(jax.random.key(9), (model.nb, 6))
    step, bar = 1e-6 * jnp.eye(model.nv), jax.random.normal(jax.random.key(1), (model.nv,))
    functions = (jaxdyn.rnea, jaxdyn.rnea_derivatives, a), (jaxdyn.aba, jaxdyn.aba_derivatives, tau)
    for function, derivatives, x in functions:
        by_q, by_v, by_x = derivatives(model, q, v, x, f_ext)
        ahead, behind = (function(model, model.integrate(q, s * step), v, x, f_ext) for s in (1, -1))
        assert relative_error(by_q, (ahead - behind).T / 2e-6) < 1e-7
        plain = derivatives(model, q, v, x)[0]
        assert relative_error(by_q, plain) > 1e-2

        def weighted(dq, v, x, function=function):
            return bar @ function(model, model.integrate(q, dq), v, x, f_ext)

        pulled = run(jax.grad(weighted, (0, 1, 2)), jnp.zeros(model.nv), v, x)
        for ours, matrix in zip(pulled, (by_q, by_v, by_x), strict=True):
            assert relative_error(ours[None], (bar @ matrix)[None]) < 1e-9


# Generic differentiation: the analytic derivatives are not used where one by external wrenches is asked for, too.


@functools.cache
def one_state():
    """The first state of the tree, with quaternions that are not of unit length: only their direction counts."""
    model, q, v, a, tau = arguments("tree", True)
    q = q[0]
    for name, kind in zip(model.joint_names, model.topology.joint_types, strict=True):
        if kind in ("ball", "free"):
            stop = model.q_index(name).stop
            q = q.at[stop - 4 : stop].multiply(1.3)
    return model, (q, v[0], a[0], tau[0])


def inverse_and_forward(model, *wrenches):
    return lambda q, v, a, tau: (jaxdyn.rnea(model, q, v, a, *wrenches), jaxdyn.aba(model, q, v, tau, *wrenches))


ARGUMENTS = (0, 1, 2), (0, 1, 3)
"""The positions of the arguments of inverse and of forward dynamics."""


@functools.cache
def jacobians():
    """The Jacobians of inverse dynamics by forward mode, and those of forward dynamics by reverse mode."""
    model, state = one_state()

    def evaluate(*state):
        inverse, forward = (lambda *s, k=k: inverse_and_forward(model)(*s)[k] for k in range(2))
        every = (0, 1, 2, 3)
        return jax.jacfwd(inverse, argnums=every)(*state), jax.jacrev(forward, argnums=every)(*state)

    return run(evaluate, *state)


@pytest.mark.slow
def test_jacobians_are_the_matrices():
    """The Jacobians by the coordinates `q`, restricted to the tangent space, are the analytic matrices."""
    model, state = one_state()
    # `along` maps the tangent space to changes of unit quaternions; `scale` accounts for the lengths of ours.
    along = jax.jacfwd(lambda dv: model.integrate(state[0], dv))(jnp.zeros(model.nv))
    unit = model.integrate(state[0], jnp.zeros(model.nv))
    scale = jnp.where(jnp.abs(unit) > 0, state[0] / unit, 1.0)
    for k, wrt in enumerate(ARGUMENTS):
        by_q, *others = (jacobians()[k][i] for i in wrt)
        for x, y in zip(((by_q * scale) @ along, *others), computed("tree", True)[k], strict=True):
            assert relative_error(x[None], y[:1]) < 1e-9
    # Inverse dynamics does not depend on the torque, nor forward dynamics on the acceleration.
    assert not jacobians()[0][3].any()
    assert not jacobians()[1][2].any()


@pytest.mark.slow
def test_jacobians_are_the_generic_ones():
    """The Jacobians equal generic ones, which a derivative by external wrenches beside them selects."""
    model, state = one_state()
    wrenches = jnp.zeros((model.nb, 6))

    def function(q, v, a, tau, wrenches):
        return inverse_and_forward(model, wrenches)(q, v, a, tau)

    for generic in (jax.jacfwd, jax.jacrev):
        value = run(generic(function, argnums=(0, 1, 2, 3, 4)), *state, wrenches)
        for k, wrt in enumerate(ARGUMENTS):
            for i in wrt:
                assert relative_error(jacobians()[k][i][None], value[k][i][None]) < 1e-9


@pytest.mark.slow
def test_gradients_of_inverse_dynamics_are_the_generic_ones():
    """Gradients equal generic ones, also by the coordinates of quaternions that are not of unit length."""
    model, state = one_state()
    bar = jax.random.normal(jax.random.key(1), (model.nv,))
    wrenches = jnp.zeros((model.nb, 6))
    generic = run(jax.grad(lambda *s: bar @ jaxdyn.rnea(model, *s), argnums=(0, 1, 2, 3)), *state[:3], wrenches)
    for x, J in zip(generic[:3], jacobians()[0], strict=False):
        assert relative_error((bar @ J)[None], x[None]) < 1e-9


@pytest.mark.slow
def test_reverse_gradients_by_the_pullback():
    """Reverse gradients of both functions, and one by the velocity alone, equal products with the Jacobians."""
    model, state = one_state()
    bars = jax.random.normal(jax.random.key(1), (2, model.nv))

    def pulled(*state):
        functions = [lambda *s, k=k: bars[k] @ inverse_and_forward(model)(*s)[k] for k in range(2)]
        by_velocity = jax.grad(functions[0], argnums=1)(*state)
        return [jax.grad(f, argnums=wrt)(*state) for f, wrt in zip(functions, ARGUMENTS, strict=True)], by_velocity

    actual, by_velocity = run(pulled, *state)
    for k, wrt in enumerate(ARGUMENTS):
        for x, i in zip(actual[k], wrt, strict=True):
            assert relative_error(x[None], (bars[k] @ jacobians()[k][i])[None]) < 1e-9
    np.testing.assert_allclose(by_velocity, actual[0][1], rtol=1e-12)


# Second derivatives of forward dynamics


HINGES, BALL = ("revolute", "prismatic"), ("ball", "revolute")


@functools.cache
def differentiated(types: tuple[str, ...]):
    """For two joints with friction, return `a` as a function of all its arguments, these arguments, and central
    differences of its first derivative, which is tested above."""
    model = jaxdyn.samples.random_tree(jax.random.key(3), 2, types, branching=1)
    model = eqx.tree_at(lambda m: m.friction_velocity, model, jnp.full(model.nv, 2.0))
    q = model.random_configuration(jax.random.key(4))
    z = jnp.concatenate([q, *jax.random.normal(jax.random.key(5), (2, model.nv))])

    def accelerate(z):
        return jaxdyn.aba(model, *jnp.split(z, (model.nq, model.nq + model.nv), axis=-1))

    step = 1e-5 * jnp.eye(z.size)
    jacobians = run(jax.vmap(jax.jacrev(accelerate)), jnp.concatenate([z + step, z - step]))
    up, down = jnp.split(jacobians, 2)
    return accelerate, z, jnp.moveaxis((up - down) / 2e-5, 0, -1)


def check_second_derivatives(types, outer, inner) -> None:
    accelerate, z, expected = differentiated(types)
    value = run(outer(inner(accelerate)), z)
    assert relative_error(value[None], expected[None]) < 1e-7
    np.testing.assert_allclose(value, np.swapaxes(value, -1, -2), atol=1e-10 * np.abs(value).max())


@pytest.mark.slow
def test_second_derivatives(layout):
    """Generic derivatives of the matrices are correct: forward mode with the batch last, reverse mode with it first."""
    check_second_derivatives(HINGES, *((jax.jacfwd, jax.jacrev) if layout else (jax.jacrev, jax.jacfwd)))


@pytest.mark.slow
@pytest.mark.parametrize("types", [HINGES, BALL], ids="-".join)
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
def test_second_derivatives_in_every_order(outer, inner, types, layout):
    check_second_derivatives(types, outer, inner)


@pytest.mark.slow
@pytest.mark.parametrize("types", [HINGES, BALL], ids="-".join)
def test_second_derivatives_of_the_pullback(types):
    accelerate, z, expected = differentiated(types)
    bar, dot = jnp.arange(1.0, 1 + len(expected)), jax.random.normal(jax.random.key(6), z.shape)
    gradient = jax.grad(lambda z: bar @ accelerate(z))
    value = run(lambda z: jax.jvp(gradient, (z,), (dot,))[1], z)
    assert relative_error(value[None], (bar @ (expected @ dot))[None]) < 1e-7


# Batches, precision, errors


@pytest.mark.slow
def test_batches_of_models_in_single_precision():
    """Models in a batch give the same as one model after the other in double precision."""
    model, q, v, a, tau = (x.astype(jnp.float32) for x in arguments("tree", True))
    leaves = ("inertial_parameters", "armature", "joint_placement", "gravity", "damping")
    many = [jnp.stack([getattr(model, name), 1.25 * getattr(model, name)]) for name in leaves]

    def changed(values):
        return eqx.tree_at(lambda m: [getattr(m, name) for name in leaves], model, values)

    value = run(jaxdyn.aba_derivatives, changed([x[:, None] for x in many]), q, v, tau)
    for k in range(2):
        # The inputs are the same numbers in both precisions, so the test compares the arithmetic, not input rounding.
        double = [x.astype(jnp.float64) for x in (changed([x[k] for x in many]), q, v, a, tau)]
        for what, x, y in zip(NAMES[3:], value, program(True)(*double)[1], strict=True):
            assert x.dtype == jnp.float32
            assert x.shape == (2, STATES, model.nv, model.nv)
            assert relative_error(x[k], y) < 1e-4, what
            assert relative_error(x[1 - k], y) > 1e-3


@pytest.mark.slow
def test_maps_over_models_and_states():
    """Nested maps over models and states, along axes that are not the first, give the same matrices."""
    model, q, v, a, _ = arguments("tree", True)
    masses = jnp.stack([model.inertial_parameters, 1.25 * model.inertial_parameters], axis=1)

    def evaluate(parameters, q, v, a):
        changed = eqx.tree_at(lambda m: m.inertial_parameters, model, parameters)
        return jaxdyn.rnea_derivatives(changed, q, v, a)

    mapped = jax.vmap(jax.vmap(evaluate, (None, 1, 0, 0), 1), (1, None, None, None), -1)
    for x, y in zip(run(mapped, masses, q.T, v, a), computed("tree", True)[0], strict=True):
        np.testing.assert_allclose(jnp.swapaxes(x[..., 0], 0, 1), y, rtol=1e-10, atol=1e-10 * np.abs(y).max())
        assert relative_error(jnp.swapaxes(x[..., 1], 0, 1), y) > 1e-3


@pytest.mark.parametrize("function", [jaxdyn.rnea_derivatives, jaxdyn.aba_derivatives])
def test_errors_name_the_argument(function):
    model, x = jaxdyn.samples.arm(), jnp.zeros(7)
    last = "a" if function is jaxdyn.rnea_derivatives else "tau"
    for args, words in (
        ((model, x[:6], x, x), ["q", "(6,)", "nq = 7"]),
        ((model, x, x[:, None], x), ["v", "(7, 1)", "nv = 7"]),
        ((model, x, x, x[:3]), [last, "(3,)", "nv = 7"]),
        ((model, jnp.zeros((2, 7)), jnp.zeros((3, 7)), x), ["broadcast", "q [2]", "v [3]"]),
        ((model, x, x.astype(complex), x), ["v", "complex"]),
        ((x, x, x, x), ["Model"]),
    ):
        with pytest.raises(ShapeError) as caught:
            function(*args)
        for word in words:
            assert word in str(caught.value)
