"""Joints that mimic others match the projection of the spanning tree by `G`; joint springs match their energy."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, Mimic, ModelBuilder, ModelError, UnknownNameError
from tests import draws

PAIRS = (("left", 1.0, 0.0), ("right", -0.7, 0.2), ("thumb", 2.0, -0.1))


def build(mimic: bool, free_base: bool = False):
    """Build an arm with three fingers that follow the joint of a fourth; one follower comes before its leader."""
    rng = np.random.default_rng(0)

    def inertia():
        return BodyInertia.box(rng.uniform(0.5, 2), rng.uniform(0.1, 0.4, 3), rng.uniform(-0.1, 0.1, 3))

    def follow(name):
        _, m, o = next(p for p in PAIRS if p[0] == name)
        return {"mimic": Mimic("lead_joint", m, o)} if mimic else {}

    builder = ModelBuilder()
    kind = "free" if free_base else "revolute"
    builder.add_body("base", joint=Joint(kind), inertia=inertia())
    builder.add_body("thumb", "base", Joint("prismatic", axis=(1, 2, 0), **follow("thumb")), (0.1, 0, 0), inertia())
    builder.add_body("hand", "base", Joint("universal", axis=(1, 0, 0), axis2=(0, 1, 0)), (0, 0, 0.3), inertia())
    builder.add_body("lead", "hand", Joint(axis=(0, 1, 0)), (0.1, 0.1, 0), inertia())
    builder.add_body("left", "hand", Joint(axis=(0, 1, 1), **follow("left")), (-0.1, 0.1, 0), inertia())
    builder.add_body("tip", "left", Joint(axis=(1, 0, 0)), (0, 0, 0.1), inertia())
    builder.add_body("right", "lead", Joint(axis=(1, 0, 0), **follow("right")), (0, 0, 0.1), inertia())
    model = builder.build()
    return eqx.tree_at(
        lambda m: (m.damping, m.friction, m.armature), model, tuple(jnp.full(model.nv, x) for x in (0.1, 0.2, 0.05))
    )


@functools.cache
def case(free_base: bool):
    model = build(True, free_base)
    q, v, x, _ = jax.device_put(draws.states(model, 1, 3))
    G = np.zeros((model.spanning_tree().nv, model.nv))
    for joint in model.spanning_tree().joint_names:
        rows = model.spanning_tree().v_index(joint)
        pair = next((p for p in PAIRS if f"{p[0]}_joint" == joint), None)
        columns = model.v_index(joint if pair is None else "lead_joint")
        G[rows, columns] = np.eye(rows.stop - rows.start) * (1.0 if pair is None else pair[1])
    return model, q, v, x, G


@functools.cache
def program(name: str):
    return jax.jit(getattr(jaxdyn, name), compiler_options={"xla_backend_optimization_level": 0})


def test_coordinates_of_the_spanning_tree():
    model, q, v, _, G = case(True)
    tree = model.spanning_tree()
    free = build(False, True)
    assert tree.topology == free.topology
    assert (model.nq, model.nv) == (11, 10)
    assert (tree.nq, tree.nv) == (14, 13)
    full = model.spanning_configuration(q)
    for name, m, o in PAIRS:
        np.testing.assert_allclose(
            full[:, tree.q_index(f"{name}_joint")], m * q[:, model.q_index("lead_joint")] + o, rtol=1e-14
        )
    np.testing.assert_allclose(model.spanning_velocity(v), v @ G.T, rtol=1e-14)
    moved = model.integrate(q, 1e-6 * v)
    rate = tree.difference(full, model.spanning_configuration(moved)) / 1e-6
    np.testing.assert_allclose(rate, v @ G.T, rtol=1e-8, atol=1e-8)
    assert tree.spanning_tree() is tree
    np.testing.assert_allclose(model.difference(q, model.integrate(q, v * 0.1)), v * 0.1, atol=1e-12)


def test_dynamics_are_the_projected_ones():
    model, q, v, x, G = case(True)
    tree = model.spanning_tree()
    Q, V = model.spanning_configuration(q), v @ G.T
    M = G.T @ np.asarray(program("crba")(tree, Q)) @ G
    f_ext = draws.normal(5, model.nb, 6)
    np.testing.assert_allclose(program("crba")(model, q), M, rtol=1e-12, atol=1e-12)
    tau = np.asarray(program("rnea")(tree, Q, V, x @ G.T, f_ext)) @ G
    np.testing.assert_allclose(program("rnea")(model, q, v, x, f_ext), tau, rtol=1e-12, atol=1e-12)
    a = program("aba")(model, q, v, tau, f_ext)
    np.testing.assert_allclose(a, x, rtol=1e-9, atol=1e-9)
    jacobian = jax.jit(lambda m, q: jaxdyn.frame_jacobian(m, q, "right"))
    np.testing.assert_allclose(jacobian(model, q), np.asarray(jacobian(tree, Q)) @ G, rtol=1e-12, atol=1e-12)
    energy = 0.5 * np.einsum("bi,bij,bj->b", v, M, v)
    np.testing.assert_allclose(program("kinetic_energy")(model, q, v), energy, rtol=1e-12)
    Y = np.asarray(program("torque_regressor")(model, q, v, x))
    # Wrenches of zero share the program above.
    expected = np.asarray(program("rnea")(model, q, v, x, 0 * f_ext))
    model, v, x = jax.tree.map(np.asarray, (model, v, x))
    expected = expected - model.armature * x - model.damping * v - model.friction * np.tanh(v / model.friction_velocity)
    np.testing.assert_allclose(Y @ model.inertial_parameters.ravel(), expected, rtol=1e-10, atol=1e-10)


def matches(name: str, model, q, v, x) -> None:
    """Assert that the matrices equal central differences and that they give the gradient of a scalar."""
    analytic = program(f"{name}_derivatives")(model, q, v, x)
    n, step = model.nv, 1e-6
    # One batch holds the states displaced in q, in v and in x, forward and backward.
    signs = step * jnp.concatenate([jnp.eye(n), -jnp.eye(n)])
    none = jnp.zeros_like(signs)
    dq, dv, dx = (jnp.concatenate([signs if i == k else none for i in range(3)]) for k in range(3))
    moved = model.integrate(jnp.broadcast_to(q, (6 * n, model.nq)), dq)
    values = program(name)(model, moved, v + dv, x + dx).reshape(3, 2, n, n)
    for got, (up, down) in zip(analytic, values, strict=True):
        expected = (up - down).T / (2 * step)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    weights = jnp.linspace(-1, 1, model.nv)

    def scalar(dq, v, x):
        return jnp.vdot(weights, getattr(jaxdyn, name)(model, model.integrate(q, dq), v, x))

    gradient = jax.jit(jax.grad(scalar, (0, 1, 2)), compiler_options={"xla_backend_optimization_level": 0})
    for got, matrix in zip(gradient(jnp.zeros(model.nv), v, x), analytic, strict=True):
        np.testing.assert_allclose(got, weights @ matrix, rtol=0, atol=1e-9 * np.abs(matrix).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rnea", "aba"])
def test_derivatives(name):
    model, q, v, x, _ = case(False)
    matches(name, model, q[0], v[0], x[0])


@pytest.mark.slow
def test_gradient_by_the_multiplier():
    model, q, v, x, _ = case(False)

    def f(multiplier, offset):
        changed = eqx.tree_at(lambda m: (m.mimic_multiplier, m.mimic_offset), model, (multiplier, offset))
        return jnp.sum(jnp.sin(jaxdyn.aba(changed, q, v, x)))

    arguments, step = (model.mimic_multiplier, model.mimic_offset), 1e-6
    both = jax.jit(jax.value_and_grad(f, (0, 1)), compiler_options={"xla_backend_optimization_level": 0})
    gradient = both(*arguments)[1]
    for which in (0, 1):
        for k in range(3):
            e = [step * jnp.eye(3)[k] * (i == which) for i in (0, 1)]
            difference = (
                both(arguments[0] + e[0], arguments[1] + e[1])[0] - both(arguments[0] - e[0], arguments[1] - e[1])[0]
            ) / (2 * step)
            assert float(gradient[which][k]) == pytest.approx(float(difference), rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_models_in_batches():
    model, q, v, x, _ = case(False)
    multipliers = jnp.stack([model.mimic_multiplier, 0.5 * model.mimic_multiplier])
    models = eqx.tree_at(lambda m: m.mimic_multiplier, model, multipliers)

    def with_multipliers(m):
        return eqx.tree_at(lambda n: n.mimic_multiplier, model, m)

    options = {"xla_backend_optimization_level": 0}
    mapped = jax.jit(jax.vmap(lambda m: jaxdyn.aba(with_multipliers(m), q, v, x)), compiler_options=options)(
        multipliers
    )
    native = program("aba")(models, q[:, None], v[:, None], x[:, None])
    np.testing.assert_allclose(native, jnp.swapaxes(mapped, 0, 1), rtol=1e-9)
    M = program("crba")(models, q[:, None])
    np.testing.assert_allclose(M[:, 1], program("crba")(with_multipliers(multipliers[1]), q), rtol=1e-12, atol=1e-12)


def test_what_acts_in_a_follower_acts_on_its_leader():
    def model(mimic, **acting):
        builder = ModelBuilder().add_body("a", joint=Joint(axis=(1, 0, 0), stiffness=2.0, spring_reference=0.3))
        rod = BodyInertia.rod(1.0, (0, 0, 0), (0, 0, 1))
        follow = {"mimic": Mimic("a_joint", -2.0, 0.5)} if mimic else {}
        return builder.add_body("b", "a", Joint(axis=(0, 1, 0), **acting, **follow), (0, 1, 0), rod).build()

    acting = {"armature": 0.3, "damping": 0.2, "stiffness": 1.5, "spring_reference": 0.1}
    coupled, free = model(True, **acting), model(False, **acting)
    q, v, a = jnp.array([0.4]), jnp.array([0.2]), jnp.array([1.1])
    G = np.array([1.0, -2.0])
    Q = jnp.array([0.4, -2 * 0.4 + 0.5])
    tau = jaxdyn.rnea(free, Q, v * G, a * G)
    np.testing.assert_allclose(jaxdyn.rnea(coupled, q, v, a), [tau @ G], rtol=1e-12)
    coulomb = model(True, friction=0.7)
    assert float(coulomb.friction[0]) == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("joint", "error", "words"),
    [
        (Joint(mimic=Mimic("hinge")), UnknownNameError, ["'b_joint'", "hinge"]),
        (Joint(mimic=Mimic("b_joint")), ModelError, ["'b_joint'", "itself"]),
        (Joint("ball", mimic=Mimic("a_joint")), ModelError, ["ball", "one"]),
        (Joint(mimic=Mimic("a_joint", np.nan)), ModelError, ["finite"]),
        (Joint(stiffness=-1.0), ModelError, ["stiffness", "negative"]),
        (Joint(stiffness=[1.0, 2.0]), jaxdyn.ShapeError, ["stiffness", "(2,)"]),
    ],
)
def test_errors(joint, error, words):
    ball = BodyInertia.sphere(1.0, 0.1)
    with pytest.raises(error) as caught:
        ModelBuilder().add_body("a", inertia=ball).add_body("b", "a", joint, inertia=ball).build()
    assert all(word in str(caught.value) for word in words), caught.value
    model = case(False)[0]
    with pytest.raises(ModelError, match="mimics 'lead_joint'"):
        model.q_index("left_joint")
    with pytest.raises(ModelError, match=r"'left_joint'.*soft constraints"):
        jaxdyn.to_mjcf(model)


# Springs


@functools.cache
def sprung():
    model = jaxdyn.samples.random_tree(jax.random.key(1), 3, ("free", "ball", "helical"), branching=2)
    reference = model.random_configuration(jax.random.key(8))
    stiffness = jax.random.uniform(jax.random.key(9), (model.nv,), minval=1.0, maxval=5.0)
    model = eqx.tree_at(
        lambda m: (m.stiffness, m.spring_reference), model, (stiffness, reference), is_leaf=lambda x: x is None
    )
    q = model.random_configuration(jax.random.key(2))
    v, x = jax.random.normal(jax.random.key(3), (2, model.nv))
    return model, q, v, x


@pytest.mark.slow
def test_spring_torque_is_the_gradient_of_the_energy():
    model, q, *_ = sprung()
    energy = program("potential_energy")
    step = 1e-6
    eye = step * jnp.eye(model.nv)
    many = jnp.broadcast_to(q, (model.nv, model.nq))
    difference = (energy(model, model.integrate(many, eye)) - energy(model, model.integrate(many, -eye))) / (2 * step)
    expected = program("generalized_gravity")(model, q) + program("spring_torque")(model, q)
    np.testing.assert_allclose(difference, expected, rtol=1e-6, atol=1e-7)
    # Zero up to the rounding of contracted products, `a b - c d`.
    np.testing.assert_allclose(jaxdyn.spring_torque(model, model.spring_reference), 0, atol=1e-15)
    bare = eqx.tree_at(lambda m: (m.stiffness, m.spring_reference), model, (None, None))
    np.testing.assert_array_equal(jaxdyn.spring_torque(bare, q), 0)
    assert float(energy(model, q)) > float(energy(bare, q))


@pytest.mark.slow
def test_springs_in_the_dynamics_and_their_derivatives():
    model, q, v, x = sprung()
    bare = eqx.tree_at(lambda m: (m.stiffness, m.spring_reference), model, (None, None))
    spring = jaxdyn.spring_torque(model, q)
    np.testing.assert_allclose(
        program("rnea")(model, q, v, x) - program("rnea")(bare, q, v, x), spring, rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        program("aba")(model, q, v, x + spring), program("aba")(bare, q, v, x), rtol=1e-9, atol=1e-9
    )
    matches("aba", model, q, v, x)


@pytest.mark.slow
def test_following_is_a_coupling_of_the_first_degree():
    """A joint that mimics, and the same joint with a coordinate that a linear coupling holds: accelerations, and their
    derivatives by the state and the torques of the joints that both models have."""
    model, q, v, x, G = case(False)
    tree = build(False)
    changes = {name: getattr(model.spanning_tree(), name) for name in ("damping", "friction", "armature")}
    tree = dataclasses.replace(tree, **changes)
    for name, multiplier, offset in PAIRS:
        tree = tree.with_coupling(f"{name} follows", f"{name}_joint", "lead_joint", (offset, multiplier))
    rows = [tree.topology.dof_names.index(name) for name in model.topology.dof_names]

    def following(q, v, x):
        return jnp.asarray(G) @ jaxdyn.aba(model, q, v, x)

    def coupled(q, v, x):
        on_tree = jnp.zeros(tree.nv).at[jnp.array(rows)].set(x)
        return jaxdyn.aba(tree, model.spanning_configuration(q), jnp.asarray(G) @ v, on_tree)

    options = {"xla_backend_optimization_level": 0}
    (a, by), (b, other) = (
        jax.jit(lambda *at, f=f: (f(*at), jax.jacfwd(f, (0, 1, 2))(*at)), compiler_options=options)(q[0], v[0], x[0])
        for f in (following, coupled)
    )
    for value, expected in zip((a, *by), (b, *other), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_couplings_of_joints_that_follow():
    model = build(True)
    # A follower has no coordinate; the coupling holds its leader.
    held = model.with_coupling("hold", "thumb_joint", None, (0.3,))
    q = model.neutral().at[model.q_index("lead_joint")].set(0.2)
    np.testing.assert_allclose(jaxdyn.constraint_error(held, q), [2.0 * 0.2 - 0.1 - 0.3], atol=1e-12)
    for pair in (("left_joint", "lead_joint"), ("lead_joint", "left_joint"), ("right_joint", "left_joint")):
        with pytest.raises(ModelError, match="one mimics the other"):
            model.with_coupling("again", *pair)
