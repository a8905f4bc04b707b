"""Contacts of height fields, compared with those that MuJoCo reports: one for each prism that a geom touches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import RobotFileError, RobotFileWarning, cli, load_world
from jaxdyn.geometry import FAR
from jaxdyn.io.mjcf import geom_pairs, shapes_of_pair
from tests.worlds.world_contacts import OnArrays, difference

mujoco = pytest.importorskip("mujoco")
SIZES = {"sphere": (0.15,), "capsule": (0.07, 0.2), "ellipsoid": (0.2, 0.1, 0.15), "cylinder": (0.12, 0.15)}
SIZES["box"] = (0.1, 0.15, 0.12)
SEARCHED = 3e-5
"""MuJoCo's general routine finds distances to its tolerance, and directions and places of curved faces less well: at
most 1.3e-5 was seen, for a cylinder."""


def world_text(kind: str, *, rows: int = 6, columns: int = 5, margin: float = 0.02, height: float = 0.6) -> str:
    size = " ".join(map(str, SIZES[kind]))
    heights = " ".join(f"{x:.3f}" for x in np.random.default_rng(2).uniform(0, 1, rows * columns))
    return f"""
<mujoco>
  <asset><hfield name="ground" nrow="{rows}" ncol="{columns}" size="1.2 1 {height} .2" elevation="{heights}"/></asset>
  <worldbody>
    <geom type="hfield" hfield="ground" pos=".1 .2 .3" quat=".9 .1 .2 .3" margin="{margin}"/>
    <body pos="0 0 1"><freejoint/><geom type="{kind}" size="{size}" mass="1"/></body>
  </worldbody>
</mujoco>"""


def compared(kind: str, count: int, **options):
    """The depths, the errors of places and frames, and the errors of distances, of all contacts at random poses."""
    rng = np.random.default_rng(0)
    m = mujoco.MjModel.from_xml_string(world_text(kind, **options))
    m.opt.ccd_tolerance, m.opt.ccd_iterations = 1e-14, 500
    d = mujoco.MjData(m)
    placed, wanted = [], []
    for _ in range(count):
        mujoco.mj_resetData(m, d)
        mujoco.mj_kinematics(m, d)
        place = rng.uniform((-1.4, -1.2, 0), (1.4, 1.2, 0.8))
        d.qpos[:3] = d.geom_xpos[0] + d.geom_xmat[0].reshape(3, 3) @ place
        d.qpos[3:] = rng.normal(size=4)
        mujoco.mj_kinematics(m, d)
        mujoco.mj_collision(m, d)
        placed.append(np.concatenate([d.geom_xpos, d.geom_xmat], axis=1))
        wanted.append([np.concatenate([[x.dist], x.pos, x.frame]) for x in d.contact[: d.ncon]])
    got = np.asarray(candidates_of(m)(np.array(placed)))
    rows = []
    for found, expected in zip(got, wanted, strict=True):
        # MuJoCo goes through the grid in the same order.
        found = found[found[:, 0] < FAR / 2]
        assert len(found) == len(expected)
        rows += [(-y[0], difference([x], [y]), abs(x[0] - y[0])) for x, y in zip(found, expected, strict=True)]
    return np.array(rows).T


def candidates_of(m):
    """A function of the placements `[*batch, 2, 12]` of the field and the geom."""
    (pair,) = geom_pairs(m)
    (grid, heights), (_, size) = shapes_of_pair(m, pair)
    plain = OnArrays(*pair.kinds, (grid, None))
    arrays = [jnp.asarray(x) for x in (heights[None], size[None], [pair.margin + pair.gap])]
    return jax.jit(lambda x: plain(arrays[0], x[..., :1, :], arrays[1], x[..., 1:, :], arrays[2]))


@pytest.mark.parametrize("kind", ["sphere", pytest.param("capsule", marks=pytest.mark.slow)])
def test_contacts_are_those_of_mujoco(kind):
    depths, errors, of_distances = compared(kind, 150)
    assert len(depths) > 100
    # A deeper overlap is found by MuJoCo's polytope.
    outside = depths < SIZES[kind][0]
    assert errors[outside].max() < 1e-10
    assert errors.max() < SEARCHED
    assert of_distances.max() < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ellipsoid", "cylinder", "box"])
@pytest.mark.parametrize("height", [0.6, 0.001])
def test_contacts_of_solids_are_those_of_mujoco(kind, height):
    depths, errors, of_distances = compared(kind, 150, height=height)
    assert len(depths) > 50
    shallow = depths < (np.inf if kind == "box" else 0.5 * min(SIZES[kind]))
    assert of_distances[shallow].max() < 1e-8
    assert errors[shallow].max() < SEARCHED


def test_boxes_without_a_margin_are_warned_of():
    with pytest.warns(RobotFileWarning, match="too little overlap.*'geom_1'"):
        load_world(world_text("box", rows=2, columns=2, margin=0.0))


@pytest.mark.slow
def test_overlaps_of_boxes_are_those_of_the_geometry():
    """Without a margin those of MuJoCo are too shallow."""
    m = mujoco.MjModel.from_xml_string(world_text("box", margin=0.0))
    d, rng, field, size = mujoco.MjData(m), np.random.default_rng(5), prisms_of(m), m.geom_size[1]
    placed, boxes = [], []
    for _ in range(40):
        d.qpos[:3], d.qpos[3:] = rng.uniform((-1.2, -1, 0.1), (1.4, 1.4, 1.1)), rng.normal(size=4)
        mujoco.mj_kinematics(m, d)
        placed.append(np.concatenate([d.geom_xpos, d.geom_xmat], axis=1))
        R, own = d.geom_xmat.reshape(-1, 3, 3)
        corners = np.stack(np.meshgrid(*[(-1, 1)] * 3), axis=-1).reshape(-1, 3) * size
        boxes.append((R.T @ own, (d.geom_xpos[1] - d.geom_xpos[0] + corners @ own.T) @ R))
    found = np.asarray(candidates_of(m)(np.array(placed)))[..., 0]
    total = 0
    for (axes, corners), distances in zip(boxes, found, strict=True):
        gaps = np.array([largest_gap(prism, corners, axes.T) for prism in field])
        overlaps = gaps[gaps < 0]
        np.testing.assert_allclose(distances[distances < FAR / 2], overlaps, atol=1e-12)
        total += len(overlaps)
    assert total > 20


def prisms_of(m) -> list[np.ndarray]:
    """The corners `[6, 3]` of the prisms of a field in its frame, in MuJoCo's order, those of the top first."""
    rows, columns, (half_x, half_y, top, base) = m.hfield_nrow[0], m.hfield_ncol[0], m.hfield_size[0]
    y, x = np.meshgrid(np.linspace(-half_y, half_y, rows), np.linspace(-half_x, half_x, columns), indexing="ij")
    points = np.stack([x, y, top * m.hfield_data.reshape(rows, columns)], axis=-1)
    out = []
    for r, c in np.ndindex(rows - 1, columns - 1):
        for third in ((r + 1, c), (r, c + 1)):
            upper = np.array([points[r, c], points[r + 1, c + 1], points[third]])
            out.append(np.concatenate([upper, upper * [1, 1, 0] - [0, 0, base]]))
    return out


def largest_gap(prism: np.ndarray, corners: np.ndarray, axes: np.ndarray) -> float:
    """How far a prism and a box are apart along the best of all normals of faces and products of edges."""
    top = prism[:3]
    sides = np.array([top[1] - top[0], top[2] - top[1], top[0] - top[2]])
    up = np.array([0.0, 0.0, 1.0])
    edges = [*sides, *(sides * [1, 1, 0]), up]
    normals = [np.cross(sides[0], sides[1]), up, *np.cross(sides, up), *axes]
    normals = np.array(normals + [np.cross(e, a) for e in edges for a in axes])
    normals /= np.linalg.norm(normals, axis=1)[:, None]
    normals = np.concatenate([normals, -normals])
    return ((corners @ normals.T).min(axis=0) - (prism @ normals.T).max(axis=0)).max()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SIZES)
def test_scene_on_a_height_field_is_mujocos(kind):
    found = cli.compare_world(world_text(kind), states=4, steps=150)
    assert found.equal, found


@pytest.mark.slow
def test_what_leaves_the_window_is_not_silent():
    """A geom that grows may be over more of the grid than the candidates have."""
    world = load_world(world_text("sphere"))
    sizes = world.parts.constraints.contacts.sizes
    larger = eqx.tree_at(lambda s: s.parts.constraints.contacts.sizes, world, sizes.at[1].multiply(6.0))
    state = world.state(np.array([0.1, 0.2, 1.0, 1, 0, 0, 0]))
    assert np.isfinite(world.accelerations(state)).all()
    assert np.isnan(larger.accelerations(state)).any()


def test_a_field_that_is_too_fine_is_refused():
    with pytest.raises(RobotFileError, match="hfield and sphere, of which the second can be over more than 2048"):
        load_world(world_text("sphere", rows=400, columns=400))
