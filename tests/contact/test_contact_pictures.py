"""Pictures show contact shapes, the surface of the world, and contact forces where they are."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import jaxdyn
from jaxdyn import (
    Box,
    Capsule,
    ContactForces,
    ContactShape,
    Cylinder,
    Ellipsoid,
    HeightField,
    ModelError,
    Plane,
    Points,
    ShapeError,
    SignedDistance,
    Sphere,
    State,
    World,
)
from jaxdyn.cli import main
from jaxdyn.spatial import Vec3
from jaxdyn.viz import Viewer, save_html, save_png, save_video
from jaxdyn.viz._contact_scene import Forces, part_meshes, surface_mesh
from jaxdyn.viz._drawing import CONTACTS, FORCES, body_poses
from jaxdyn.viz._geometry import posed, scaled
from jaxdyn.viz._sources import drawing_of

CUBE = jaxdyn.samples.cube()
CORNERS = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * 0.06
SHAPES = [
    ContactShape("cube", Box((0.01, 0.02, 0.03)), (0.1, 0, 0)),
    ContactShape("cube", Sphere(0.04), (0, 0.1, 0)),
    ContactShape("cube", Capsule(0.02, 0.05), jaxdyn.SE3.from_rpy(jnp.array([0.3, 0.4, 0.5]), (0, 0, 0.2))),
    ContactShape("cube", Ellipsoid((0.01, 0.02, 0.05))),
    ContactShape("cube", Cylinder(0.04, 0.01), (0, 0, 0.1)),
    ContactShape("cube", Points(CORNERS)),
]


def forces_of(n: int) -> ContactForces:
    """Forces of made-up directions at two contacts, the second of which is open at odd samples."""
    random = np.random.default_rng(0)
    point, force = 0.1 * random.normal(size=(n, 2, 3)), random.normal(size=(n, 2, 3))
    force[1::2, 1] = 0
    gap = np.where(np.linalg.norm(force, axis=-1) > 0, -1e-3, 1e-3)
    return ContactForces(gap, 0 * force, point, force)


@pytest.mark.slow
def test_shapes_are_where_contacts_have_them():
    world = World(CUBE, SHAPES)
    drawing = drawing_of(world, None, (), False, {})
    assert drawing.shown[-2:] == (CONTACTS, FORCES)
    q = np.array(CUBE.random_configuration(jax.random.key(0)))
    gaps = np.asarray(world.contact_forces(State(q), of_step=False).gap)
    lowest = [x.in_world(body_poses(CUBE, q)).vertices[:, 2].min() for x in drawing.surfaces if x.layer == CONTACTS]
    # The witnesses: 8 corners, 1, 2 ends, 1, 6 of rims, and 4 points, which are balls and a hull.
    exact = [x.min() for x in np.split(gaps, [8, 9, 11, 12, 18])]
    exact.append(exact[-1])
    np.testing.assert_allclose(lowest, exact, atol=4e-3)
    np.testing.assert_allclose(lowest[0], exact[0], atol=1e-7)
    assert drawing_of(world, (), (), False, {}).shown[-2:] == (CONTACTS, FORCES)
    batched = World(CUBE, [ContactShape("cube", Sphere(np.array([0.1, 0.2])))])
    with pytest.raises(ModelError, match="batch axes"):
        drawing_of(batched, None, (), False, {})
    with pytest.raises(ModelError, match="contacts is a World"):
        drawing_of(CUBE, None, (), False, {}, world)
    with pytest.raises(ModelError, match="but a model is given"):
        drawing_of(CUBE, None, (), False, {}, True)


def test_surfaces_of_the_world():
    low, high = np.array([-0.2, -0.1, 0.1]), np.array([0.3, 0.2, 0.5])
    size = np.linalg.norm(high - low)

    def distances(surface) -> np.ndarray:
        vertices = surface_mesh(surface, low, high).vertices
        distance = jax.jit(lambda x: surface.distance(Vec3.from_array(x))[0])
        return np.asarray(distance(jnp.asarray(vertices)))

    np.testing.assert_allclose(distances(Plane((1.0, 0.2, 3.0), 0.1)), -1e-3 * size, atol=1e-7)
    hills = HeightField(0.1 * np.random.default_rng(0).uniform(size=(5, 6)), 0.3, (-0.7, -0.7, 0.0))
    np.testing.assert_allclose(distances(hills), 0, atol=1e-6)
    ball = SignedDistance(lambda center, x: jnp.linalg.norm(x - center) - 0.3, jnp.array([0.0, 0.0, -0.2]))
    assert len(distances(ball)) > 300
    np.testing.assert_allclose(distances(ball), 0, atol=1e-6)
    assert surface_mesh(SignedDistance(lambda _, x: x[2] + 100.0), low, high) is None


def test_arrows_end_where_the_force_says():
    given = forces_of(4)
    forces = Forces.of(given, 4, None, unit=0.5)
    usual = np.median(np.linalg.norm(given.force, axis=-1).max(axis=-1)) / 0.5
    assert re.fullmatch("[125]", f"{forces.scale:.0e}"[0])
    assert 1 / np.sqrt(2.5) <= forces.scale / usual <= np.sqrt(2.5)
    for k in range(4):
        parts = forces.instances(k)
        assert {len(x.positions) for x in parts.values()} == {2}
        drawn = [c for c in range(2) if given.gap[k, c] < 0]
        for i, c in enumerate(drawn):
            start, tip = given.point[k, c], given.point[k, c] + given.force[k, c] / forces.scale
            head, shaft, ball = (
                posed(scaled(part_meshes()[x], parts[x].scales[i]), np.r_[parts[x].positions[i], parts[x].wxyzs[i]])
                for x in ("head", "shaft", "ball")
            )
            along = (tip - start) / np.linalg.norm(tip - start)
            np.testing.assert_allclose(ball.vertices.mean(axis=0), start, atol=1e-6)
            assert np.linalg.norm(head.vertices - tip, axis=1).min() < 1e-6
            assert ((head.vertices - tip) @ along).max() < 1e-6
            np.testing.assert_allclose(((shaft.vertices - start) @ along).min(), 0, atol=1e-6)
        assert (parts["ball"].scales[len(drawn) :] < 1e-5).all()
    assert Forces.of(given, 4, 7.0, unit=0.5).scale == 7.0
    nothing = Forces.of(_open(given), 4, None, 0.5)
    assert nothing.mesh(0) is None
    assert not nothing.instances(0)["ball"].positions.size


def _open(forces: ContactForces) -> ContactForces:
    return ContactForces(0 * forces.gap + 1, forces.normal, forces.point, 0 * forces.force)


def test_the_viewer_plays_forces_and_hides_them_elsewhere(tmp_path):
    world = World(CUBE, [ContactShape("cube", Sphere(0.01), x) for x in ((0.1, 0, 0), (-0.1, 0, 0))])
    t, qs, forces = np.arange(4.0), np.tile(np.array(CUBE.neutral()), (4, 1)), forces_of(4)
    with Viewer(world) as viewer:
        assert "contact shape" in viewer._legend.content
        assert "surface of the world" in viewer._legend.content
        assert "N per m of arrow" not in viewer._legend.content
        viewer.play(t, qs, forces=forces, newtons_per_meter=20.0)
        viewer.pause(2.0)
        assert "contact force, 20 N per m of arrow" in viewer._legend.content
        parts = viewer._contacts._parts
        np.testing.assert_allclose(parts["ball"].batched_positions, forces.point[2], atol=1e-6)
        assert parts["shaft"].visible
        viewer.show_layer("forces", False)
        assert not parts["shaft"].visible
        viewer.show_layer("forces")
        viewer.show_layer("ellipsoids", False)
        viewer.save_png(tmp_path / "a.png", sample=2, width=120, height=90)
        # A configuration that is chosen by hand has no forces.
        viewer.show(qs[0])
        assert not parts["shaft"].visible
        viewer.save_png(tmp_path / "b.png", width=120, height=90)
        viewer.play(t, qs)
        assert not viewer._contacts._parts
        viewer.save_png(tmp_path / "e.png", sample=2, width=120, height=90)
        with pytest.raises(ShapeError, match=r"forces\.gap"):
            viewer.play(t, qs, forces=forces_of(3))
        with pytest.raises(ModelError, match="newtons_per_meter"):
            viewer.play(t, qs, forces=forces, newtons_per_meter=0.0)
    with Viewer(CUBE) as viewer, pytest.raises(ModelError, match="show this world"):
        viewer.play(t, qs, forces=forces)
    first = jax.tree.map(lambda x: x[2], forces)
    options = {"width": 120, "height": 90}
    save_png(tmp_path / "c.png", world, qs[0], forces=first, show=["contacts", "forces"], **options)
    save_png(tmp_path / "d.png", world, qs[0], forces=first, show=["contacts"], **options)
    a, b, c, d, e = (np.asarray(Image.open(tmp_path / f"{x}.png").convert("RGB"), int) for x in "abcde")
    # All that the forces change is their arrows, which are red rather than green.
    for with_forces, without in ((a, b), (c, d)):
        changed = np.abs(with_forces - without).max(axis=-1) > 60
        assert 10 < changed.sum() < 2000
        assert (with_forces[changed][:, 0] > with_forces[changed][:, 1]).mean() > 0.9
    np.testing.assert_array_equal(b, e)
    small = {"forces": forces, "width": 80, "height": 60, "speed": 4.0}
    # The arrows of weak forces, by the scale, are shorter.
    red = []
    for name, scale in (("f", 20.0), ("h", 200.0)):
        save_video(tmp_path / f"{name}.gif", world, t, qs, newtons_per_meter=scale, show=["forces"], **small)
        film = Image.open(tmp_path / f"{name}.gif")
        assert film.n_frames > 3
        first = np.asarray(film.convert("RGB"), int)
        red.append((first[..., 0] - first[..., 1] > 60).sum())
    assert red[0] > red[1]
    save_html(tmp_path / "g.html", world, t, qs, forces=forces, newtons_per_meter=20.0)
    assert "contact force, 20 N per m of arrow" in (tmp_path / "g.html").read_text()


def test_the_command_shows_contacts_of_a_file(tmp_path, capsys):
    inertial = '<inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial>'
    collision = '<collision><geometry><box size="1 1 1"/></geometry></collision>'
    file, page = tmp_path / "r.urdf", tmp_path / "r.html"
    file.write_text(f'<robot name="r"><link name="a">{inertial}{collision}</link></robot>')
    main(["view", str(file), "--free-base", "--contacts", "--html", str(page)])
    assert "contact shape" in page.read_text()
    (drawn,) = [x for x in drawing_of(file, None, (), False, {"free_base": True}, True).surfaces if x.layer == CONTACTS]
    np.testing.assert_allclose(drawn.mesh.bounds, [[-0.5] * 3, [0.5] * 3], atol=1e-6)
    file.write_text(f'<robot name="r"><link name="a">{inertial}</link></robot>')
    assert main(["view", str(file), "--free-base", "--contacts", "--html", str(page)]) != 0
    assert "no collision geometry on links that move" in capsys.readouterr().err
