"""Analytic derivatives of inverse and forward dynamics: against Pinocchio, against central differences along the
manifold, and against generic differentiation of the recursions."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from oracles import PinocchioOracle, relative_error, to_pinocchio
from robots import robot_path

import jaxdyn
from jaxdyn import ShapeError
from jaxdyn.algorithms import _derivatives, _pairs
from jaxdyn.io import load_urdf

STATES = 3
TOLERANCE = 1e-10
ROBOTS = {"ur5": False, "solo12": True, "talos_reduced": True}
JOINTS = ("free", "ball", "planar", "helical", "universal")


class Case(NamedTuple):
    model: jaxdyn.Model
    oracle: PinocchioOracle
    q: jax.Array
    v: jax.Array
    a: jax.Array


@functools.cache
def case(name: str) -> Case:
    """A model with friction in every joint, Pinocchio's without, and random states."""
    if name in ROBOTS:
        path, free = str(robot_path(name)), ROBOTS[name]
        model = load_urdf(path, free_base=free)
        pin_model = pin.buildModelFromUrdf(path, pin.JointModelFreeFlyer()) if free else pin.buildModelFromUrdf(path)
    else:
        model = jaxdyn.samples.random_tree(jax.random.key(2), len(JOINTS), JOINTS, branching=2)
        pin_model = to_pinocchio(model)
    damping, friction = np.random.default_rng(0).uniform(0.1, 0.5, (2, model.nv))
    # Wide enough that Coulomb friction has a slope at the velocities of the tests.
    values = [jnp.asarray(damping), jnp.asarray(friction), jnp.full(model.nv, 2.0)]
    model = eqx.tree_at(lambda m: (m.damping, m.friction, m.friction_velocity), model, values)
    q = model.random_configuration(jax.random.key(7), (STATES,))
    v, a = jax.random.normal(jax.random.key(8), (2, STATES, model.nv))
    return Case(model, PinocchioOracle(model, pin_model), q, v, a)


def friction(model, v):
    return model.damping * v + model.friction * np.tanh(v / model.friction_velocity)


def friction_slope(model, v):
    """As matrices."""
    slope = model.damping + model.friction / model.friction_velocity / np.cosh(v / model.friction_velocity) ** 2
    return np.asarray(slope)[..., None] * np.eye(model.nv)


def arguments(name: str, joint_friction: bool):
    """With as much torque as makes the same acceleration with and without friction."""
    model, _, q, v, a = case(name)
    return model, q, v, a, 10 * a + (friction(model, v) if joint_friction else 0)


def matrices(joint_friction: bool):
    """Those of inverse dynamics at `a`, and of forward dynamics at `tau`, as one program."""

    def of(model, q, v, a, tau):
        inverse = jaxdyn.rnea_derivatives(model, q, v, a, joint_friction=joint_friction)
        return inverse, jaxdyn.aba_derivatives(model, q, v, tau, joint_friction=joint_friction)

    return of


@functools.cache
def program(joint_friction: bool):
    return jax.jit(matrices(joint_friction))


@functools.cache
def computed(name: str, joint_friction: bool):
    return program(joint_friction)(*arguments(name, joint_friction))


def run(f, *args):
    """Compiled anew."""
    return jax.jit(lambda *args: f(*args))(*args)


# Pinocchio


def symmetric(upper):
    return np.triu(upper) + np.triu(upper, 1).T


@functools.cache
def pinocchio_matrices(name: str):
    """In the order of our model; without friction."""
    _, oracle, q, v, x = case(name)
    rows, pin_model, data = oracle.v_rows, oracle.pin_model, oracle.data
    inverse, forward = [], []
    for state in zip(q, v, x, strict=True):
        at = oracle.q(state[0]), oracle.v(state[1])
        pin.computeRNEADerivatives(pin_model, data, *at, oracle.v(state[2]))
        inverse.append([data.dtau_dq.copy(), data.dtau_dv.copy(), symmetric(data.M)])
        pin.computeABADerivatives(pin_model, data, *at, oracle.v(10 * state[2]))
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
    # Pinocchio 4.1 takes the axes of a universal joint as fixed in what it moves; central differences tell.
    kinds = np.repeat(model.topology.joint_types, np.diff(model.topology.v_starts))
    compared = np.flatnonzero(kinds != "universal")
    expected = dtau_dq, dtau_dv, M, da_dq, da_dv, Minv
    for what, got, want in zip(NAMES, jax.tree.leaves(computed), expected, strict=True):
        assert relative_error(got[..., compared], want[..., compared]) < TOLERANCE, what
    for symmetric in (computed[0][2], computed[1][2]):
        np.testing.assert_allclose(symmetric, np.swapaxes(symmetric, -1, -2), atol=1e-12 * np.abs(symmetric).max())


@pytest.mark.parametrize("name", ROBOTS)
def test_robots_without_friction(name):
    check_against_pinocchio(name, computed(name, False), False)


def test_a_tree_with_friction():
    check_against_pinocchio("tree", computed("tree", True), True)


def test_the_robots_have_matrices_of_both_layouts():
    """Else the tests above would not have seen both."""
    assert case("ur5").model.nv < case("tree").model.nv <= _pairs.BATCH_LAST_LIMIT < case("solo12").model.nv


@pytest.fixture(params=[True, False], ids=["batch last", "batch first"])
def layout(request, monkeypatch):
    """One layout for all robots. What is compiled before is not used again: tests compile functions of their own."""
    used = []

    class Spy(_pairs.Pairs):
        def __init__(self, *args):
            super().__init__(*args)
            used.append(self.batch_last)

    monkeypatch.setattr(_pairs, "BATCH_LAST_LIMIT", 1000 if request.param else 0)
    monkeypatch.setattr(_derivatives, "Pairs", Spy)
    yield request.param
    assert set(used) == {request.param}


@pytest.mark.parametrize("layout", [False], ids=["batch first"], indirect=True)
def test_the_other_layout(layout):
    """On a robot that has its batch last by itself."""
    check_against_pinocchio("tree", run(matrices(True), *arguments("tree", True)), True)


# Central differences


def test_central_differences_along_the_manifold():
    model, q, v, a, tau = arguments("tree", True)
    step, eye = 1e-6, jnp.eye(model.nv)
    signed = jnp.stack([step * eye, -step * eye])[:, :, None]
    none = jnp.zeros_like(signed)
    # All of one batch: by each argument, up and down, every direction.
    dq, dv, dx = (jnp.stack([signed if k == i else none for i in range(3)]) for k in range(3))

    for function, x, got in zip((jaxdyn.rnea, jaxdyn.aba), (a, tau), computed("tree", True), strict=True):
        values = function(model, model.integrate(q, dq), v + dv, x + dx)
        expected = np.moveaxis((values[:, 0] - values[:, 1]) / (2 * step), 1, -1)
        for k in range(3):
            assert relative_error(got[k], expected[k]) < 1e-7, (function, k)


# Generic differentiation: a function's own derivatives are used only where no external wrenches act.


@functools.cache
def one_state():
    """The first of the tree, with quaternions that are not unit: they stand for their direction."""
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
"""Of inverse and of forward dynamics."""


@functools.cache
def generic_jacobians():
    """Of inverse and of forward dynamics by all arguments, `q` by its coordinates."""
    model, state = one_state()
    function = inverse_and_forward(model, jnp.zeros((model.nb, 6)))
    return run(jax.jacrev(function, argnums=(0, 1, 2, 3)), *state)


def test_jacobians_are_the_matrices():
    """Forward and reverse; through the coordinates, and equal to those by generic differentiation."""
    model, state = one_state()

    def jacobians(*state):
        # Which of the two ways is taken makes no difference to the matrices: each function goes one of them.
        inverse, forward = (lambda *s, k=k: inverse_and_forward(model)(*s)[k] for k in range(2))
        every = (0, 1, 2, 3)
        return jax.jacfwd(inverse, argnums=every)(*state), jax.jacrev(forward, argnums=every)(*state)

    actual = run(jacobians, *state)
    # How coordinates change along the tangent space; the lengths of quaternions do not matter.
    along = jax.jacfwd(lambda dv: model.integrate(state[0], dv))(jnp.zeros(model.nv))
    unit = model.integrate(state[0], jnp.zeros(model.nv))
    scale = jnp.where(jnp.abs(unit) > 0, state[0] / unit, 1.0)
    for k, wrt in enumerate(ARGUMENTS):
        got, generic = ([matrices[k][i] for i in wrt] for matrices in (actual, generic_jacobians()))
        for x, y in zip(got, generic, strict=True):
            assert relative_error(x[None], y[None]) < 1e-9
        by_tangent = (got[0] * scale) @ along
        for x, y in zip((by_tangent, *got[1:]), computed("tree", True)[k], strict=True):
            assert relative_error(x[None], y[:1]) < 1e-9
    # Nothing of the torque in inverse dynamics, nor of the acceleration in forward dynamics.
    assert not actual[0][3].any()
    assert not actual[1][2].any()


def test_reverse_gradients_by_the_pullback():
    """Of each of both functions, and by the velocity alone."""
    model, state = one_state()
    bars = jax.random.normal(jax.random.key(1), (2, model.nv))

    def pulled(*state):
        functions = [lambda *s, k=k: bars[k] @ inverse_and_forward(model)(*s)[k] for k in range(2)]
        alone = jax.grad(functions[1], argnums=1)(*state)
        return [jax.grad(f, argnums=wrt)(*state) for f, wrt in zip(functions, ARGUMENTS, strict=True)], alone

    actual, alone = run(pulled, *state)
    for k, wrt in enumerate(ARGUMENTS):
        for x, i in zip(actual[k], wrt, strict=True):
            assert relative_error(x[None], (bars[k] @ generic_jacobians()[k][i])[None]) < 1e-9
    np.testing.assert_allclose(alone, actual[1][1], rtol=1e-12)


# Second derivatives of forward dynamics


def differentiated(types: tuple[str, ...]):
    """For two joints with friction, `a` as a function of all of its arguments, at these arguments; and the differences
    of its derivative, which is tested above."""
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


def test_second_derivatives_in_every_order(layout):
    """By generic derivatives, forward and reverse, of the matrices; two of the orders in each of both layouts."""
    accelerate, z, expected = differentiated(("revolute", "prismatic"))
    outer = (jax.jacfwd, jax.jacrev)
    inner = (jax.jacrev, jax.jacfwd) if layout else (jax.jacfwd, jax.jacrev)
    for value in run(lambda z: [o(i(accelerate))(z) for o, i in zip(outer, inner, strict=True)], z):
        assert relative_error(value[None], expected[None]) < 1e-7
        np.testing.assert_allclose(value, np.swapaxes(value, -1, -2), atol=1e-10 * np.abs(value).max())


def test_second_derivatives_of_the_pullback():
    """Also by the coordinates of a quaternion."""
    accelerate, z, expected = differentiated(("ball", "revolute"))
    bar, dot = jnp.array([1.0, -2, 3, 4]), jax.random.normal(jax.random.key(6), z.shape)
    gradient = jax.grad(lambda z: bar @ accelerate(z))
    value = run(lambda z: jax.jvp(gradient, (z,), (dot,))[1], z)
    assert relative_error(value[None], (bar @ (expected @ dot))[None]) < 1e-7


# Batches, precision, errors


def test_batches_of_models_in_single_precision():
    """By a map over models and by leading axes of their arrays, against double precision one model after the other."""
    model, *states = [x.astype(jnp.float32) for x in arguments("tree", True)]
    leaves = ("inertial_parameters", "armature", "joint_placement", "gravity", "damping")
    many = [jnp.stack([getattr(model, name), 1.25 * getattr(model, name)]) for name in leaves]

    def changed(*values):
        return eqx.tree_at(lambda m: [getattr(m, name) for name in leaves], model, list(values))

    def both(many, q, v, a, tau):
        wide = changed(*(x[:, None] for x in many))
        inverse = jaxdyn.rnea_derivatives(wide, q, v, a)
        return inverse, jax.vmap(lambda *values: jaxdyn.aba_derivatives(changed(*values), q, v, tau))(*many)

    value = run(both, many, *states)
    for k in range(2):
        # The same numbers in both precisions: what is compared is the arithmetic, not the rounding of the input.
        one = changed(*(x[k] for x in many))
        expected = program(True)(*(x.astype(jnp.float64) for x in (one, *states)))
        for what, x, y in zip(NAMES, jax.tree.leaves(value), jax.tree.leaves(expected), strict=True):
            assert x.dtype == jnp.float32
            assert x.shape == (2, STATES, model.nv, model.nv)
            assert relative_error(x[k], y) < (1e-5 if what in NAMES[:3] else 1e-4), what
            assert relative_error(x[1 - k], y) > 1e-3


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
