"""Contacts of two geoms, compared with those that MuJoCo reports."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from jaxdyn import ModelError
from jaxdyn.geometry import (
    FAR,
    Box,
    Capsule,
    Cylinder,
    HeightField,
    Points,
    ShapeKind,
    candidate_count,
    has_flat_disks,
    is_built,
    may_be_deep,
    shallow_depth,
)
from jaxdyn.io.mjcf import GEOM_SHAPES, GeomType, hulls_of_geoms
from jaxdyn.native import Plain, call
from tests.derivatives import check_derivatives
from tests.worlds.world_contacts import OnArrays, difference, evaluate

SIZES = {"plane": 3, "sphere": 1, "capsule": 2, "ellipsoid": 3, "cylinder": 2, "box": 3}
_ANGLES = 2 * np.pi * np.arange(6) / 6
MESHES = {
    "cube": np.array(np.meshgrid([-0.1, 0.1], [-0.15, 0.15], [-0.2, 0.2])).reshape(3, 8).T,
    "prism": np.array([[0.2 * np.cos(a), 0.15 * np.sin(a) + 0.02 * z, z] for a in _ANGLES for z in (-0.1, 0.1)]),
    "rock": 0.2 * np.random.default_rng(5).normal(size=(12, 3)),
}
"""Vertices. Meshes have no other sizes."""
SCENES = 8
"""Pairs of geoms in one model, with sizes and margins of their own."""
TOLERANCE = 1e-10


def kind_of(name: str) -> ShapeKind:
    return GEOM_SHAPES[GeomType["MESH" if name in MESHES else name.upper()]]


def model_of(kind1: str, kind2: str, rng, count: int = SCENES):
    """A model with pairs of geoms: both can move, but for planes."""
    bodies, pairs = [], []
    asset = "".join(f'<mesh name="{n}" vertex="{" ".join(str(x) for x in v.ravel())}"/>' for n, v in MESHES.items())
    for i in range(count):
        for k, kind in enumerate((kind1, kind2)):
            shape = f'type="mesh" mesh="{kind}"'
            if kind in SIZES:
                shape = f'type="{kind}" size="{" ".join(str(x) for x in rng.uniform(0.05, 0.3, SIZES[kind]))}"'
            geom = f'<geom name="g{k}{i}" {shape} contype="0" conaffinity="0"'
            if kind == "plane":
                quat = " ".join(str(x) for x in (rng.normal(size=4) if i % 2 else (1, 0, 0, 0)))
                bodies.append(f'{geom} pos="0.1 -0.2 {0.1 * i}" quat="{quat}"/>')
            else:
                bodies.append(f"<body><freejoint/>{geom}/></body>")
        margin, gap = rng.choice([0, 0.02, 0.1]), rng.choice([0, 0.01])
        pairs.append(f'<pair geom1="g0{i}" geom2="g1{i}" margin="{margin}" gap="{gap}"/>')
    parts = {"asset": asset, "worldbody": "".join(bodies), "contact": "".join(pairs)}
    text = "".join(f"<{name}>{content}</{name}>" for name, content in parts.items())
    return mujoco.MjModel.from_xml_string(f"<mujoco>{text}</mujoco>")


def quaternions(count: int, rng) -> np.ndarray:
    """Random ones, turns by quarters of a circle, and what lies close to those."""
    general = rng.normal(size=(count, 4))
    half = np.sqrt(0.5)
    quarters = np.array([[1, 0, 0, 0], [half, half, 0, 0], [half, 0, half, 0], [half, 0, 0, half], [0, 1, 0, 0]])
    aligned = quarters[rng.integers(len(quarters), size=count)]
    yaw = rng.uniform(-np.pi, np.pi, count)
    turned = np.stack([np.cos(yaw), 0 * yaw, 0 * yaw, np.sin(yaw)], axis=-1)
    near = aligned + 1e-3 * rng.normal(size=(count, 4))
    kind = rng.integers(4, size=count)
    return np.choose(kind[:, None], [general, aligned, turned, near])


def random_pose(m, d, rng, scale: float = 0.4) -> None:
    """Places close to each other, with equal and with different orientations."""
    count = m.nq // 7
    base = rng.uniform(-1, 1, 3)
    quats = quaternions(count, rng)
    if rng.random() < 0.4:
        quats[:] = quats[0]
    for i in range(count):
        offset = rng.uniform(-1, 1, 3) * scale
        if rng.random() < 0.3:
            offset = np.round(offset * 10) / 10 * (rng.random(3) < 0.5)
        d.qpos[7 * i : 7 * i + 3] = base * rng.choice([0, 0, 1]) + offset
        d.qpos[7 * i + 3 : 7 * i + 7] = quats[i]
    mujoco.mj_kinematics(m, d)
    mujoco.mj_collision(m, d)


def reported(m, d) -> list[list[np.ndarray]]:
    """For each pair the contacts, as distance, position and the nine numbers of the frame."""
    found = [[] for _ in range(m.npair)]
    which = {int(g): i for i in range(m.npair) for g in (m.pair_geom1[i], m.pair_geom2[i])}
    for i in range(d.ncon):
        con = d.contact[i]
        found[which[int(con.geom[0])]].append(np.concatenate([[con.dist], con.pos, con.frame]))
    return found


class Comparison(NamedTuple):
    """The candidates of many poses and what MuJoCo reports."""

    model: mujoco.MjModel
    qpos: list
    got: np.ndarray
    wanted: list

    def errors(self) -> np.ndarray:
        """`[poses, pairs]`: the largest differences; infinite where the numbers of contacts differ."""
        pairs = range(self.model.npair)
        return np.array([[difference(got[j], wanted[j]) for j in pairs] for got, wanted in zip(*self[2:], strict=True)])


def compare(kind1: str, kind2: str, trials: int, seed: int = 0, worlds: int = SCENES) -> Comparison:
    """Candidates at random poses of random geoms; MuJoCo's general routine goes on to the end."""
    rng = np.random.default_rng(seed)
    m = model_of(kind1, kind2, rng, worlds)
    m.opt.ccd_tolerance, m.opt.ccd_iterations = 1e-12, 200
    d = mujoco.MjData(m)
    qpos, states, wanted = [], [], []
    for _ in range(trials):
        random_pose(m, d, rng)
        qpos.append(d.qpos.copy())
        states.append(np.concatenate([d.geom_xpos, d.geom_xmat], axis=1))
        wanted.append(reported(m, d))
    return Comparison(m, qpos, at_states(m, np.array(states)), wanted)


def at_states(m, states, dtype=float) -> np.ndarray:
    """`[*batch, pairs, count, 13]`: the candidates at places and rotations `[*batch, ngeom, 12]`."""
    one, two = m.pair_geom1, m.pair_geom2
    if m.geom_type[one[0]] > m.geom_type[two[0]]:
        one, two = two, one
    structures, vertices = hulls_of_geoms(m, one, two)
    sizes = [m.geom_size[g] if of is None else vertices for g, of in zip((one, two), structures, strict=True)]
    kinds = [GEOM_SHAPES[GeomType(int(m.geom_type[g[0]]))] for g in (one, two)]
    margin = m.pair_margin + m.pair_gap
    arrays = (sizes[0], states[..., one, :], sizes[1], states[..., two, :], margin)
    return evaluate(*kinds, *(np.asarray(x, dtype) for x in arrays), tuple(structures))


def is_moot(found: Comparison, i: int, j: int) -> bool:
    """Whether MuJoCo reports other contacts, among them the ones that were found, at poses that differ by rounding."""
    rng = np.random.default_rng(0)
    m, d = found.model, mujoco.MjData(found.model)
    for _ in range(200):
        d.qpos[:] = found.qpos[i] + 1e-13 * rng.normal(size=m.nq)
        mujoco.mj_kinematics(m, d)
        mujoco.mj_collision(m, d)
        if difference(found.got[i, j], reported(m, d)[j]) < 1e-8:
            return True
    return False


PAIRS = [
    ("plane", "sphere"),
    ("plane", "capsule"),
    ("plane", "ellipsoid"),
    ("plane", "cylinder"),
    ("plane", "box"),
    ("plane", "cube"),
    ("plane", "prism"),
    ("plane", "rock"),
    ("sphere", "sphere"),
    ("sphere", "capsule"),
    ("sphere", "cylinder"),
    ("sphere", "box"),
    ("capsule", "capsule"),
    ("capsule", "box"),
    ("box", "box"),
]


def check(found: Comparison) -> None:
    errors = found.errors()
    assert sum(len(x) > 0 for w in found.wanted for x in w) > 0.1 * errors.size
    for i, j in np.argwhere(errors > TOLERANCE):
        assert is_moot(found, i, j), (errors[i, j], found.qpos[i], found.got[i, j], found.wanted[i][j])
    # Sweeps against slip depend on the order, which rounding decides where distances are the same.
    for i, j in np.argwhere(errors <= TOLERANCE):
        got, wanted = np.array([x for x in found.got[i, j] if x[0] < FAR / 2]), np.array(found.wanted[i][j])
        if len(got) > 1 and np.diff(np.sort(got[:, 0])).min() > 1e-9:
            np.testing.assert_allclose(got, wanted, atol=TOLERANCE)


@pytest.mark.parametrize(("kind1", "kind2"), PAIRS)
def test_contacts_are_those_of_mujoco(kind1, kind2):
    """Distances, positions, frames and numbers, apart, within the margin and overlapping, aligned and at random."""
    check(compare(kind1, kind2, 40))


@pytest.mark.slow
@pytest.mark.parametrize(("kind1", "kind2"), PAIRS)
def test_contacts_are_those_of_mujoco_at_many_poses(kind1, kind2):
    check(compare(kind1, kind2, 2000, seed=1))


ROUTINE = [("sphere", "ellipsoid"), ("capsule", "ellipsoid"), ("capsule", "cylinder"), ("ellipsoid", "ellipsoid")]
"""Pairs for which MuJoCo has its general routine, which ends at a tolerance."""
BOXES = [("ellipsoid", "cylinder"), ("ellipsoid", "box"), ("cylinder", "cylinder"), ("cylinder", "box")]
"""Those of them with flat sides on both or with edges."""


def check_nearly(found: Comparison) -> None:
    """Compare contacts, of little depth where only these are MuJoCo's, but for those whose place is not unique."""
    m, d = found.model, mujoco.MjData(found.model)
    compared = 0
    for i, qpos in enumerate(found.qpos):
        d.qpos[:] = qpos
        mujoco.mj_kinematics(m, d)
        for j, wanted in enumerate(found.wanted[i]):
            geoms = sorted((m.pair_geom1[j], m.pair_geom2[j]), key=lambda g: m.geom_type[g])
            kinds = [GEOM_SHAPES[GeomType(int(m.geom_type[g]))] for g in geoms]
            depth = shallow_depth(kinds[0], m.geom_size[geoms[:1]], kinds[1], m.geom_size[geoms[1:]])
            if may_be_deep(*kinds) and any(x[0] < -0.9 * depth[0] for x in wanted):
                continue
            compared += len(wanted)
            # MuJoCo's distances are much closer than its normals, on which the places of edges depend.
            distance, place = (1e5, 5e3) if kinds[0] == Cylinder else (1e8, 5e4)
            scale = np.array([distance, *[place] * 3, *[1e3] * 9])
            got = [x for x in found.got[i, j] if x[0] < FAR / 2]
            if difference([x * scale for x in got], [x * scale for x in wanted]) < 1:
                continue
            axes = d.geom_xmat[geoms].reshape(2, 3, 3)
            if lie_flat(kinds, axes, got, wanted):
                continue
            assert is_any(kinds, axes, got, wanted) or is_moot(found, i, j), (qpos, got, wanted)
    assert compared > 0.05 * len(found.qpos) * m.npair


def lie_flat(kinds, axes, got, wanted) -> bool:
    """Whether a cylinder's end lies on a face, where MuJoCo's places are corners of polygons: normals are the same,
    and the deepest place of ours is not less deep, but for the tilt, as MuJoCo's shared part is seen along the axis."""
    if not has_flat_disks(*kinds) or min(len(got), len(wanted)) < 1 or max(len(got), len(wanted)) < 2:
        return False
    normals = np.array([x[4:7] for x in (*got, *wanted)])
    cosines = [np.abs(normals @ axes[k][:, 2]).min() for k in (0, 1) if kinds[k] is Cylinder]
    same = np.abs(normals - normals[0]).max() < 1e-3
    least = [min(x[0] for x in contacts) for contacts in (got, wanted)]
    tilt = 2 * (1 - min(cosines))
    return min(cosines) > 0.996 and bool(same) and least[0] < least[1] + tilt * abs(least[1]) + 1e-6


def is_any(kinds, axes, got, wanted) -> bool:
    """Whether MuJoCo may report another place: for a single contact of a cylinder along a line; and where the end of a
    cylinder is touched by what is perpendicular to its axis up to a small tilt."""
    if Cylinder not in kinds:
        return False
    own = [axes[k][:, 2:] if kinds[k] != Box else axes[k] for k in (0, 1)]
    parallel = np.abs(own[0].T @ own[1]).max() > 1 - 1e-4
    same = len(got) == len(wanted) == 1 and abs(got[0][0] - wanted[0][0]) < 1e-6
    if parallel and same:
        return np.abs(got[0][4:7] - wanted[0][4:7]).max() < 1e-3
    if kinds[0] == Capsule:
        return parallel
    normals = [x[4:7] for x in (*got, *wanted)]
    ends = [abs(n @ axes[k][:, 2]) > 1 - 1e-6 for k in (0, 1) for n in normals if kinds[k] == Cylinder]
    return any(ends) and np.abs(own[0].T @ own[1]).min() < 0.0888


@pytest.mark.parametrize(("kind1", "kind2"), [pytest.param(*ROUTINE[2], marks=pytest.mark.slow), ROUTINE[3]])
def test_contacts_are_nearly_those_of_the_general_routine(kind1, kind2):
    check_nearly(compare(kind1, kind2, 40))


@pytest.mark.parametrize(
    ("kind1", "kind2"), [("ellipsoid", "box"), pytest.param("cylinder", "box", marks=pytest.mark.slow)]
)
def test_contacts_with_flat_sides_are_nearly_those_of_the_general_routine(kind1, kind2):
    check_nearly(compare(kind1, kind2, 200, worlds=1))


@pytest.mark.slow
@pytest.mark.parametrize(("kind1", "kind2"), ROUTINE + BOXES)
def test_contacts_are_nearly_those_of_the_general_routine_at_many_poses(kind1, kind2):
    check_nearly(compare(kind1, kind2, 1000, seed=1))


HULLS = [("sphere", "rock"), ("capsule", "cube"), ("ellipsoid", "rock"), ("cylinder", "prism"), ("box", "prism")]
HULLS += [("rock", "prism"), ("cube", "cube")]
"""Pairs with meshes, which are their convex hulls."""


def check_hulls(found: Comparison) -> None:
    """Compare contacts of meshes, but for a few: where a deep overlap has two equally short ways out, or the place of a
    contact along a line or an end of a cylinder is any."""
    errors = found.errors()
    touches = np.array([[len(x) > 0 for x in wanted] for wanted in found.wanted])
    assert touches.mean() > 0.1
    # In 200 poses of these pairs 330 of 341 of the cylinder and the prism agreed, and at least 98.8 % of all others.
    assert np.mean(errors[touches] < 1e-5) > 0.95
    assert np.mean(errors[~touches] == 0) > 0.99


@pytest.mark.parametrize(
    ("kind1", "kind2"), [pytest.param(*p, marks=[pytest.mark.slow] * (p != HULLS[-1])) for p in HULLS]
)
def test_contacts_of_hulls_are_those_of_mujoco(kind1, kind2):
    check_hulls(compare(kind1, kind2, 40))


def test_faces_of_meshes_that_are_not_quite_flat_touch_where_mujoco_cuts_them():
    """An end whose corners are up to 1e-5 m out of its plane, which MuJoCo takes as one face, over corners of a box."""
    angles = 2 * np.pi * np.arange(12) / 12 + 0.1
    end = np.stack([0.1 * np.cos(angles), 0.1 * np.sin(angles), 0.05 + 1e-5 * np.cos(2 * angles)], axis=1)
    vertices = " ".join(f"{x:.9g}" for x in np.concatenate([end, end * [1, 1, -1]]).ravel())
    m = mujoco.MjModel.from_xml_string(f"""<mujoco><asset><mesh name="m" vertex="{vertices}"/></asset><worldbody>
      <geom name="a" type="box" size=".03 .05 .02"/><body><freejoint/><geom name="b" type="mesh" mesh="m"/></body>
      </worldbody><contact><pair geom1="a" geom2="b"/></contact></mujoco>""")
    assert 12 in m.mesh_polyvertnum
    m.opt.ccd_tolerance = 1e-12
    d, rng, states, wanted = mujoco.MjData(m), np.random.default_rng(0), [], []
    for _ in range(8):
        d.qpos[:] = [*(0.01 * rng.normal(size=2)), 0.068, 1, *(0.01 * rng.normal(size=2)), rng.normal()]
        mujoco.mj_kinematics(m, d)
        mujoco.mj_collision(m, d)
        states.append(np.concatenate([d.geom_xpos, d.geom_xmat], axis=1))
        wanted.append(reported(m, d)[0])
    assert sum(map(len, wanted)) > 16
    assert all(difference(*x) < 1e-9 for x in zip(at_states(m, np.array(states))[:, 0], wanted, strict=True))


def test_hulls_have_the_vertices_in_the_middle_of_faces_that_are_not_quite_flat():
    """The compiler merges the triangles around them into one face, of which they are no corners. Its search for
    contacts finds them still, and without them the hull is too small by up to 4e-6 m here."""
    rng, angles = np.random.default_rng(7), 2 * np.pi * np.arange(40) / 40
    radius = np.where(np.arange(40) % 4, 0.1, 0.05)
    high = 0.05 + 1e-5 * ((radius < 0.1) + rng.normal(size=40))
    end = np.stack([radius * np.cos(angles), radius * np.sin(angles), high], axis=1)
    points = np.concatenate([end, end * [1, 1, 0] - [0, 0, 0.05]])
    vertices = " ".join(f"{x:.9g}" for x in points.ravel())
    m = mujoco.MjModel.from_xml_string(f"""<mujoco><asset><mesh name="m" vertex="{vertices}"/></asset><worldbody>
      <geom type="mesh" mesh="m"/><body><freejoint/><geom type="mesh" mesh="m"/></body></worldbody></mujoco>""")
    corners = np.unique(m.mesh_polyvert[: m.mesh_polyvertnum.sum()])
    hull = hulls_of_geoms(m, [0], [1])[1].reshape(-1, 3)
    directions = np.concatenate([m.mesh_polynormal, rng.normal(size=(200, 3))])
    farthest = (directions @ m.mesh_vert.astype(float).T).max(axis=1)
    # Without those that are corners of no face it would be smaller.
    assert (farthest - (directions @ m.mesh_vert[corners].T).max(axis=1)).max() > 1e-6
    np.testing.assert_allclose((directions @ hull.T).max(axis=1), farthest, rtol=0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(("kind1", "kind2"), [("cylinder", "rock"), ("ellipsoid", "rock"), ("box", "prism")])
def test_derivatives_of_contacts_of_hulls_are_those_of_differences(kind1, kind2):
    """Distances, places and frames by the places and rotations of the second geoms, where contacts stay the same."""
    rng = np.random.default_rng(3)
    m = model_of(kind1, kind2, rng)
    d = mujoco.MjData(m)
    one, two = m.pair_geom1, m.pair_geom2
    structures, vertices = hulls_of_geoms(m, one, two)
    sizes = [m.geom_size[g] if of is None else vertices for g, of in zip((one, two), structures, strict=True)]
    function = OnArrays(kind_of(kind1), kind_of(kind2), tuple(structures))
    margin = jnp.asarray(m.pair_margin + m.pair_gap)

    @jax.jit
    def turned(small, first, second):
        matrices = (jnp.eye(3) - jnp.cross(jnp.eye(3), small[3:])) @ second[:, 3:].reshape(-1, 3, 3)
        moved = jnp.concatenate([second[:, :3] + small[:3], matrices.reshape(-1, 9)], axis=1)
        return function(sizes[0], first, sizes[1], moved, margin)

    derivative = jax.jit(jax.jacfwd(turned))
    backward = jax.jit(jax.grad(lambda *args: turned(*args).sum()))
    step, compared, right = 1e-6, 0, 0
    for _ in range(12):
        random_pose(m, d, rng, 0.2)
        states = np.concatenate([d.geom_xpos, d.geom_xmat], axis=1)
        args = states[one], states[two]
        J = np.asarray(derivative(np.zeros(6), *args))
        assert np.isfinite(J).all()
        # Each entry is a sum over contacts of numbers of the size of the largest: 7e-8 of 38 was seen for ellipsoids.
        slope = J.sum(axis=(0, 1))
        np.testing.assert_allclose(slope, backward(np.zeros(6), *args), rtol=1e-8, atol=1e-8 * max(1, abs(slope).max()))
        ends = np.array([[turned(s * step * e, *args) for e in np.eye(6)] for s in (1, -1)])
        same = ((ends[..., 0] < 1) & (np.abs(ends - ends[0, 0]).max(axis=-1) < 1e-3)).all(axis=(0, 1))
        differences = np.moveaxis(ends[0] - ends[1], 0, -1) / (2 * step)
        close = np.abs(J - differences).max(axis=(1, 2)) < 1e-4 * (1 + np.abs(J).max(axis=(1, 2)))
        compared += same.sum()
        right += (close & same).sum()
    assert compared > 20
    # The contacts of a few change between the ends, where others become the ones that MuJoCo takes.
    assert right > 0.9 * compared


SINGULAR = {
    "nowhere apart": (0, 0, 0),
    "surfaces touching": (0, 0, 0.2),
    "beside": (0.1, 0, 0),
    "at an edge": (0.1, 0.1, 0),
    "at a corner": (0.1, 0.1, 0.1),
    "farther": (0, 0.2, 0.1),
}
QUARTER = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]])
EIGHTH = np.array([[np.sqrt(0.5), -np.sqrt(0.5), 0], [np.sqrt(0.5), np.sqrt(0.5), 0], [0, 0, 1]])


SIMPLE = [p for p in PAIRS + ROUTINE if p[1] not in MESHES]
LONG = [("capsule", "cylinder"), ("capsule", "box"), ("box", "box"), *ROUTINE[1:], *BOXES]
PLACED = [p for p in SIMPLE if p not in LONG] + [pytest.param(*p, marks=pytest.mark.slow) for p in LONG]


@pytest.mark.parametrize(("kind1", "kind2"), PLACED)
def test_derivatives_are_finite_where_directions_are_not_unique(kind1, kind2):
    kinds = kind_of(kind1), kind_of(kind2)
    places = [np.concatenate([x, r.ravel()]) for x in SINGULAR.values() for r in (np.eye(3), QUARTER, EIGHTH)]
    two = jnp.asarray(places)[:, None]
    one = jnp.asarray(np.concatenate([np.zeros(3), np.eye(3).ravel()]))[None]
    sizes = jnp.broadcast_to(jnp.array([0.1, 0.1, 0.1]), (len(places), 1, 3))

    def function(sizes1, sizes2, placed):
        plain = Plain(OnArrays(*kinds, (None, None)), (2, 2, 2, 2, 1), ((candidate_count(*kinds), 13),))
        return call(plain, sizes1, one, sizes2, placed, jnp.array([0.02]))[0]

    out, pullback = jax.vjp(function, sizes, sizes, two)
    rng = np.random.default_rng(0)
    for _ in range(3):
        for gradient in (out, *pullback(jnp.asarray(rng.normal(size=out.shape)))):
            assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize(
    ("kind1", "kind2"), [BOXES[-1], *(pytest.param(*p, marks=pytest.mark.slow) for p in BOXES[:-1] + SIMPLE)]
)
def test_any_geom_may_have_the_batch_axes(kind1, kind2):
    """Where XLA compiles a world, only what moves has them."""
    kinds = kind_of(kind1), kind_of(kind2)
    moves, stays, sizes = jnp.zeros((5, 1, 12)), jnp.zeros((1, 12)), jnp.ones((1, 3))
    for first, second in ((stays, moves), (moves, stays)):
        out = jax.eval_shape(OnArrays(*kinds, (None, None)), sizes, first, sizes, second, jnp.zeros(1))
        assert out.shape == (5, candidate_count(*kinds), 13)


@pytest.mark.parametrize(
    ("kind1", "kind2", "tilt", "place"),
    [
        ("capsule", "box", None, (0.03, 0.05, 0.21)),
        pytest.param("ellipsoid", "box", None, (0.03, 0.05, 0.19), marks=pytest.mark.slow),
        pytest.param("ellipsoid", "cylinder", None, (0.21, 0.05, 0.02), marks=pytest.mark.slow),
        pytest.param("cylinder", "cylinder", None, (0.2, 0.05, 0.05), marks=pytest.mark.slow),
        pytest.param("cylinder", "cylinder", 0.03, (0.03, -0.02, -0.345), marks=pytest.mark.slow),
        pytest.param("cylinder", "box", 0.02, (0.03, -0.02, -0.295), marks=pytest.mark.slow),
    ],
)
def test_derivatives_are_those_of_differences(kind1, kind2, tilt, place):
    """For pairs with a choice of parts, away from where the choice changes; also of faces that nearly lie flat."""
    kinds = kind_of(kind1), kind_of(kind2)
    rng = np.random.default_rng(3)
    plain = Plain(OnArrays(*kinds, (None, None)), (2, 2, 2, 2, 1), ((candidate_count(*kinds), 13),))
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    if tilt is not None:
        turn = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    arguments = [
        np.array([[0.1, 0.2, 0.15]]),
        np.concatenate([place, turn.ravel()])[None],
        np.array([[0.2, 0.15, 0.1]]),
        np.concatenate([np.zeros(3), np.eye(3).ravel()])[None],
        np.array([0.1]),
    ]
    out, _ = check_derivatives(lambda *args: call(plain, *args)[0], *arguments, modes=["forward"])
    assert np.sum(np.asarray(out)[:, 0] < FAR / 2) > (0 if tilt is None else 3)


@pytest.mark.parametrize("other", [Box, pytest.param(Cylinder, marks=pytest.mark.slow)])
def test_an_end_that_lies_flat_touches_with_its_deepest_place(other):
    """Of a cylinder on a large face, tilted by up to 1 degree in any direction; the others are around the end."""
    rng = np.random.default_rng(0)
    n, radius, half = 20, 0.1, 0.2
    turn, tilt = rng.uniform(-np.pi, np.pi, n), np.where(np.arange(n) < 3, 0, rng.uniform(1e-3, 1.7e-2, n))
    toward = rng.uniform(-np.pi, np.pi, n)
    # The deepest place of the rim is along `toward`, at this depth.
    depth, placed = 4e-3, []
    for a, b, c in zip(turn, tilt, toward, strict=True):
        about = np.array([-np.sin(c), np.cos(c), 0.0])
        R = Rotation.from_rotvec(b * about) * Rotation.from_euler("z", a)
        height = half * np.cos(b) + radius * np.sin(b) - depth
        placed.append(np.concatenate([[0.05, -0.02, 0.1 + height], R.as_matrix().ravel()]))
    large = np.concatenate([[0, 0, 0], np.eye(3).ravel()])
    first, second = ([[radius, half, 0]], placed), ([[1.0, 1.0, 0.1] if other is Box else [1.0, 0.1, 0]], [large] * n)
    (sizes1, poses1), (sizes2, poses2) = first, second
    arrays = [np.broadcast_to(sizes1, (n, 3)), poses1, np.broadcast_to(sizes2, (n, 3)), poses2]
    got = evaluate(Cylinder, other, *(np.asarray(x)[:, None] for x in arrays), np.zeros((n, 1)))[:, 0]
    for found, small in zip(got, tilt, strict=True):
        found = found[found[:, 0] < FAR / 2]
        assert len(found) >= (4 if small == 0 else 2)
        # A tilted disk is as wide along the face as it is itself: r tilt^3 / 2 is 2.5e-7 m.
        assert found[:, 0].min() == pytest.approx(-depth, abs=3e-7)
        np.testing.assert_allclose(found[:, 4:7], np.tile([0, 0, -1.0], (len(found), 1)), atol=1e-12)


@pytest.mark.slow
def test_a_rim_is_found_where_axes_are_almost_parallel():
    """A cylinder beside a capsule, tilted by a few microradians, touches it with the rim of its lower end."""
    tilt, radius, own, half, offset = 3e-6, 0.025, 0.0275, 0.01, 0.05
    s, c = np.sin(tilt), np.cos(tilt)
    sizes = [[radius, 0.24, 0]], [[own, half, 0]]
    poses = np.eye(3), np.array([[1, 0, 0], [0, c, s], [0, -s, c]])
    placed = [np.concatenate([[0, y, 0], R.ravel()])[None] for y, R in zip((0, offset), poses, strict=True)]
    got = evaluate(Capsule, Cylinder, sizes[0], placed[0], sizes[1], placed[1], [0.0])[0]
    (contact,) = [x for x in got if x[0] < FAR / 2]
    np.testing.assert_allclose(contact[0], offset - radius - own * c - half * s, atol=1e-12)
    np.testing.assert_allclose(contact[3], own * s - half * c, atol=1e-8)
    np.testing.assert_allclose(contact[4:7], [0, 1, 0], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("kind1", "kind2"), [("capsule", "box"), ("cube", "cube")])
def test_single_precision(kind1, kind2):
    """The contacts that both precisions have agree."""
    found = compare(kind1, kind2, 20)
    m, d = found.model, mujoco.MjData(found.model)
    states = []
    for qpos in found.qpos:
        d.qpos[:] = qpos
        mujoco.mj_kinematics(m, d)
        states.append(np.concatenate([d.geom_xpos, d.geom_xmat], axis=1))
    single = at_states(m, np.array(states, np.float32), np.float32)
    assert single.dtype == np.float32
    errors = np.array(
        [[difference(g, w) for g, w in zip(*row, strict=True)] for row in zip(single, found.wanted, strict=True)]
    )
    assert np.mean(errors < 1e-4) > 0.95


def test_shapes_that_are_not_built_are_refused():
    with pytest.raises(ModelError, match="contacts of HeightField and Points are not built"):
        candidate_count(HeightField, Points)
    assert not is_built(HeightField, Points)
