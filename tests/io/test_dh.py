"""Arms that `from_dh` builds from Denavit-Hartenberg tables agree with products of matrices, Lagrange's equations and
textbooks."""

import dataclasses
import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import (
    SE3,
    BodyInertia,
    JaxdynError,
    Joint,
    Model,
    ModelError,
    PhysicalityWarning,
    ShapeError,
    UnknownNameError,
    crba,
    forward_kinematics,
    frame_jacobian,
    load_urdf,
    rnea,
    samples,
)
from jaxdyn.io import DHRow, from_dh
from jaxdyn.model import Mimic, with_locked_joints
from tests.robots import robot_path

CONVENTIONS = ("standard", "modified")
QUARTER = np.pi / 2

# The textbooks' matrices, written out as in the books


def standard_matrix(a, alpha, d, theta) -> np.ndarray:
    """Spong, Hutchinson & Vidyasagar, eq. 3.10."""
    ct, st, ca, sa = np.cos(theta), np.sin(theta), np.cos(alpha), np.sin(alpha)
    return np.array(
        [
            [ct, -st * ca, st * sa, a * ct],
            [st, ct * ca, -ct * sa, a * st],
            [0, sa, ca, d],
            [0, 0, 0, 1],
        ]
    )


def modified_matrix(a, alpha, d, theta) -> np.ndarray:
    """Craig, eq. 3.6."""
    ct, st, ca, sa = np.cos(theta), np.sin(theta), np.cos(alpha), np.sin(alpha)
    return np.array(
        [
            [ct, -st, 0, a],
            [st * ca, ct * ca, -sa, -sa * d],
            [st * sa, ct * sa, ca, ca * d],
            [0, 0, 0, 1],
        ]
    )


MATRIX = {"standard": standard_matrix, "modified": modified_matrix}


def frames_by_matrices(table, kinds, q, convention, base=None) -> list[np.ndarray]:
    """The poses of frames 0 to n in the world."""
    out = [np.eye(4) if base is None else base]
    for (a, alpha, d, theta), kind, x in zip(table, kinds, q, strict=True):
        d, theta = (d + x, theta) if kind == "prismatic" else (d, theta + x)
        out.append(out[-1] @ MATRIX[convention](a, alpha, d, theta))
    return out


def homogeneous(pose) -> np.ndarray:
    return np.asarray(SE3.from_vector(jnp.asarray(pose)).as_matrix())


def frames_of(model: Model, q) -> dict[str, np.ndarray]:
    """Every frame's homogeneous matrix in the world, from one compiled function."""
    bodies = forward_kinematics(model, q).as_matrix()
    number = {name: i for i, name in enumerate(model.body_names)}
    return {
        name: (np.asarray(bodies[number[frame.body]]) if frame.body != "world" else np.eye(4))
        @ homogeneous(frame.placement)
        for name, frame in model.frames.items()
    }


# Random arms


def random_links(rng, n: int) -> dict[str, np.ndarray]:
    """Inertias of clouds of point masses, so that they are physical."""
    points, masses = rng.normal(size=(n, 6, 3)) * 0.2, rng.uniform(0.1, 0.6, (n, 6))
    total = masses.sum(axis=1)
    com = np.einsum("nk,nki->ni", masses, points) / total[:, None]
    arms = points - com[:, None]
    squares = (arms**2).sum(axis=-1)[..., None, None] * np.eye(3) - arms[..., None] * arms[..., None, :]
    inertias = np.einsum("nk,nkij->nij", masses, squares)
    return {"masses": total, "centers_of_mass": com, "inertias": inertias}


def random_table(rng, n: int) -> np.ndarray:
    return np.column_stack(
        [rng.normal(size=n) * 0.4, rng.uniform(-3, 3, n), rng.normal(size=n) * 0.3, rng.uniform(-3, 3, n)]
    )


def lagrange_torques(table, kinds, convention, links, gravity, q, v, a):
    """The torques `d/dt dL/dv - dL/dq` by JAX's derivatives, with the centers of mass from products of matrices."""

    def matrix(row, kind, x):
        length, alpha, d, theta = row
        d, theta = (d + x, theta) if kind == "prismatic" else (d, theta + x)
        ct, st, ca, sa = jnp.cos(theta), jnp.sin(theta), jnp.cos(alpha), jnp.sin(alpha)
        rows = {
            "standard": [[ct, -st * ca, st * sa, length * ct], [st, ct * ca, -ct * sa, length * st], [0, sa, ca, d]],
            "modified": [[ct, -st, 0, length], [st * ca, ct * ca, -sa, -sa * d], [st * sa, ct * sa, ca, ca * d]],
        }[convention]
        return jnp.array([*rows, [0, 0, 0, 1]])

    def frames(q):
        T, out = jnp.eye(4), []
        for row, kind, x in zip(table, kinds, q, strict=True):
            T = T @ matrix(row, kind, x)
            out.append(T)
        return jnp.stack(out)

    def lagrangian(q, v):
        T, rate = jax.jvp(frames, (q,), (v,))
        com = jnp.concatenate([jnp.asarray(links["centers_of_mass"]), jnp.ones((len(table), 1))], axis=1)
        position, velocity = (jnp.einsum("nij,nj->ni", x, com)[:, :3] for x in (T, rate))
        # R^T dR/dt is the angular velocity in the axes of the link, as a skew matrix.
        W = jnp.einsum("nji,njk->nik", T[:, :3, :3], rate[:, :3, :3])
        omega = jnp.stack([W[:, 2, 1], W[:, 0, 2], W[:, 1, 0]], axis=1)
        turning = jnp.einsum("ni,nij,nj->", omega, links["inertias"], omega)
        return 0.5 * (links["masses"] @ (velocity**2).sum(1) + turning) + links["masses"] @ position @ gravity

    momentum = jax.grad(lagrangian, 1)
    return jax.jvp(momentum, (q, v), (v, a))[1] - jax.grad(lagrangian, 0)(q, v)


KINDS = ("revolute", "prismatic", "revolute", "revolute")


@pytest.fixture(scope="module", params=CONVENTIONS)
def random_arm(request):
    rng = np.random.default_rng(len(request.param))
    table, links = random_table(rng, 4), random_links(rng, 4)
    base = np.array([0.3, -0.2, 0.5, *(np.array([0.8, 0.1, -0.3, 0.4]) / np.sqrt(0.9))])
    tool = np.array([0.1, 0.0, 0.2, *(np.array([1, 2, 3, 4]) / np.sqrt(30))])
    options = {"convention": request.param, "joint_types": "RPRR", **links}
    return table, links, base, tool, from_dh(table, base=base, tool=tool, **options), from_dh(table, **options)


def test_frames_are_products_of_the_textbooks_matrices(random_arm, request):
    table, _, base, tool, model, _ = random_arm
    convention = request.node.callspec.params["random_arm"]
    for seed in range(3):
        q = np.random.default_rng(seed).uniform(-2, 2, 4)
        expected = frames_by_matrices(table, KINDS, q, convention, homogeneous(base))
        frames = frames_of(model, q)
        for i, matrix in enumerate(expected):
            np.testing.assert_allclose(frames[f"dh{i}"], matrix, atol=1e-12)
        np.testing.assert_allclose(frames["tool"], expected[-1] @ homogeneous(tool), atol=1e-12)


def test_bodies_have_their_frames_on_the_joints_axes(random_arm, request):
    """Joint i turns about z of frame i-1 in the standard convention, and about z of frame i in the modified one."""
    *_, model, _ = random_arm
    convention = request.node.callspec.params["random_arm"]
    q = np.array([0.3, -0.2, 1.2, -0.7])
    frames = frames_of(model, q)
    for i in range(1, 5):
        axis = frames[f"dh{i - 1 if convention == 'standard' else i}"]
        body = frames[f"link{i}"]
        np.testing.assert_allclose(body[:3, 2], axis[:3, 2], atol=1e-12)
        np.testing.assert_allclose(np.cross(body[:3, 3] - axis[:3, 3], axis[:3, 2]), 0, atol=1e-12)
        if convention == "modified":
            np.testing.assert_allclose(body, axis, atol=1e-12)


def test_dynamics_are_lagranges(random_arm, request):
    table, links, _, _, _, model = random_arm
    convention = request.node.callspec.params["random_arm"]
    q, v, a = np.random.default_rng(3).uniform(-2, 2, (3, 4))
    reference = jax.jit(lambda *x: lagrange_torques(table, KINDS, convention, links, np.array([0, 0, -9.81]), *x))
    np.testing.assert_allclose(rnea(model, q, v, a), reference(q, v, a), rtol=1e-11, atol=1e-11)


# The same robot in both conventions


def moved_links(links: dict, poses: list[np.ndarray]) -> dict:
    """Return the links as seen from frames in which the links' frames have these poses."""
    R, p = np.array([T[:3, :3] for T in poses]), np.array([T[:3, 3] for T in poses])
    com = np.einsum("nij,nj->ni", R, links["centers_of_mass"]) + p
    inertias = np.einsum("nij,njk,nlk->nil", R, links["inertias"], R)
    return {"masses": links["masses"], "centers_of_mass": com, "inertias": inertias}


def as_modified(table: np.ndarray, links: dict) -> tuple[np.ndarray, dict, np.ndarray]:
    """Convert a standard table to the modified convention. The shift along x and the twist move to the next row; those
    of the last row become the tool's placement."""
    out = table.copy()
    out[1:, :2], out[0, :2] = table[:-1, :2], 0
    ends = [standard_matrix(a, alpha, 0, 0) for a, alpha, _, _ in table]
    return out, moved_links(links, ends), ends[-1]


@pytest.mark.parametrize("seed", range(3))
def test_one_robot_in_both_conventions(seed):
    rng = np.random.default_rng(seed)
    table, links = random_table(rng, 6), random_links(rng, 6)
    other, other_links, end = as_modified(table, links)
    standard = from_dh(table, convention="standard", **links)
    modified = from_dh(other, convention="modified", **other_links)
    q, v, a = rng.uniform(-2, 2, (3, 6))
    np.testing.assert_allclose(crba(standard, q), crba(modified, q), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(rnea(standard, q, v, a), rnea(modified, q, v, a), rtol=1e-10, atol=1e-10)
    at_end = frames_of(modified, q)["dh6"] @ end
    np.testing.assert_allclose(frames_of(standard, q)["dh6"], at_end, atol=1e-12)
    assert standard.topology == modified.topology


# Planar arms


def planar(lengths, convention, masses, coms, moments, gravity=(0, -9.81, 0)) -> Model:
    """A planar arm with revolute joints about z. `coms` are the distances of the centers of mass from the joints along
    the links; `moments` are about the centers of mass."""
    n = len(lengths)
    shift = np.array(lengths) if convention == "standard" else np.zeros(n)
    a = np.array(lengths) if convention == "standard" else np.array([0, *lengths[:-1]])
    table = np.column_stack([a, np.zeros((n, 3))])
    centers = np.column_stack([coms - shift, np.zeros((n, 2))])
    diagonals = np.column_stack([moments, moments, np.zeros(n)])[:, [2, 0, 1]]
    return from_dh(
        table,
        convention=convention,
        masses=masses,
        centers_of_mass=centers,
        inertias=diagonals,
        gravity=gravity,
    )


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_two_point_masses_of_the_lectures(convention):
    """Two links with point masses at their ends follow J. Rosen, UCLA MAE 263B, Newton-Euler lectures, and Craig,
    section 6.7."""
    l1, l2, m1, m2, g = 0.7, 0.5, 2.0, 1.5, 9.81
    model = planar([l1, l2], convention, [m1, m2], np.array([l1, l2]), np.zeros(2))
    rng = np.random.default_rng(0)
    for q, v, a in rng.uniform(-3, 3, (4, 3, 2)):
        c1, c2, s2, c12 = np.cos(q[0]), np.cos(q[1]), np.sin(q[1]), np.cos(q.sum())
        tau2 = m2 * l1 * l2 * c2 * a[0] + m2 * l1 * l2 * s2 * v[0] ** 2 + m2 * l2 * g * c12 + m2 * l2**2 * (a[0] + a[1])
        tau1 = (
            m2 * l2**2 * (a[0] + a[1])
            + m2 * l1 * l2 * c2 * (2 * a[0] + a[1])
            + (m1 + m2) * l1**2 * a[0]
            - m2 * l1 * l2 * s2 * v[1] ** 2
            - 2 * m2 * l1 * l2 * s2 * v[0] * v[1]
            + m2 * l2 * g * c12
            + (m1 + m2) * l1 * g * c1
        )
        np.testing.assert_allclose(rnea(model, q, v, a), [tau1, tau2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_planar_elbow_manipulator(convention):
    """Two links with inertia follow Spong, Hutchinson & Vidyasagar, section 7.3.2, and Siciliano et al., section 7.3.2,
    without motors."""
    l1, lc1, lc2, m1, m2, I1, I2, g = 0.9, 0.4, 0.35, 3.0, 2.0, 0.2, 0.15, 9.81
    model = planar([l1, 0.8], convention, [m1, m2], np.array([lc1, lc2]), np.array([I1, I2]))
    zero = np.zeros(2)
    for q in np.random.default_rng(1).uniform(-3, 3, (4, 2)):
        M, G = np.asarray(crba(model, q)), np.asarray(rnea(model, q, zero, zero))
        c2 = np.cos(q[1])
        np.testing.assert_allclose(M[0, 0], m1 * lc1**2 + m2 * (l1**2 + lc2**2 + 2 * l1 * lc2 * c2) + I1 + I2)
        np.testing.assert_allclose(M[0, 1], m2 * (lc2**2 + l1 * lc2 * c2) + I2)
        np.testing.assert_allclose(M[1, 0], M[0, 1])
        np.testing.assert_allclose(M[1, 1], m2 * lc2**2 + I2)
        second = m2 * lc2 * g * np.cos(q.sum())
        np.testing.assert_allclose(G[1], second)
        np.testing.assert_allclose(G[0], (m1 * lc1 + m2 * l1) * g * np.cos(q[0]) + second)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_planar_three_links(convention):
    """The mass matrix and gravity are sums over the links, with Jacobians of their centers of mass (Siciliano et al.,
    eq. 7.32)."""
    lengths, coms = np.array([0.8, 0.6, 0.4]), np.array([0.3, 0.35, 0.1])
    masses, moments, g = np.array([3.0, 2.0, 1.0]), np.array([0.2, 0.1, 0.03]), 9.81
    model = planar(lengths, convention, masses, coms, moments)
    for q in np.random.default_rng(2).uniform(-3, 3, (3, 3)):
        angle, M, G = np.cumsum(q), np.zeros((3, 3)), np.zeros(3)
        for i in range(3):
            arms = [*lengths[:i], coms[i]]
            # Column j is perpendicular to the vector from joint j to the center of mass.
            Jx = [-sum(r * np.sin(angle[k]) for k, r in enumerate(arms) if k >= j) for j in range(i + 1)]
            Jy = [sum(r * np.cos(angle[k]) for k, r in enumerate(arms) if k >= j) for j in range(i + 1)]
            J = np.zeros((2, 3))
            J[:, : i + 1] = Jx, Jy
            turns = np.arange(3) <= i
            M += masses[i] * J.T @ J + moments[i] * np.outer(turns, turns)
            G += masses[i] * g * J[1]
        np.testing.assert_allclose(crba(model, q), M, rtol=1e-12)
        np.testing.assert_allclose(rnea(model, q, np.zeros(3), np.zeros(3)), G, rtol=1e-12, atol=1e-13)


def test_scara():
    """The frame of the end has the closed form of Spong, Hutchinson & Vidyasagar, example 3.6."""
    a1, a2, d4 = 0.4, 0.3, 0.1
    table = [[a1, 0, 0, 0], [a2, np.pi, 0, 0], [0, 0, 0, 0], [0, 0, d4, 0]]
    model = from_dh(table, convention="standard", joint_types="RRPR", masses=np.ones(4), inertias=np.ones((4, 3)))
    q1, q2, d3, q4 = q = np.array([0.4, -1.1, 0.25, 0.8])
    c1, s1, c12, s12 = np.cos(q1), np.sin(q1), np.cos(q1 + q2), np.sin(q1 + q2)
    c4, s4 = np.cos(q4), np.sin(q4)
    expected = [
        [c12 * c4 + s12 * s4, -c12 * s4 + s12 * c4, 0, a1 * c1 + a2 * c12],
        [s12 * c4 - c12 * s4, -s12 * s4 - c12 * c4, 0, a1 * s1 + a2 * s12],
        [0, 0, -1, -d3 - d4],
        [0, 0, 0, 1],
    ]
    np.testing.assert_allclose(frames_of(model, q)["dh4"], expected, atol=1e-14)


# Arms with published parameters


@pytest.fixture(scope="module")
def puma() -> Model:
    """The PUMA 560 of P. Corke & B. Armstrong-Helouvry, A search for consensus among model parameters reported for the
    PUMA 560 robot, ICRA 1994, as in Corke's Robotics Toolbox (`mdl_puma560`). The columns of the table are theta, d, a,
    alpha; motors have inertias and gears."""
    table = [
        [0, 0, 0, QUARTER],
        [0, 0, 0.4318, 0],
        [0, 0.15005, 0.0203, -QUARTER],
        [0, 0.4318, 0, QUARTER],
        [0, 0, 0, -QUARTER],
        [0, 0, 0, 0],
    ]
    gear = np.array([-62.6111, 107.815, -53.7063, 76.0364, 71.923, 76.686])
    # The first link has no published mass, and the principal moments of the third are unphysical.
    with pytest.warns(PhysicalityWarning, match="link1|link3"):
        return from_dh(
            table,
            convention="standard",
            columns=("theta", "d", "a", "alpha"),
            masses=[0, 17.4, 4.8, 0.82, 0.34, 0.09],
            centers_of_mass=[
                [0, 0, 0],
                [-0.3638, 0.006, 0.2275],
                [-0.0203, -0.0141, 0.070],
                [0, 0.019, 0],
                [0, 0, 0],
                [0, 0, 0.032],
            ],
            inertias=[
                [0, 0.35, 0],
                [0.13, 0.524, 0.539],
                [0.066, 0.086, 0.0125],
                [1.8e-3, 1.3e-3, 1.8e-3],
                [0.3e-3, 0.4e-3, 0.3e-3],
                [0.15e-3, 0.15e-3, 0.04e-3],
            ],
            armature=gear**2 * np.array([200e-6] * 3 + [33e-6] * 3),
        )


NOMINAL = np.array([0, np.pi / 4, np.pi, 0, np.pi / 4, 0])


def test_puma_560(puma):
    """Gravity, mass matrix and Coriolis torques at the nominal pose equal the four decimals in the tests of Corke's
    Robotics Toolbox (gravload, inertia, coriolis)."""
    zero = np.zeros(6)
    gravity = np.asarray(rnea(puma, NOMINAL, zero, zero))
    np.testing.assert_allclose(gravity, [0, 31.6399, 6.0351, 0, 0.0283, 0], atol=6e-5)
    M = [
        [3.6594, -0.4044, 0.1006, -0.0025, 0, 0],
        [-0.4044, 4.4137, 0.3509, 0, 0.0024, 0],
        [0.1006, 0.3509, 0.9378, 0, 0.0015, 0],
        [-0.0025, 0, 0, 0.1925, 0, 0],
        [0, 0.0024, 0.0015, 0, 0.1713, 0],
        [0, 0, 0, 0, 0, 0.1941],
    ]
    np.testing.assert_allclose(crba(puma, NOMINAL), M, atol=6e-5)
    C = [
        [-0.1735, -2.0494, -0.1178, -0.0002, -0.0045, 0.0001],
        [0.6274, 1.1572, 1.9287, -0.0015, -0.0003, 0],
        [-0.3608, -0.7734, -0.0018, -0.0009, -0.0064, 0],
        [0.0011, 0.0005, -0.0001, 0.0002, 0.0002, -0.0001],
        [-0.0002, 0.0028, 0.0046, -0.0002, 0, 0],
        [0.0001, 0, 0, 0, 0, 0],
    ]
    v = np.array([1.0, 2, 3, 1, 2, 3])
    bias = np.asarray(rnea(puma, NOMINAL, v, zero)) - gravity
    np.testing.assert_allclose(bias, np.array(C) @ v, atol=5e-5 * np.abs(v).sum())


def test_puma_560_jacobian(puma):
    """The Jacobian at another pose equals that in the same toolbox's test of `jacob0`."""
    expected = [
        [0.1501, 0.0144, 0.3197, 0, 0, 0],
        [0.5963, 0, 0, 0, 0, 0],
        [0, 0.5963, 0.2910, 0, 0, 0],
        [0, 0, 0, 0.7071, -0.5950, 0.7702],
        [0, -1, -1, 0, -0.5403, -0.5950],
        [1, 0, 0, -0.7071, -0.5950, -0.2298],
    ]
    q = np.array([0, np.pi / 4, -np.pi, 1, np.pi / 4, 0])
    np.testing.assert_allclose(frame_jacobian(puma, q, "dh6"), expected, atol=6e-5)


# Source: documentation of the Franka Control Interface. Columns a, alpha, d, theta (modified); the last row is the
# flange.
PANDA = np.array(
    [
        [0, 0, 0.333, 0],
        [0, -QUARTER, 0, 0],
        [0, QUARTER, 0.316, 0],
        [0.0825, QUARTER, 0, 0],
        [-0.0825, -QUARTER, 0.384, 0],
        [0, QUARTER, 0, 0],
        [0.088, QUARTER, 0, 0],
    ]
)


def test_panda_from_its_table_is_the_sample():
    arm = samples.arm()
    rows = [
        DHRow(*row, inertia=arm.inertial_parameters[i], joint=Joint(**{
            "lower": arm.position_lower[i], "upper": arm.position_upper[i],
            "velocity_limit": arm.velocity_limit[i], "effort_limit": arm.effort_limit[i],
        }))
        for i, row in enumerate(PANDA)
    ]  # fmt: skip
    model = from_dh(rows, convention="modified", tool=(0, 0, 0.107))
    assert model.joint_names == arm.joint_names
    assert model.body_names == arm.body_names
    for field in ("joint_placement", "joint_axis", "inertial_parameters", "position_lower", "effort_limit"):
        np.testing.assert_allclose(getattr(model, field), getattr(arm, field), atol=1e-15)
    np.testing.assert_allclose(model.frames["tool"].placement, arm.frames["flange"].placement)


def test_panda_from_its_table_is_that_of_the_urdf_file():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        urdf = load_urdf(robot_path("panda"))
    fingers = [j for i, j in enumerate(urdf.joint_names) if "finger" in j and i not in urdf.topology.leaders]
    urdf = with_locked_joints(urdf, dict.fromkeys(fingers, 0.02))
    rows = [DHRow(*row, inertia=p) for row, p in zip(PANDA, urdf.inertial_parameters, strict=True)]
    model = from_dh(rows, convention="modified")
    # Bodies have the same placements, axes and inertias.
    for placement, expected in zip(model.joint_placement, urdf.joint_placement, strict=True):
        np.testing.assert_allclose(homogeneous(placement), homogeneous(expected), atol=1e-9)
    np.testing.assert_allclose(model.joint_axis, urdf.joint_axis)
    np.testing.assert_allclose(model.inertial_parameters, urdf.inertial_parameters)


# Forms of the arguments


def test_rows_and_arrays_are_the_same():
    rng = np.random.default_rng(5)
    table, links = random_table(rng, 3), random_links(rng, 3)
    arrays = from_dh(
        table,
        convention="standard",
        joint_types=["revolute", "prismatic", "continuous"],
        names=["a", "b", "c"],
        joint_names=["j", "k", "l"],
        armature=0.1,
        damping=[0.1, 0.2, 0.3],
        limits=[(-1, 1), (0, 0.5), (-np.inf, np.inf)],
        velocity_limit=2.0,
        **links,
    )
    joints = [
        Joint("revolute", name="j", armature=0.1, damping=0.1, lower=-1, upper=1, velocity_limit=2.0),
        Joint("prismatic", name="k", armature=0.1, damping=0.2, lower=0, upper=0.5, velocity_limit=2.0),
        Joint("continuous", name="l", armature=0.1, damping=0.3, velocity_limit=2.0),
    ]
    bodies = [BodyInertia(*x) for x in zip(*links.values(), strict=True)]
    rows = [DHRow(*r, joint=j, inertia=b, name=n) for r, j, b, n in zip(table, joints, bodies, "abc", strict=True)]
    model = from_dh(rows, convention="standard")
    assert model.topology == arrays.topology
    for from_rows, from_arrays in zip(jax.tree.leaves(model), jax.tree.leaves(arrays), strict=True):
        np.testing.assert_array_equal(from_rows, from_arrays)
    assert set(model.frames) == {"a", "b", "c", "dh0", "dh1", "dh2", "dh3"}


def test_inertia_about_the_frames_origin():
    links = random_links(np.random.default_rng(6), 2)
    table, m, c = random_table(np.random.default_rng(7), 2), links["masses"], links["centers_of_mass"]
    about_origin = links["inertias"] + m[:, None, None] * (
        (c**2).sum(1)[:, None, None] * np.eye(3) - c[:, :, None] * c[:, None, :]
    )
    central = from_dh(table, convention="standard", **links)
    options = links | {"inertias": about_origin, "inertia_about": "frame_origin"}
    converted = from_dh(table, convention="standard", **options)
    np.testing.assert_allclose(central.inertial_parameters, converted.inertial_parameters, atol=1e-15)


def test_mimic_joints_in_rows():
    rows = [
        DHRow(0.3, 0, 0, 0, inertia=BodyInertia.sphere(1.0, 0.1), joint=Joint(name="drive")),
        DHRow(0.3, 0, 0, 0, inertia=BodyInertia.sphere(1.0, 0.1), joint=Joint(mimic=Mimic("drive", -1.0))),
    ]
    model = from_dh(rows, convention="modified")
    assert (model.nb, model.nv) == (2, 1)


TWO = np.array([[0.5, 0, 0, 0], [0.5, 0, 0, 0]])
GOOD = {"convention": "standard", "masses": [1.0, 1.0], "inertias": np.ones((2, 3))}


@pytest.mark.parametrize(
    ("table", "changes", "error", "words"),
    [
        (TWO, {"convention": "craig"}, ModelError, ["craig", "standard", "modified"]),
        (TWO[:, :3], {}, ShapeError, ["(2, 3)", "[n, 4]", "a, alpha, d, theta"]),
        (TWO[0], {}, ShapeError, ["(4,)", "[n, 4]"]),
        ([], {}, ShapeError, ["[n, 4]"]),
        ("dh", {}, ShapeError, ["not an array of numbers"]),
        ([[0.5, 0, 0, 0], [0.5, np.nan, 0, 0]], {}, ModelError, ["row 2", "alpha", "nan"]),
        ([[0.5, 90, 0, 0], [0.5, 0, 0, 0]], {}, ModelError, ["row 1", "alpha", "90", "deg2rad", "columns"]),
        (TWO, {"columns": ("theta", "d", "a")}, ModelError, ["columns", "alpha"]),
        (TWO, {"columns": ("theta", "d", "a", "a")}, ModelError, ["columns", "alpha"]),
        (TWO, {"joint_types": "RX"}, ModelError, ["'X'", "number 2", "revolute", "RRP"]),
        (TWO, {"joint_types": "RRR"}, ShapeError, ["3 entries", "2 rows"]),
        (TWO, {"joint_types": ["revolute", "ball"]}, ModelError, ["'ball'", "prismatic"]),
        (TWO, {"masses": [1.0]}, ShapeError, ["masses", "(1,)", "[2]"]),
        (TWO, {"masses": [1.0, -1.0]}, ModelError, ["link2", "negative mass"]),
        (TWO, {"masses": None}, ModelError, ["no masses"]),
        (TWO, {"masses": None, "inertias": None}, ModelError, ["link1", "joint1", "no mass"]),
        (TWO, {"centers_of_mass": np.zeros((3, 3))}, ShapeError, ["centers_of_mass", "(3, 3)", "[2, 3]"]),
        (TWO, {"inertias": np.ones((2, 6))}, ShapeError, ["inertias", "(2, 6)", "order"]),
        (TWO, {"inertias": [np.eye(3), [[1, 1, 0], [0, 1, 0], [0, 0, 1]]]}, ModelError, ["link2", "symmetric"]),
        (TWO, {"inertia_about": "com"}, ModelError, ["inertia_about", "com", "frame_origin"]),
        (TWO, {"names": ["a"]}, ShapeError, ["names", "2 rows"]),
        (TWO, {"joint_names": "ab"}, ShapeError, ["joint_names", "sequence"]),
        (TWO, {"names": ["a", "a"]}, ModelError, ["'a'", "unique"]),
        (TWO, {"limits": [-1, 1]}, ShapeError, ["limits", "(2,)", "[2, 2]"]),
        (TWO, {"limits": [(1, -1), (-1, 1)]}, ModelError, ["joint1", "upper", "lower"]),
        (TWO, {"armature": [1.0, 2.0, 3.0]}, ShapeError, ["armature", "(3,)", "[2]"]),
        (TWO, {"damping": -1.0}, ModelError, ["damping", "joint1", "negative"]),
        (TWO, {"base": (0, 0)}, ShapeError, ["base", "(2,)"]),
        (TWO, {"tool": np.ones(7)}, ModelError, ["tool", "unit quaternion"]),
        (TWO, {"gravity": (0, 0)}, ShapeError, ["gravity"]),
        ([DHRow(0, 0, 0, 0)], {}, ModelError, ["masses", "inertias", "rows"]),
    ],
)
def test_errors(table, changes, error, words):
    with pytest.raises(error) as caught:
        from_dh(table, **(GOOD | changes))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        ([DHRow(0, 0, 0, 0), [0, 0, 0, 0]], ModelError, ["row 2", "DHRow"]),
        ([DHRow(0, 0, 0, 0, joint=Joint("ball"))], ModelError, ["row 1", "ball", "prismatic"]),
        ([DHRow(0, 0, 0, 0, joint=Joint(axis=(0, 1, 0)))], ModelError, ["row 1", "axis", "z"]),
        ([DHRow(0, 0, np.inf, 0)], ModelError, ["row 1", "d is not finite: inf"]),
        ([DHRow(0, 0, 0, 0, inertia=np.ones(9), name="arm")], ShapeError, ["'arm'", "(9,)"]),
        ([DHRow(0, 0, 0, 0, joint=Joint(mimic=Mimic("nobody")))], UnknownNameError, ["nobody"]),
    ],
)
def test_errors_of_rows(rows, error, words):
    with pytest.raises(error) as caught:
        from_dh(rows, convention="standard")
    for word in words:
        assert word in str(caught.value)


# fmt: off
_INSTEAD = (
    None, True, 1j, 10**400, np.nan, np.inf, -1.0, 0, "", "x", "standard", b"x", [], [[]], [1.0], [1.0, "x"],
    [None] * 2, [[1.0, 2.0], [3.0]], {},
    set(), object(), np.array([object()] * 2), np.zeros((2, 0)), np.ones((2, 2, 2)),
    np.array(["R", "x"]), ("revolute",), range(2), float, Joint(), [Joint()] * 2, SE3.identity(), [[10**400] * 2] * 2,
    "x" * 10_000, ["x" * 10_000] * 2, 1e308, [1e-320] * 2, np.datetime64("2020"),
)
"""What may stand in the place of an argument, or of a part of one."""
# fmt: on


def _damaged(value, rng: random.Random):
    """Return an argument with another object in the place of it or of a part of it."""
    if isinstance(value, list) and value and rng.random() < 0.6:
        k = rng.randrange(len(value))
        return [*value[:k], _damaged(value[k], rng), *value[k + 1 :]]
    return rng.choice(_INSTEAD)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_damaged_arguments_are_accepted_or_refused(count):
    """Whatever stands in the place of an argument or a part of one, errors are those of the library."""
    table = [[0.1, 0.0, 0.2, 0.0], [0.3, 0.0, 0.0, 0.1]]
    whole = GOOD | {
        "inertia_about": "center_of_mass", "base": [0, 0, 1.0], "tool": [0, 0, 0.1], "gravity": [0, 0, -9.81],
        "kinematics_only": False, "columns": ["a", "alpha", "d", "theta"], "joint_types": ["R", "P"],
        "masses": [1.0, 2.0], "centers_of_mass": [[0, 0, 0.1]] * 2, "inertias": [[0.1, 0.1, 0.1]] * 2,
        "names": ["a", "b"], "joint_names": ["j", "k"], "armature": 0.1, "damping": [0.1, 0.2], "friction": 0.1,
        "friction_velocity": 0.01, "limits": [[-1, 1]] * 2, "velocity_limit": 2.0, "effort_limit": [3.0, 4.0],
    }  # fmt: skip
    row = {"a": 0.1, "alpha": 0.0, "d": 0.2, "theta": 0.1, "inertia": BodyInertia(1.0), "name": "a", "joint": Joint()}
    of_joint = [x.name for x in dataclasses.fields(Joint)]
    messages = []
    for seed in range(count):
        rng = random.Random(seed)
        try:
            if seed % 4 == 0:
                kept = row | {rng.choice([*row]): rng.choice(_INSTEAD)}
                if seed % 8 == 0:
                    kept = row | {"joint": Joint(**{rng.choice(of_joint): rng.choice(_INSTEAD)})}
                from_dh([DHRow(**kept), DHRow(**(row | {"name": "b"}))], convention="modified")
            else:
                name = rng.choice(["table", *whole, "unknown"])
                changed = {"table": table} | whole
                changed[name] = _damaged(changed.get(name), rng)
                from_dh(**changed)
        except JaxdynError as error:
            messages.append(str(error))
    assert len(messages) > count / 2
    assert max(map(len, messages)) < 1500


def test_the_convention_has_no_default():
    with pytest.raises(TypeError, match="convention"):
        from_dh(TWO, masses=[1.0, 1.0])
