"""The formulations of rigid-body dynamics agree: Lagrange, Newton-Euler, articulated bodies, DeNOC, Bae-Haug.

Two structures, each with one compiled program, are compared with Pinocchio, with loops in NumPy written from the books
(`reference_loops.py`), with the closed form of two links, and with each other. One structure is a forest of a free tree
with all kinds of joints and of two links in a vertical plane; the other is a small chain.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

from jaxdyn import BodyInertia, Joint, Mimic, ModelBuilder, ModelError, ShapeError, UnknownNameError
from jaxdyn import algorithms as alg
from tests.algorithms.formulation_cases import L1, L2, LOOPS, M1, M2, G, case, computed
from tests.algorithms.reference_loops import Featherstone, bae_haug, nodes_of
from tests.oracles import PinocchioOracle, relative_error

TOLERANCE = 1e-10


@functools.cache
def by_loops(name: str) -> dict[str, np.ndarray]:
    """The results of Featherstone's recursions and of Bae and Haug's."""
    out, model = [], case(name).model
    for q, v, x, f_ext in zip(*(np.asarray(y)[:LOOPS] for y in case(name)[1:]), strict=True):
        recursion = Featherstone(model, q)
        a, IA, pA = recursion.aba(v, x, f_ext)
        row = {"a": a, "IA": recursion.bodies(IA), "pA": recursion.bodies(pA), "M": recursion.crba()}
        row |= {"tau": recursion.rnea(v, x, f_ext), "h": recursion.rnea(v, 0 * x), "g": recursion.rnea(0 * v, 0 * x)}
        row |= {"Bae-Haug": bae_haug(model, q, v, x, f_ext)}
        row |= {"Bae-Haug, moving base": bae_haug(model, q, v, x, f_ext, base=a[:6])}
        row |= {"R": np.array([recursion.world[i][0] for i, n in enumerate(recursion.nodes) if n.body >= 0])}
        row |= {"p": np.array([recursion.world[i][1] for i, n in enumerate(recursion.nodes) if n.body >= 0])}
        out.append(row)
    return {key: np.array([row[key] for row in out]) for key in out[0]}


def values(name: str = "forest"):
    """The case of a forest, our results and those of the loops, all at the states that are compared."""
    model, *arrays = case(name)
    first = jax.tree.map(lambda x: x[:LOOPS], computed(name))
    return (model, *(np.asarray(x)[:LOOPS] for x in arrays)), first, by_loops(name)


def transposed(x):
    return np.swapaxes(x, -1, -2)


def times(A, *vectors):
    for x in reversed(vectors):
        A = np.einsum("b...j,bj->b...", A, x)
    return A


# Pinocchio


def to_pinocchio(model) -> PinocchioOracle:
    """Convert node by node. A universal joint becomes two revolute joints, since Pinocchio 4.1 has no Coriolis matrix
    for it."""
    out = pin.Model()
    out.gravity.linear = np.asarray(model.gravity)
    for i, node in enumerate(nodes_of(model)):
        joint = {
            "R": lambda n=node: pin.JointModelRevoluteUnaligned(n.axis),
            "P": lambda n=node: pin.JointModelPrismaticUnaligned(n.axis),
            "H": lambda n=node: pin.JointModelHelicalUnaligned(*n.axis, n.pitch),
            "B": pin.JointModelSpherical,
            "F": pin.JointModelFreeFlyer,
        }[node.kind]()
        number = out.addJoint(node.parent + 1, joint, pin.SE3(node.R0, node.p0), f"node{i}")
        out.appendBodyToJoint(number, pin.Inertia(node.mass, node.center, node.inertia), pin.SE3.Identity())
    out.armature = np.asarray(model.armature)
    return PinocchioOracle(model, out)


def symmetric(upper):
    return np.triu(upper) + np.triu(upper, 1).T


def of_wrench(force):
    return np.concatenate([force.linear, force.angular])


@functools.cache
def pinocchio_values(name: str) -> dict[str, np.ndarray]:
    (model, q, v, x, f_ext), *_ = values(name)
    oracle, nodes, out = to_pinocchio(model), nodes_of(model), []
    m, data = oracle.pin_model, oracle.data
    body_joints = [1 + next(i for i, n in enumerate(nodes) if n.body == b) for b in range(model.nb)]
    for state in zip(q, v, x, f_ext, strict=True):
        configuration, rate, a = oracle.q(state[0]), oracle.v(state[1]), oracle.v(state[2])
        pin.forwardKinematics(m, data, configuration)
        wrenches = [pin.Force.Zero() for _ in range(m.njoints)]
        for number, wrench in zip(body_joints, np.asarray(state[3]), strict=True):
            turned = data.oMi[number].rotation.T
            wrenches[number] = pin.Force(turned @ wrench[:3], turned @ wrench[3:])
        row = {"C": pin.computeCoriolisMatrix(m, data, configuration, rate).copy()}
        row["Minv"] = symmetric(pin.computeMinverse(m, data, configuration))
        pin.crba(m, data, configuration)
        pin.cholesky.decompose(m, data)
        row["L"], row["D"] = data.U.T.copy(), data.D.copy()
        pin.rnea(m, data, configuration, rate, a, wrenches)
        fields = []
        for number in body_joints:
            w, dw = data.v[number].angular, data.a_gf[number].angular
            dv = data.a_gf[number].linear + np.cross(w, data.v[number].linear)
            force = m.inertias[number] * data.a_gf[number] + data.v[number].cross(m.inertias[number] * data.v[number])
            c = m.inertias[number].lever
            dv_c = dv + np.cross(dw, c) + np.cross(w, np.cross(w, c))
            N = force.angular - np.cross(c, force.linear)
            across = data.f[number]
            fields.append([w, dw, dv, dv_c, force.linear, N, across.linear, across.angular])
        row["newton_euler"] = np.swapaxes(np.array(fields), 0, 1)
        # After `aba`, Yaba holds the inertia that a joint passes to its parent.
        pin.aba(m, data, configuration, rate, a, wrenches, pin.Convention.LOCAL)
        row["passed"] = np.array([data.Yaba[k] for k in body_joints])
        out.append(row)
    return {key: np.array([row[key] for row in out]) for key in out[0]}


FORESTS = ("forest", pytest.param("forest of all types", marks=pytest.mark.slow))


@pytest.mark.parametrize("name", FORESTS)
def test_against_pinocchio(name):
    _, ours, _ = values(name)
    ours, theirs = ours | dict(zip("LD", ours["LD"], strict=True)), pinocchio_values(name)
    for key in ("C", "Minv", "L", "D"):
        assert relative_error(ours[key], theirs[key]) < TOLERANCE, key
    for k, field in enumerate(alg.NewtonEuler._fields[:-1]):
        assert relative_error(getattr(ours["newton_euler"], field), theirs["newton_euler"][:, k]) < TOLERANCE, field


@pytest.mark.parametrize("name", FORESTS)
def test_articulated_inertias_against_pinocchio(name):
    """A joint passes `I^A - U D^-1 U^T` to its parent, for the degrees of freedom of the node that carries the body."""
    (model, *_), ours, _ = values(name)
    IA, _, U, D, *_ = ours["bodies"]
    passed = IA.copy()
    for node in nodes_of(model):
        if node.body >= 0 and node.parent >= 0:
            columns = node.v
            passed[:, node.body] -= np.einsum("bki,bk,bkj->bij", U[:, columns], 1 / D[:, columns], U[:, columns])
    # The passed inertia vanishes in the directions of the joint's motion, so the scale is that of I^A.
    difference = np.abs(passed - pinocchio_values(name)["passed"]).max(axis=(-1, -2))
    assert (difference < TOLERANCE * np.abs(IA).max(axis=(-1, -2))).all()


@pytest.mark.slow
def test_loops_of_the_books():
    """Our results equal Featherstone's and Bae and Haug's, with a free, a moving and a fixed base."""
    _, ours, loops = values("forest of all types")
    chain, small = computed("chain"), by_loops("chain")
    for key in ("M", "tau", "IA"):
        assert relative_error(chain[key], small[key]) < TOLERANCE, key
    bodies = ours["bodies"]
    assert relative_error(bodies.a, loops["a"]) < TOLERANCE
    assert relative_error(bodies.IA, loops["IA"]) < TOLERANCE
    assert relative_error(bodies.pA, loops["pA"]) < TOLERANCE
    for results in (loops, small):
        assert relative_error(results["Bae-Haug"], results["a"]) < TOLERANCE
        assert relative_error(results["Bae-Haug, moving base"], results["a"]) < TOLERANCE


# The Lagrangian form


def test_coriolis_matrix():
    (_, _, v, *_), ours, loops = values()
    C, b = ours["C"], ours["b"]
    assert relative_error(times(C, v), loops["h"] - loops["g"]) < TOLERANCE
    assert relative_error(times(b, v), C) < TOLERANCE
    # b[i, j, k] + b[j, i, k] is the derivative of the mass matrix.
    rate = times(b + np.swapaxes(b, -3, -2), v)
    skewed = rate - 2 * C
    assert np.abs(skewed + transposed(skewed)).max() < TOLERANCE * np.abs(C).max()


def test_christoffel_symbols_are_derivatives():
    """`b[i, j, k] + b[j, i, k]` equals central differences of Featherstone's mass matrix along a motion."""
    (model, q, v, *_), ours, _ = values()
    step = 1e-5
    displaced = (model.integrate(q[:1], s * step * v[:1])[0] for s in (1, -1))
    up, down = (Featherstone(model, np.asarray(x)).crba() for x in displaced)
    b = ours["b"][:1]
    rate = times(b + np.swapaxes(b, -3, -2), v[:1])
    assert relative_error(rate, ((up - down) / (2 * step))[None]) < 1e-8


def test_christoffel_symbols():
    """The symbols follow the formula of the lectures, plus terms with the structure constants of ball and free joints,
    whose velocities are in body axes."""
    (model, *_), ours, loops = values()
    n, b, M = model.nv, ours["b"], loops["M"] - np.diag(model.armature)
    dM = b + np.swapaxes(b, -3, -2)
    constants = np.zeros((n, n, n))
    for kind, start in zip(model.topology.joint_types, model.topology.v_starts, strict=False):
        if kind in ("ball", "free"):
            size = 3 if kind == "ball" else 6
            for k in range(size):
                for j in range(size):
                    constants[start : start + size, start + k, start + j] = bracket(*np.eye(size)[[k, j]])
    # The torsion holds the components along i of the brackets [e_k, e_j] = sum_l c[l, k, j] e_l.
    torsion = np.einsum("bil,lkj->bijk", M, constants)
    scale = np.abs(b).max()
    assert np.abs(b - np.swapaxes(b, -1, -2) - torsion).max() < TOLERANCE * scale
    assert 0.01 * scale < np.abs(torsion).max()
    lectures = 0.5 * (dM + np.swapaxes(dM, -1, -2) - np.moveaxis(dM, -1, -3))
    # Koszul's formula has three brackets: (k, j) along i, (k, i) along j, (j, i) along k.
    along_j, along_k = np.einsum("bjik->bijk", torsion), np.einsum("bkij->bijk", torsion)
    assert np.abs(b - lectures - 0.5 * (torsion - along_j - along_k)).max() < TOLERANCE * scale


def bracket(x, y):
    """The Lie bracket of body twists `[linear, angular]`, or of angular velocities."""
    if len(x) == 3:
        return np.cross(x, y)
    return np.concatenate([np.cross(x[3:], y[:3]) + np.cross(x[:3], y[3:]), np.cross(x[3:], y[3:])])


@pytest.mark.slow
def test_coriolis_and_centrifugal_matrices():
    model, _, v, *_ = case("chain")
    B, C = computed("chain")["BC"]
    assert B.shape == (LOOPS, model.nv, model.nv * (model.nv - 1) // 2)
    terms = times(B, np.asarray(alg.velocity_products(v))) + times(C, np.square(v))
    loops = by_loops("chain")
    assert relative_error(terms, loops["h"] - loops["g"]) < TOLERANCE


def test_mass_matrix_from_jacobians():
    _, ours, loops = values()
    assert relative_error(ours["M of jacobians"], loops["M"]) < TOLERANCE


def test_friction_torque():
    model, _, v, *_ = case("chain")
    viscous, sign = model.damping * v, np.tanh(v / model.friction_velocity)
    np.testing.assert_allclose(alg.friction_torque(model, v), viscous + model.friction * sign, rtol=1e-12)
    exact = alg.friction_torque(model, v, sign="exact")
    np.testing.assert_allclose(exact, viscous + model.friction * np.sign(v), rtol=1e-12)
    assert float(model.friction.max()) > 0.1
    np.testing.assert_array_equal(alg.friction_torque(model, 0 * v, sign="exact"), 0)
    with pytest.raises(ModelError, match="sign is 'none'"):
        alg.friction_torque(model, v, sign="none")


# Newton and Euler


def test_newton_euler():
    (model, _, v, x, f_ext), ours, loops = values()
    form, twist = ours["newton_euler"], ours["denoc"].twist.reshape(LOOPS, model.nb, 6)
    assert relative_error(form.tau + model.armature * x, loops["tau"]) < TOLERANCE
    # The power of drives and external wrenches equals that of the forces at the bodies' centers of mass.
    linear = np.einsum("bkji,bkj->bki", loops["R"], twist[..., :3])
    center = linear + np.cross(form.angular_velocity, model.center_of_mass)
    bodies = (form.force * center + form.moment * form.angular_velocity).sum((-1, -2))
    np.testing.assert_allclose((form.tau * v).sum(-1) + (f_ext * twist).sum((-1, -2)), bodies, rtol=1e-9)


def test_reactions():
    model, _, _, x, _ = case("chain")
    ours, loops = computed("chain"), by_loops("chain")
    # The bodies are in a chain, so the first joint's reaction, in world axes, is the base's reaction.
    R, p = loops["R"][:, 0], loops["p"][:, 0]
    force, moment = (np.einsum("bij,bj->bi", R, ours["reactions"][:, 0, k : k + 3]) for k in (0, 3))
    np.testing.assert_allclose(ours["base"], np.concatenate([force, moment + np.cross(p, force)], -1), rtol=1e-9)
    # The first joint is a ball joint at the body's origin, so the moment is the torque minus that of the rotors.
    np.testing.assert_allclose(ours["reactions"][:, 0, 3:], (ours["tau"] - model.armature * x)[:, :3], rtol=1e-9)
    with pytest.raises(ModelError, match="none of them"):
        alg.joint_reactions(*case("chain")[:3])
    with pytest.raises(ModelError, match="both of them"):
        alg.base_reaction(*case("chain")[:3], a=x, tau=x)


def test_reaction_of_a_free_base_is_what_drives_it():
    (model, *_), ours, _ = values()
    form = ours["newton_euler"]
    assert model.topology.joint_types[0] == "free"
    np.testing.assert_allclose(form.joint_force[:, 0], form.tau[:, :3], rtol=0, atol=1e-10)
    np.testing.assert_allclose(form.joint_moment[:, 0], form.tau[:, 3:6], rtol=0, atol=1e-10)


# Articulated bodies, and factors of the mass matrix


def test_inverse_and_factors_of_the_mass_matrix():
    (model, _, _, x, _), ours, loops = values()
    M, (L, D) = loops["M"], ours["LD"]
    assert np.abs(ours["Minv"] @ M - np.eye(model.nv)).max() < TOLERANCE
    assert relative_error(np.einsum("bij,bj->bi", M, ours["solved"]), x) < TOLERANCE
    assert relative_error(transposed(L) @ (D[..., None] * L), M) < TOLERANCE
    assert (np.triu(L, 1) == 0).all()
    np.testing.assert_array_equal(np.einsum("bii->bi", L), 1)
    # The factors keep the zeros of M, which are between degrees of freedom on different branches.
    branches = (M == 0).all(axis=0)
    assert branches.sum() > model.nv
    assert (L[:, branches] == 0).all()
    np.testing.assert_allclose(ours["bodies"].D, D, rtol=1e-10)
    chain = computed("chain")
    assert relative_error(transposed(chain["cholesky"]) @ chain["cholesky"], chain["M"]) < TOLERANCE
    assert (np.triu(chain["cholesky"], 1) == 0).all()


def test_articulated_bodies_by_their_definition():
    """`U`, `D` and `u` of the last link, whose axis is z, follow from `I^A` and `p^A` by definition."""
    (model, _, _, x, _), ours, _ = values()
    bodies = ours["bodies"]
    S = np.array([0, 0, 0, 0, 0, 1.0])
    np.testing.assert_allclose(bodies.U[:, -1], bodies.IA[:, -1] @ S, atol=1e-12)
    np.testing.assert_allclose(bodies.D[:, -1], bodies.U[:, -1] @ S + model.armature[-1], rtol=1e-12)
    np.testing.assert_allclose(bodies.u[:, -1], x[:, -1] - bodies.pA[:, -1] @ S, rtol=1e-10, atol=1e-12)


def test_operational_space_inertia():
    model, q, *_ = case("chain")
    ours = computed("chain")
    inverse = ours["J"] @ np.linalg.solve(ours["M"], transposed(ours["J"]))
    assert relative_error(ours["operational"], np.linalg.inv(inverse[:, :3, :3])) < 1e-9
    tip = model.body_names[-1]
    with pytest.raises(ModelError, match=r"6 directions.*5 degrees of freedom"):
        alg.operational_space_inertia(model, q, tip)
    with pytest.raises(ModelError, match=r"12 directions.*5 degrees"):
        alg.operational_space_inertia(model, q, (tip, model.body_names[0]))
    with pytest.raises(ModelError, match="part is 'first'"):
        alg.operational_space_inertia(model, q, tip, part="first")
    with pytest.raises(UnknownNameError, match="body0"):
        alg.inverse_operational_space_inertia(model, q, ("body00",))
    with pytest.raises(ShapeError, match="rhs"):
        alg.solve_mass_matrix(model, q, q)


# DeNOC


def test_denoc():
    (model, _, v, x, _), ours, loops = values()
    form = ours["denoc"]
    N_l, N_d = form.N_l, form.N_d
    N = N_l @ N_d
    assert relative_error(form.generalized_inertia, loops["M"]) < TOLERANCE
    assert relative_error(times(form.convective_inertia, v), loops["h"] - loops["g"]) < TOLERANCE
    tau = times(form.generalized_inertia, x) + times(form.convective_inertia, v) - form.generalized_force
    assert relative_error(tau, loops["tau"]) < TOLERANCE
    assert relative_error(form.twist, times(N, v)) < TOLERANCE
    # By the equations of the single bodies the joints exert M dt/dt + Omega M E t - w; N^T projects it on the torques.
    rate = times(N, x) + times(form.N_l_dot @ N_d + N_l @ form.N_d_dot, v)
    apart = np.einsum("bkij,bkj->bki", form.M, blocks := rate.reshape(LOOPS, model.nb, 6))
    apart += np.einsum("bkij,bkj->bki", form.OmegaME, form.twist.reshape(LOOPS, model.nb, 6))
    joints = apart.reshape(LOOPS, -1) - form.wrench
    assert relative_error(np.einsum("bki,bk->bi", N, joints), ours["newton_euler"].tau) < TOLERANCE
    # The rates of the twists are the accelerations of the Newton-Euler iterations.
    linear = np.einsum("bkji,bkj->bki", loops["R"], blocks[..., :3] - model.gravity)
    assert relative_error(linear, ours["newton_euler"].linear_acceleration) < TOLERANCE
    angular = np.einsum("bkji,bkj->bki", loops["R"], blocks[..., 3:])
    assert relative_error(angular, ours["newton_euler"].angular_acceleration) < TOLERANCE
    blocks = N_l.reshape(LOOPS, model.nb, 6, model.nb, 6)
    for i, parent in enumerate(model.topology.parents):
        assert parent < 0 or (blocks[:, i, :3, parent, :3] == np.eye(3)).all()
        assert (blocks[:, i, :, i + 1 :] == 0).all()
        columns = np.flatnonzero(np.abs(N_d[:, 6 * i : 6 * i + 6]).max(axis=(0, 1)))
        np.testing.assert_array_equal(columns, np.arange(*model.topology.v_starts[i : i + 2]))


def test_denoc_matrices_alone():
    _, _, v, *_ = case("chain")
    N_l, N_d = computed("chain")["N"]
    assert relative_error(times(N_l @ N_d, np.asarray(v))[:, -6:], times(computed("chain")["J"], v)) < TOLERANCE


# Two links in closed form


def test_two_links_in_closed_form():
    """J. Rosen, Advanced Robotics (MAE 263B, UCLA), Newton-Euler equations, the 2R example; Craig, chapter 6."""
    model, *arrays = case("forest")
    ours = computed("forest")
    last = slice(model.nv - 2, model.nv)
    v, a = (np.asarray(x)[:, last] for x in arrays[1:3])
    q = np.asarray(arrays[0])[:, -2:]
    (d1, d2), (a1, a2) = v.T, a.T
    s2, c2 = np.sin(q[:, 1]), np.cos(q[:, 1])
    c1, s12, c12 = np.cos(q[:, 0]), np.sin(q.sum(-1)), np.cos(q.sum(-1))
    m12 = L2**2 * M2 + L1 * L2 * M2 * c2
    M = [[L2**2 * M2 + 2 * L1 * L2 * M2 * c2 + L1**2 * (M1 + M2), m12], [m12, L2**2 * M2 + 0 * c2]]
    k = M2 * L1 * L2 * s2
    B, C = [[-2 * k], [0 * k]], [[0 * k, -k], [k, 0 * k]]
    g = [M2 * L2 * G * c12 + (M1 + M2) * L1 * G * c1, M2 * L2 * G * c12]
    M, B, C, g = (np.moveaxis(np.array(x), -1, 0) for x in (M, B, C, g))
    velocity_terms = times(B, (d1 * d2)[:, None]) + times(C, np.square(v))
    tau = times(M, a) + velocity_terms + g

    def equal(value, expected, scale=1.0):
        np.testing.assert_allclose(value, expected, rtol=0, atol=1e-12 * scale)

    def block(x):
        return x[:, last, last]

    equal(block(ours["M of jacobians"]), M)
    equal(block(ours["denoc"].generalized_inertia), M)
    equal(times(block(ours["denoc"].convective_inertia), v), velocity_terms, 10)
    equal(ours["denoc"].generalized_force[:, last], -g, 10)
    equal(block(ours["Minv"]) @ M, np.broadcast_to(np.eye(2), M.shape), 10)
    # Twice the symbols b[i, j, k] belong to the product of the velocities, b[i, j, j] to the squares.
    b = ours["b"][:, last, last, last]
    equal(2 * b[..., 0, 1:2], B)
    equal(np.diagonal(b, axis1=-2, axis2=-1), C)
    equal(block(ours["C"]), k[:, None, None] * np.moveaxis(np.array([[-d2, -d1 - d2], [d1, 0 * d1]]), -1, 0))
    form = jax.tree.map(lambda x: x[:, -2:], ours["newton_euler"])
    sum_of_a, turn = a1 + a2, d1 + d2
    center = [
        -L2 * turn**2 - L1 * d1**2 * c2 + L1 * a1 * s2 + G * s12,
        L2 * sum_of_a + L1 * a1 * c2 + L1 * d1**2 * s2 + G * c12,
        0 * c2,
    ]
    equal(form.angular_velocity[..., 2], np.transpose([d1, turn]))
    equal(form.angular_acceleration[..., 2], np.transpose([a1, sum_of_a]))
    equal(form.center_acceleration[:, 1], np.transpose(center), 10)
    equal(form.force[:, 1], M2 * np.transpose(center), 10)
    equal(form.moment, 0)
    equal(form.joint_moment[..., 2], tau, 10)
    equal(form.tau, tau, 10)


# Joints that mimic others


@pytest.mark.slow
def test_mimic_joints():
    builder = ModelBuilder().add_body("a", joint=Joint(damping=0.3, armature=0.1), inertia=BodyInertia.sphere(2.0, 0.2))
    follow = Joint(axis=(1, 0, 0), mimic=Mimic("a_joint", -0.7, 0.2))
    builder.add_body("b", "a", follow, (0.3, 0, 0), BodyInertia.box(1.0, (0.1, 0.2, 0.3), (0, 0.1, 0.2)))
    builder.add_body("c", "b", Joint(axis=(0, 1, 0)), (0, 0, 0.4), BodyInertia.box(1.5, (0.3, 0.2, 0.1), (0.1, 0, 0)))
    model = builder.build()
    rng = np.random.default_rng(0)
    q, v, x = rng.normal(size=(3, model.nv))
    G = np.array([[1, 0], [-0.7, 0], [0, 1.0]])
    loops = Featherstone(model.spanning_tree(), model.spanning_configuration(q))
    M = G.T @ loops.crba() @ G
    h, g = (G.T @ loops.rnea(G @ y, np.zeros(3)) for y in (v, 0 * v))
    tau = M @ x + h

    def mass_matrix(y):
        return G.T @ Featherstone(model.spanning_tree(), model.spanning_configuration(y)).crba() @ G

    step = 1e-5 * np.eye(model.nv)
    slopes = [(mass_matrix(q + e) - mass_matrix(q - e)) / 2e-5 for e in step]

    @jax.jit
    def evaluate(model, q, v, x):
        return {
            "dM": alg.mass_matrix_derivative(model, q),
            "Cv": alg.coriolis_matrix(model, q, v) @ v,
            "Minv": alg.inverse_mass_matrix(model, q),
            "solved": alg.solve_mass_matrix(model, q, x),
            "tau": alg.newton_euler(model, q, v, x).tau + model.armature * x,
            "denoc": alg.denoc(model, q, v),
            "friction": alg.friction_torque(model, v),
        }

    ours = evaluate(model, q, v, x)
    denoc = ours["denoc"]
    for value, expected in (
        (ours["Cv"], h - g),
        (ours["Minv"], np.linalg.inv(M)),
        (ours["solved"], np.linalg.solve(M, x)),
        (ours["tau"], tau),
        (denoc.generalized_inertia, M),
        (denoc.convective_inertia @ v, h - g),
        (denoc.generalized_force, -g),
        (denoc.twist, denoc.N_l @ denoc.N_d @ v),
        (ours["friction"], model.damping * v),
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours["dM"], np.stack(slopes, axis=-1), atol=1e-8)
    for refused in (alg.mass_matrix_ltdl, alg.mass_matrix_cholesky, alg.articulated_inertias):
        with pytest.raises(ModelError, match=rf"{refused.__name__}.*'b_joint'.*spanning_tree"):
            refused(model, q)


@pytest.mark.slow
def test_batches_of_models_in_single_precision():
    """A map over two models with a batch of states gives the results of the loops."""
    model, q, v, *_ = case("chain")
    scales = jnp.array([1.0, 2.5])

    def evaluate(scale, q, v):
        changed = eqx.tree_at(lambda m: m.inertial_parameters, model, scale * model.inertial_parameters)
        changed, q, v = jax.tree.map(lambda y: y.astype(jnp.float32), (changed, q, v))
        return {
            "C": alg.coriolis_matrix(changed, q, v),
            "Minv": alg.inverse_mass_matrix(changed, q),
        }

    ours = jax.jit(jax.vmap(evaluate, in_axes=(0, None, None)))(scales, q, v)
    for k, scale in enumerate(scales):
        changed = eqx.tree_at(lambda m: m.inertial_parameters, model, scale * model.inertial_parameters)
        for i in range(LOOPS):
            recursion, zeros = Featherstone(changed, q[i]), np.zeros(model.nv)
            M, h = recursion.crba(), recursion.rnea(v[i], zeros) - recursion.rnea(zeros, zeros)
            results = {key: np.asarray(y[k, i]) for key, y in ours.items()}
            assert all(y.dtype == np.float32 for y in results.values())
            np.testing.assert_allclose(results["C"] @ np.asarray(v[i]), h, atol=1e-5 * np.abs(h).max())
            np.testing.assert_allclose(results["Minv"] @ M, np.eye(model.nv), atol=1e-4)
