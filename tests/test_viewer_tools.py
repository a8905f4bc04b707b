"""The viewer has a legend, names, layers, a handle of a frame, paths, moments, films, and pages for notebooks."""

import html

import imageio.v3 as iio
import numpy as np
import pytest
from loop_robots import close_four_bar, four_bar
from PIL import Image

import jaxdyn
from jaxdyn import DataError, ModelError, RobotFileError, UnknownNameError
from jaxdyn.viz import Viewer, browser_path, load_visuals, save_png, save_video
from jaxdyn.viz._drawing import COLLISIONS, body_poses
from jaxdyn.viz._sources import drawing_of

INERTIA = '<mass value="1"/><inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/>'
URDF = """<robot name="arm"><link name="base"/>
<link name="upper"><inertial>{inertia}</inertial>
  <visual><geometry><box size="0.2 0.2 1"/></geometry></visual>
  <collision><origin xyz="0 0 0.5"/><geometry><sphere radius="0.3"/></geometry></collision>
  <collision><geometry><box size="0.2 0.2 1"/></geometry></collision></link>
<link name="lower"><inertial>{inertia}</inertial><collision><geometry>{more}</geometry></collision></link>
<link name="slide"><inertial>{inertia}</inertial></link><link name="tip"/>
<joint name="turn" type="revolute"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
  <limit lower="-1.5" upper="2" effort="1" velocity="1"/></joint>
<joint name="bend" type="revolute"><origin xyz="0 0 1"/><parent link="upper"/><child link="lower"/><axis xyz="0 1 0"/>
  <limit lower="-2" upper="2" effort="1" velocity="1"/></joint>
<joint name="push" type="prismatic"><parent link="lower"/><child link="slide"/><axis xyz="0 0 1"/>
  <limit lower="0" upper="0.5" effort="1" velocity="1"/></joint>
<joint name="hold" type="fixed"><origin xyz="0 0 0.5"/><parent link="slide"/><child link="tip"/></joint></robot>"""
ARM = URDF.format(inertia=INERTIA, more='<cylinder radius="0.1" length="0.4"/>')


def test_sliders_and_legend_have_units():
    with Viewer(ARM) as viewer:
        sliders = viewer._joints.sliders.values()
        assert [x.label for x in sliders] == ["turn, rad", "bend, rad", "push, m"]
        assert next(x.hint for x in sliders) == "turn: -1.5 to 2 rad (-86° to 115°)"
        assert [x.hint for x in sliders][2] == "push: 0 to 0.5 m"
        assert viewer._player.time.label.endswith(", s")
        assert "cells of the grid: 10 cm" in viewer._legend.content


def test_the_legend_says_what_is_shown():
    t = np.array([0.0, 0.5, 1.0])
    q = np.stack([t, 0 * t, 0 * t], axis=1)
    with Viewer(ARM) as viewer:
        assert "robot" in viewer._legend.content
        assert "turns" not in viewer._legend.content
        viewer.show_layer("axes")
        assert "axis, turns" in viewer._legend.content
        assert "axis, slides" in viewer._legend.content
        viewer.show_layer("ellipsoids")
        assert "> inertia<" in viewer._legend.content
        assert "impossible" not in viewer._legend.content
        viewer.play(t, q, compare=q, names=("measured", "<simulated>"), path_of="tip")
        for text in ("measured", "&lt;simulated&gt;", "path of tip, measured", "path of tip, &lt;simulated&gt;"):
            assert text in viewer._legend.content
        viewer.play(t, q)
        assert "simulated" not in viewer._legend.content
        assert "path" not in viewer._legend.content
        with pytest.raises(UnknownNameError, match="toe"):
            viewer.play(t, q, path_of="toe")
        with pytest.raises(ModelError, match="layer is 'mesh'"):
            viewer.show_layer("mesh")


def test_loops_are_drawn_where_they_are():
    model, (closed, apart) = four_bar(), (close_four_bar(0.5), np.array([0.6, -1.0, -1.2]))
    with Viewer(model, q=closed) as viewer:
        assert "ends of a loop" in viewer._legend.content
        assert not viewer._robot._lines
        viewer.show(apart)
        (line,) = viewer._robot._lines.values()
        for q in (apart, np.array([0.3, 0.2, 0.1])):
            viewer.show(q)
            (expected,) = viewer._drawing.lines(body_poses(model, q))
            np.testing.assert_allclose(line.vertices, expected.mesh.vertices, atol=1e-6)
            assert line.visible
        viewer.show_layer("loops", False)
        assert not line.visible
        assert "loop" not in viewer._legend.content
        viewer.show_layer("loops")
        assert line.visible
        viewer.show(closed)
        assert not line.visible


def test_names_of_links_joints_and_frames():
    with Viewer(ARM) as viewer:
        viewer._robot.show_names(True)
        texts = [x.text for x in viewer._robot._names]
        assert texts[:3] == ["upper (joint turn)", "lower (joint bend)", "slide (joint push)"]
        assert {"base", "tip"} <= set(texts)
        viewer._robot.show_names(False)
        assert not any(x.visible for x in viewer._robot._names)
        # A click on the box names its link; another click hides the name.
        (node,) = viewer._robot._surfaces["meshes"]
        (click,) = node._impl.click_cb
        for shown in (1, 0):
            click.callback(None)
            labels = list(viewer._robot._clicked.values())
            assert [x.text for x in labels] == ["link upper"] * shown


def test_robots_that_coincide_do_not_flicker(tmp_path):
    q = [0.3, -0.4, 0.2]
    drawing = drawing_of(ARM, None, (), False, {})
    for surface in drawing.surfaces:
        outside = surface.as_compared(drawing.unit)
        apart = ((outside.mesh.vertices - surface.mesh.vertices) * surface.mesh.vertex_normals).sum(axis=1)
        assert (apart > 1e-3 * drawing.unit).all()
        assert (apart < 1e-2 * drawing.unit).all()
    save_png(tmp_path / "one.png", ARM, q, width=160, height=120)
    save_png(tmp_path / "two.png", ARM, q, compare=q, width=160, height=120)
    one, two = (np.asarray(Image.open(tmp_path / f"{x}.png"), np.float64) for x in ("one", "two"))
    # Wherever the gray box is, the orange one covers it.
    inside = (one.max(axis=2) < 225) & (np.ptp(one, axis=2) < 20) & (np.abs(two - one).sum(axis=2) > 5)
    assert inside.sum() > 300
    assert (two[inside][:, 0] > two[inside][:, 2] + 30).mean() > 0.97


def test_collision_geometry_is_read_when_it_is_shown(tmp_path):
    shapes = load_visuals(ARM, collision=True)
    assert [x.frame for x in shapes] == ["upper", "upper", "lower"]
    np.testing.assert_allclose(shapes[0].vertices.max(axis=0), [0.3, 0.3, 0.8], atol=1e-9)
    drawing = drawing_of(ARM, None, (), False, {})
    assert not [x for x in drawing.surfaces if x.layer == COLLISIONS]
    assert len([x for x in drawing.with_layers(["collisions"]).surfaces if x.layer == COLLISIONS]) == 3
    with Viewer(ARM) as viewer:
        assert COLLISIONS not in viewer._robot._surfaces
        viewer.show_layer("collisions")
        assert [x.visible for x in viewer._robot._surfaces[COLLISIONS]] == [True] * 3
        viewer.show_layer("collisions", False)
        assert [x.visible for x in viewer._robot._surfaces[COLLISIONS]] == [False] * 3
    # A mesh that is missing matters only where it is asked for.
    path = tmp_path / "arm.urdf"
    path.write_text(URDF.format(inertia=INERTIA, more='<mesh filename="gone.stl"/>'))
    with Viewer(path) as viewer:
        with pytest.raises(RobotFileError, match=r"gone\.stl"):
            viewer.show_layer("collisions")
        assert not viewer._switches["collisions"].value
        viewer.show_layer("frames")


def test_collision_geoms_of_mjcf():
    mjcf = """<mujoco><worldbody><body><joint/><geom name="seen" size="0.1" contype="0" conaffinity="0" group="2"/>
    <geom name="felt" size="0.2" group="3"/></body></worldbody></mujoco>"""
    (seen,), (felt,) = load_visuals(mjcf), load_visuals(mjcf, collision=True)
    assert np.abs(seen.vertices).max() == pytest.approx(0.1)
    assert np.abs(felt.vertices).max() == pytest.approx(0.2)
    assert felt.color[3] < 1


@pytest.mark.slow
def test_a_handle_pulls_a_frame():
    start, goal = np.array([0.2, 0.5, 0.1]), np.array([0.6, 0.9, 0.3])
    with Viewer(ARM, q=start) as viewer:
        model, handle = viewer.model, viewer._handle.handle
        assert not handle.visible
        viewer.pull("tip")
        assert handle.visible
        np.testing.assert_allclose(handle.position, jaxdyn.frame_pose(model, start, "tip").translation, atol=1e-5)
        target = jaxdyn.frame_pose(model, goal, "tip")
        handle.position, handle.wxyz = np.asarray(target.translation), np.asarray(target.to_vector())[3:]
        viewer._handle.reach()
        reached = jaxdyn.frame_pose(model, viewer.q, "tip")
        np.testing.assert_allclose(reached.translation, target.translation, atol=2e-4)
        assert viewer._handle.status.content.startswith("**Converged**; largest error")
        assert viewer._joints.sliders[0].value == viewer.q[0]
        # Only the position, out of reach: the arm stretches, and the page says that it does not reach.
        viewer._handle.turning.value = False
        handle.position = (9.0, 0.0, 1.0)
        viewer._handle.reach()
        assert not viewer._handle.status.content.startswith("**Converged**")
        # The handle follows the frame again when the robot is moved otherwise.
        viewer.show(start)
        np.testing.assert_allclose(handle.position, jaxdyn.frame_pose(model, start, "tip").translation, atol=1e-5)
        viewer.pull(None)
        assert not handle.visible
        with pytest.raises(ModelError, match="fixed in the world"):
            viewer.pull("base")


@pytest.mark.slow
def test_paths_moments_films_and_notebooks(tmp_path):
    t = 2.0 + np.linspace(0, 0.4, 9)
    q = np.stack([np.sin(t), 0.5 * t - 1, 0.1 * t], axis=1)
    model = jaxdyn.load_urdf(ARM)
    tips = np.asarray(jaxdyn.frame_pose(model, q, "tip").translation)
    with Viewer(ARM) as viewer:
        with pytest.raises(DataError, match="call play"):
            viewer.save_png(tmp_path / "none.png", sample=0)
        with pytest.raises(DataError, match="call play"):
            viewer.save_video(tmp_path / "none.gif")
        viewer.play(t, q, compare=0.9 * q, path_of="tip", speed=2.0)
        viewer.pause()
        low, high = viewer._paths.surfaces[0].mesh.bounds
        radius = 0.02 * viewer._drawing.unit
        np.testing.assert_allclose(low, tips.min(axis=0), atol=radius)
        np.testing.assert_allclose(high, tips.max(axis=0), atol=radius)
        assert len(viewer._paths.surfaces) == 2
        size = {"width": 80, "height": 60}
        viewer.save_png(tmp_path / "a.png", time=0.2, **size)
        viewer.save_png(tmp_path / "b.png", sample=4, **size)
        viewer.save_png(tmp_path / "c.png", sample=-1, **size)
        a, b, c = (np.asarray(Image.open(tmp_path / f"{x}.png"), int) for x in "abc")
        assert np.array_equal(a, b)
        assert np.abs(a - c).max() > 50
        for wrong in ({"time": 0.5}, {"time": -0.1}, {"sample": 9}, {"time": 0.1, "sample": 1}):
            with pytest.raises(DataError):
                viewer.save_png(tmp_path / "none.png", **wrong)
        # 0.4 s at double speed are 0.2 s, 3 pictures at 10 in a second.
        viewer.save_video(tmp_path / "film.gif", frames_per_second=10.0, **size)
        page = viewer._repr_html_()
        assert page.startswith("<iframe srcdoc=")
        assert "path of tip" in html.unescape(page)
    film = iio.imread(tmp_path / "film.gif")
    assert film.shape[:3] == (3, 60, 80)
    assert np.abs(film[0].astype(int) - film[-1]).max() > 50


@pytest.mark.slow
def test_films_as_files(tmp_path):
    t = np.linspace(0, 0.2, 5)
    # Neighboring pictures that are equal would be one in the file.
    q = np.stack([5 * t, 9 * t, t], axis=1)
    size = {"width": 64, "height": 48, "frames_per_second": 20.0}
    for name in ("film.mp4", "film.webp"):
        save_video(tmp_path / name, ARM, t, q, show=["collisions"], **size)
    assert iio.imread(tmp_path / "film.mp4").shape[:3] == (5, 48, 64)
    with Image.open(tmp_path / "film.webp") as film:
        assert (film.n_frames, film.size) == (5, (64, 48))
    with pytest.raises(DataError, match=r"\.avi.*\.mp4"):
        save_video(tmp_path / "film.avi", ARM, t, q)
    with pytest.raises(ModelError, match="speed"):
        save_video(tmp_path / "film.gif", ARM, t, q, speed=0.0)


def test_a_browser_may_be_named(tmp_path, monkeypatch):
    program = tmp_path / "browser"
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    monkeypatch.setenv("JAXDYN_BROWSER", str(program))
    assert browser_path() == str(program)
    monkeypatch.setenv("JAXDYN_BROWSER", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert browser_path() is None
    with pytest.raises(DataError, match="JAXDYN_BROWSER"):
        save_png(tmp_path / "none.png", ARM, renderer="browser")


def test_a_picture_shows_what_is_in_front(tmp_path):
    """Rays find the nearest surface: the rows and columns of a ball in the picture are those of the projection."""
    ball = '<robot name="b"><link name="a"><visual><origin xyz="0 0 1"/><geometry><sphere radius="0.5"/></geometry>'
    ball += '<material name="r"><color rgba="1 0 0 1"/></material></visual></link></robot>'
    ball = ball.replace("</link>", f"<inertial>{INERTIA}</inertial></link>")
    drawing = drawing_of(ball, None, (), False, {"free_base": True})
    path = tmp_path / "ball.png"
    save_png(path, ball, width=200, height=150, free_base=True)
    image = np.asarray(Image.open(path), np.float64)
    red = (image[..., 0] > 90) & (image[..., 1] < 0.5 * image[..., 0])
    low, high = drawing.bounds(body_poses(drawing.model, drawing.model.neutral()))
    distance = 1.3 * np.linalg.norm(high - low)
    radius = 75 / np.tan(np.radians(22.5)) * np.tan(np.arcsin(0.5 / distance))
    assert np.sqrt(red.sum() / np.pi) == pytest.approx(radius, rel=0.02)
    rows, columns = np.nonzero(red)
    assert (rows.mean(), columns.mean()) == (pytest.approx(74.5, abs=0.5), pytest.approx(99.5, abs=0.5))


def test_rays_show_the_image_on_a_mesh(tmp_path):
    Image.fromarray(np.array([[[255, 0, 0], [0, 0, 255]]], np.uint8).repeat(2, axis=0)).save(tmp_path / "image.png")
    (tmp_path / "square.mtl").write_text("newmtl m\nKd 1 1 1\nmap_Kd image.png\n")
    # The left half of the image is red and the right one blue; the square stands in the x-z plane.
    corners = "v 0 0 0\nv 1 0 0\nv 1 0 1\nv 0 0 1\nv 2 0 0\nv 2 0 1\n"
    image = "vt 0.1 0\nvt 0.2 1\nvt 0.8 0\nvt 0.9 1\n"
    faces = "f 1/1 2/2 3/1\nf 1/1 3/1 4/2\nf 2/3 5/4 6/3\nf 2/3 6/3 3/4\n"
    (tmp_path / "square.obj").write_text(f"mtllib square.mtl\nusemtl m\n{corners}{image}{faces}")
    path = tmp_path / "robot.urdf"
    path.write_text(
        f'<robot name="r"><link name="a"><inertial>{INERTIA}</inertial><visual><geometry>'
        '<mesh filename="square.obj"/></geometry></visual></link></robot>'
    )
    (part,) = load_visuals(path)
    assert part.textured is not None
    scene = tmp_path / "scene.xml"
    scene.write_text(
        """<mujoco><asset><texture name="t" type="2d" file="image.png"/><material name="m" texture="t"/>
        <mesh name="square" file="square.obj" inertia="shell"/></asset><worldbody><body><freejoint/>
        <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
        <geom type="mesh" mesh="square" material="m" contype="0" conaffinity="0"/></body></worldbody></mujoco>"""
    )
    (part,) = load_visuals(scene)
    assert part.textured is not None
    for source, options in ((path, {"free_base": True}), (scene, {}), (jaxdyn.load_world(scene), {})):
        save_png(tmp_path / "out.png", source, width=160, height=120, **options)
        out = np.asarray(Image.open(tmp_path / "out.png"), np.float64)
        red, blue = ((out[..., k] > out[..., 2 - k] + 80).nonzero()[1] for k in (0, 2))
        assert min(len(red), len(blue)) > 200
        assert np.median(red) < np.median(blue)
