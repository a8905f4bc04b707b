"""Images and plots show a model's visual shapes, inertias, joint axes and numbers."""

import re
import sys

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from PIL import Image

import jaxdyn
from jaxdyn import BodyInertia, DataError, Joint, ModelBuilder, ModelError, RobotFileError, ShapeError, UnknownNameError
from jaxdyn.io import RobotFileWarning, load_mjcf, load_urdf
from jaxdyn.spatial import transform_points
from jaxdyn.viz import Visual, load_visuals, plot_masses, plot_torques, plot_trajectory, save_png
from jaxdyn.viz._clips import frame_samples
from jaxdyn.viz._drawing import (
    AXES,
    ELLIPSOIDS,
    FRAMES,
    LOOPS,
    MESHES,
    SKELETON,
    body_poses,
    slider_ranges,
)
from jaxdyn.viz._geometry import arrow, box, capsule, cylinder, inflated, scaled, sphere, tube
from jaxdyn.viz._sources import drawing_of
from tests.loop_robots import close_four_bar, four_bar
from tests.robots import robot_path

STL = """solid corner
facet normal 0 0 -1\nouter loop\nvertex 0 0 0\nvertex 0 1 0\nvertex 1 0 0\nendloop\nendfacet
facet normal 0 -1 0\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 0 1\nendloop\nendfacet
facet normal -1 0 0\nouter loop\nvertex 0 0 0\nvertex 0 0 1\nvertex 0 1 0\nendloop\nendfacet
facet normal 1 1 1\nouter loop\nvertex 1 0 0\nvertex 0 1 0\nvertex 0 0 1\nendloop\nendfacet
endsolid corner
"""
INERTIAL = """<inertial><mass value="1"/><origin xyz="0 0 0.1"/>
<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>"""
JOINT = """<joint name="{name}" type="{kind}"><origin xyz="{xyz}" rpy="{rpy}"/><parent link="{parent}"/>
<child link="{child}"/><axis xyz="0 1 0"/><limit lower="-1" upper="2" effort="9" velocity="3"/></joint>"""
URDF = f"""<robot name="shapes">
<material name="red"><color rgba="1 0 0 0.5"/></material>
<link name="base"><visual><geometry><box size="1 2 3"/></geometry><material name="red"/></visual></link>
<link name="arm">{INERTIAL}
  <visual><origin xyz="0 0 1" rpy="1.5707963267948966 0 0"/><geometry><cylinder radius="0.5" length="4"/></geometry>
    <material name="own"><color rgba="0 0.5 0 1"/></material></visual>
  <collision><geometry><sphere radius="9"/></geometry></collision></link>
<link name="tool">{INERTIAL}<visual><geometry><sphere radius="0.25"/></geometry><material name="own"/></visual>
  <visual><geometry><capsule radius="0.5" length="1"/></geometry></visual></link>
{JOINT.format(name="turn", kind="revolute", xyz="0 0 1", rpy="0 0 0.5", parent="base", child="arm")}
{JOINT.format(name="hold", kind="fixed", xyz="0 0.3 2", rpy="0.4 0 0", parent="arm", child="tool")}
</robot>"""
MESH = '<robot name="m"><link name="a">{inertial}{visuals}</link></robot>'


def visual_of(filename: str, scale: str = "1 1 1") -> str:
    return f'<visual><geometry><mesh filename="{filename}" scale="{scale}"/></geometry></visual>\n'


def volume(vertices: np.ndarray, faces: np.ndarray) -> float:
    """Return the volume by the divergence theorem; it is positive if the triangles face outwards."""
    a, b, c = np.moveaxis(vertices[faces], 1, 0)
    return float((a * np.cross(b, c)).sum() / 6)


def test_shapes_look_outwards():
    end = np.array([0.0, 3.0, 0.0])
    for mesh, exact in (
        (box((1, 2, 3)), 6.0),
        (sphere((1, 2, 3)), 8 * np.pi),
        (cylinder(0.5, 4, around=200), np.pi),
        (capsule(0.5, 1, around=200), np.pi / 4 + np.pi / 6),
        (scaled(box((1, 2, 3)), (-1, 1, 1)), 6.0),
        (arrow(0 * end, 0.5 * end, end, 0.1), np.pi * 0.01 * 1.5 + np.pi * 0.26**2 * 1.5 / 3),
        (tube(np.array([0 * end, end, end]), 0.1), np.pi * (0.01 * 3 + 2 * 4 / 3 * 0.001)),
    ):
        assert volume(mesh.vertices, mesh.faces) == pytest.approx(exact, rel=0.06)
    np.testing.assert_allclose(inflated(box((1, 2, 3)), 0.1).bounds, [[-0.6, -1.1, -1.6], [0.6, 1.1, 1.6]])
    # The faces of a box share no vertices, so shading does not round its edges.
    assert len(box((1, 2, 3)).vertices) == 24


def test_shapes_of_urdf():
    base, arm, ball, pill = load_visuals(URDF)
    assert [x.frame for x in (base, arm, ball, pill)] == ["base", "arm", "tool", "tool"]
    np.testing.assert_allclose(np.ptp(base.vertices, axis=0), [1, 2, 3])
    # The cylinder lies along y and is raised.
    np.testing.assert_allclose(np.ptp(arm.vertices, axis=0), [1, 4, 1], atol=1e-12)
    np.testing.assert_allclose(arm.vertices.min(axis=0), [-0.5, -2, 0.5], atol=1e-12)
    np.testing.assert_allclose(np.ptp(pill.vertices, axis=0), [1, 1, 2], atol=1e-12)
    np.testing.assert_allclose(base.color, [1, 0, 0, 0.5])
    # A link uses the color that another link defines, by its name.
    np.testing.assert_allclose([arm.color, ball.color], [[0, 0.5, 0, 1]] * 2)
    assert pill.color[3] == 1


def test_links_behind_fixed_joints_are_where_they_belong():
    q = np.array([0.7])
    drawing = drawing_of(URDF, None, (), False, {})
    model = drawing.model
    assert drawing.shown == (MESHES,)
    meshes = [x for x in drawing.surfaces if x.layer == MESHES]
    # The root is fixed to the world, and the tool is fixed to the arm.
    assert [x.body for x in meshes] == [-1, 0, 0, 0]
    ball = meshes[2].in_world(body_poses(model, q)).vertices
    np.testing.assert_allclose(ball.mean(axis=0), jaxdyn.frame_pose(model, q, "tool").translation, atol=1e-6)
    low, high = drawing.bounds(body_poses(model, q))
    assert (low <= ball.min(axis=0)).all()
    assert (high >= ball.max(axis=0)).all()


def test_meshes_in_packages(tmp_path):
    package = tmp_path / "my_robot"
    (package / "meshes").mkdir(parents=True)
    (package / "urdf").mkdir()
    (package / "meshes" / "corner.stl").write_text(STL)
    names = ("package://my_robot/meshes/corner.stl", "../meshes/corner.stl", f"file://{package}/meshes/corner.stl")
    visuals = "".join(map(visual_of, names)) + visual_of(names[0], "-2 1 1")
    path = package / "urdf" / "robot.urdf"
    path.write_text(MESH.format(inertial=INERTIAL, visuals=visuals))
    drawn = load_visuals(path)
    assert [volume(x.vertices, x.faces) for x in drawn] == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 3])
    # Faces at sharp edges have separate vertices, so shading does not smooth the edges.
    assert len(drawn[0].vertices) == 12
    elsewhere = tmp_path / "robot.urdf"
    elsewhere.write_text(MESH.format(inertial=INERTIAL, visuals=visual_of(names[0])))
    assert len(load_visuals(elsewhere, package_dirs=[tmp_path])) == 1
    text = elsewhere.read_text()
    with pytest.raises(RobotFileError, match=r"package_dirs"):
        load_visuals(text)
    assert len(load_visuals(text, package_dirs=tmp_path)) == 1


def test_missing_meshes_are_all_named(tmp_path):
    path = tmp_path / "robot.urdf"
    urls = ("gone.stl", "package://gone/a.dae", "http://example.org/a.stl")
    path.write_text(MESH.format(inertial=INERTIAL, visuals="".join(map(visual_of, urls))))
    with pytest.raises(RobotFileError) as caught:
        load_visuals(path)
    for url in urls:
        assert re.search(rf"{url}' \(line \d, link 'a'\)", str(caught.value))
    assert "skip_missing" in str(caught.value)
    with pytest.warns(RobotFileWarning, match=r"gone\.stl.*shown without"):
        assert load_visuals(path, skip_missing=True) == []
    (tmp_path / "gone.stl").write_text("solid")
    with pytest.raises(RobotFileError, match=r"gone\.stl"):
        load_visuals(path, skip_missing=True)
    with pytest.raises(RobotFileError, match="known: mesh, box"):
        load_visuals('<robot name="a"><link name="a"><visual><geometry><blob/></geometry></visual></link></robot>')


def test_collada_has_colors():
    finger = robot_path("panda").parent.parent / "meshes" / "visual" / "finger.dae"
    visuals = load_visuals(MESH.format(inertial=INERTIAL, visuals=visual_of(f"file://{finger}")))
    colors = {tuple(np.round(x.color, 2)) for x in visuals}
    assert len(colors) > 1
    points = np.concatenate([x.vertices for x in visuals])
    # The real finger measures about 2 by 2.6 by 5.4 cm.
    assert (np.abs(np.ptp(points, axis=0) - [0.021, 0.026, 0.054]) < 0.004).all(), np.ptp(points, axis=0)


@pytest.mark.parametrize(("module", "call"), [
    ("trimesh", lambda: load_visuals(MESH.format(inertial=INERTIAL, visuals=visual_of(__file__)))),
    ("collada", lambda: load_visuals(robot_path("panda"))),
    ("viser", lambda: jaxdyn.viz.Viewer(jaxdyn.samples.pendulum())),
    ("matplotlib.figure", lambda: plot_masses(jaxdyn.samples.pendulum(), {"a": [1.0]})),
])  # fmt: skip
def test_missing_extras_say_so(monkeypatch, module, call):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdyn\[viz\]'"):
        call()


MJCF = """<mujoco><asset><material name="m" rgba="0.1 0.2 0.3 1"/>
<mesh name="corner" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset><worldbody>
<geom name="floor" type="plane" size="0 0 1"/>
<body name="a" pos="0 0 1" euler="20 0 0"><joint name="hinge" axis="0 1 0" pos="0.1 0 0"/>
  <geom type="sphere" size="0.1" pos="0.3 0 0" material="m"/>
  <geom type="box" size="0.1 0.2 0.3" pos="0 0.4 0" euler="0 30 0"/>
  <geom type="capsule" size="0.1 0.5" pos="1 0 0" group="3"/>
  <geom type="box" size="1 1 1" rgba="1 1 1 0"/>
  <body name="b" pos="0 0 0.5"><joint name="ball" type="ball"/>
    <geom type="ellipsoid" size="0.1 0.2 0.3" pos="0 0 0.2"/><geom type="capsule" size="0.1 0.5" pos="0.2 0 0"/>
    <geom type="cylinder" size="0.1 0.5"/><geom type="mesh" mesh="corner" pos="1 2 3"/></body>
</body></worldbody></mujoco>"""


def test_geoms_of_mjcf_are_where_mujoco_has_them():
    compiled = mujoco.MjModel.from_xml_string(MJCF)
    data = mujoco.MjData(compiled)
    model = load_mjcf(compiled)
    q = np.array(model.random_configuration(jax.random.key(1)))
    data.qpos[:] = q
    mujoco.mj_kinematics(compiled, data)
    drawing = drawing_of(compiled, None, (), False, {})
    meshes = [x for x in drawing.surfaces if x.layer == MESHES]
    shown = [g for g in range(compiled.ngeom) if compiled.geom_group[g] < 3 and compiled.geom_rgba[g][3] > 0]
    assert len(meshes) == len(shown) == compiled.ngeom - 2
    poses = body_poses(model, q)
    for surface, g in zip(meshes, shown, strict=True):
        points = surface.in_world(poses).vertices
        local = (points - data.geom_xpos[g]) @ data.geom_xmat[g].reshape(3, 3)
        if compiled.geom_type[g] == mujoco.mjtGeom.mjGEOM_PLANE:
            continue
        # This is MuJoCo's bounding box of the geom in the geom's axes.
        center, half = compiled.geom_aabb[g][:3], compiled.geom_aabb[g][3:]
        np.testing.assert_allclose((local.max(axis=0) + local.min(axis=0)) / 2, center, atol=1e-6)
        np.testing.assert_allclose(np.ptp(local, axis=0) / 2, half, atol=1e-6)
        assert volume(points, surface.mesh.faces) > 0
    np.testing.assert_allclose(meshes[1].color, [0.1, 0.2, 0.3, 1])


def test_ellipsoids_have_the_inertia_of_their_bodies():
    axes, m = np.array([0.1, 0.2, 0.4]), 3.0
    turned, place = jaxdyn.SE3.from_rpy(np.array([0.3, -0.5, 0.8])), np.array([0.1, 0.0, 0.2])
    R = np.asarray(turned.rotation)
    moments = m / 5 * (axes @ axes - axes**2)
    builder = ModelBuilder()
    builder.add_body("a", "world", Joint("revolute"), inertia=BodyInertia(m, place, (R * moments) @ R.T))
    builder.add_body("b", "a", Joint("revolute"), (0, 0, 1.0), inertia=BodyInertia(m, place, (0.01, 0.02, 0.9)))
    with pytest.warns(jaxdyn.PhysicalityWarning):
        model = builder.build()
    ellipsoids = [x for x in drawing_of(model, None, (), False, {}).surfaces if x.layer == ELLIPSOIDS]
    local = (ellipsoids[0].mesh.vertices - place) @ R
    np.testing.assert_allclose(np.abs(local).max(axis=0), axes, rtol=1e-6)
    np.testing.assert_allclose((local**2 / axes**2).sum(axis=1), 1.0, rtol=1e-6)
    assert volume(ellipsoids[0].mesh.vertices, ellipsoids[0].mesh.faces) > 0
    # No distribution of mass has the second inertia, so its ellipsoid has another color.
    assert not np.array_equal(ellipsoids[0].color, ellipsoids[1].color)


@pytest.mark.slow
def test_axes_are_those_about_which_joints_turn():
    kinds = ("revolute", "prismatic", "helical", "cylindrical", "universal", "planar", "ball", "free", "continuous")
    builder = ModelBuilder()
    rng = np.random.default_rng(3)
    for i, kind in enumerate(kinds):
        options = {} if kind in ("ball", "free") else {"axis": rng.normal(size=3)}
        options |= {"axis2": (0, 0, 1)} if kind == "universal" else {}
        options |= {"pitch": 0.1} if kind == "helical" else {}
        builder.add_body(
            f"b{i}",
            f"b{i - 1}" if i else "world",
            Joint(kind, **options),
            jaxdyn.SE3.from_rpy(jnp.asarray(rng.normal(size=3)), rng.normal(size=3)),
            inertia=BodyInertia(1.0, (0.1, 0, 0), (0.01, 0.01, 0.01)),
        )
    model = builder.build()
    q = np.array(model.random_configuration(jax.random.key(0)))
    drawing = drawing_of(model, None, (), False, {})
    assert set(drawing.shown) == {ELLIPSOIDS, SKELETON, FRAMES, AXES}
    poses = body_poses(model, q)
    arrows = []
    for x in (x for x in drawing.surfaces if x.layer == AXES):
        points = x.in_world(poses).vertices
        # An arrow points along the direction in which its vertices spread most.
        arrows.append(np.linalg.svd(points - points.mean(axis=0))[2][0])
    # The Jacobian of the chain's last body has the motions of all joints as columns.
    J = np.asarray(jaxdyn.frame_jacobian(model, q, "b8"))
    with_axes = [joint for joint, kind in zip(model.joint_names, kinds, strict=True) if kind not in ("ball", "free")]
    columns = [c for joint in with_axes for c in J[:, model.v_index(joint)].T]
    expected = [c[3:] if np.linalg.norm(c[3:]) > 1e-9 else c[:3] for c in columns]
    assert len(arrows) == len(expected) == 11
    for direction, axis in zip(arrows, expected, strict=True):
        assert abs(direction @ axis) / np.linalg.norm(axis) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_loops_have_balls_at_their_ends_and_a_line_where_they_are_apart(tmp_path):
    model = four_bar().with_loop("stay", "distance", "world", "coupler", (0.2, 0, 0.5), (0.5, 0, 0), length=0.8)
    drawing = drawing_of(model, None, (), False, {})
    assert LOOPS in drawing.shown
    assert LOOPS not in drawing_of(model.without_loops(), None, (), False, {}).layers
    balls = [x for x in drawing.surfaces if x.layer == LOOPS]
    names = ["pin in body coupler", "pin in body rocker", "stay in world", "stay in body coupler"]
    assert [x.name for x in balls] == [f"loop {name}" for name in names]
    for q, drawn in ((close_four_bar(0.5), ["loop stay"]), (np.array([0.6, -1.0, -1.2]), ["loop pin", "loop stay"])):
        poses = body_poses(model, q)
        middles = np.array([x.in_world(poses).vertices.mean(axis=0) for x in balls])
        tips = [transform_points(poses[body], np.array(tip)) for body, tip in ((1, (1.0, 0, 0)), (2, (0.7, 0, 0)))]
        np.testing.assert_allclose(middles[:2], tips, atol=1e-9)
        lines = drawing.lines(poses)
        assert [x.name for x in lines] == drawn
        for line in lines:
            start, end = middles[:2] if line.name == "loop pin" else middles[2:]
            points, along = line.mesh.vertices, end - start
            part = (points - start) @ along / (along @ along)
            np.testing.assert_allclose([part.min(), part.max()], [0, 1], atol=1e-9)
            beside = np.linalg.norm(points - start - part[:, None] * along, axis=1)
            assert beside.max() == pytest.approx(0.025 * drawing.unit)
            assert volume(points, line.mesh.faces) > 0

    def cyan(name: str, q: np.ndarray) -> int:
        save_png(tmp_path / name, model.without_loops(["stay"]), q, width=160, height=120, show=["skeleton", "loops"])
        r, g, b = np.moveaxis(np.asarray(Image.open(tmp_path / name), np.float64), -1, 0)
        return int(((g > r + 60) & (b > r + 60)).sum())

    assert 0 < cyan("closed.png", close_four_bar(0.5)) + 30 < cyan("open.png", np.array([0.6, -1.0, -1.2]))


def test_what_a_picture_can_not_be_of():
    model = jaxdyn.samples.pendulum()
    piece = Visual("elsewhere", np.zeros((3, 3)), np.array([[0, 1, 2]]), np.ones(4))
    with pytest.raises(UnknownNameError, match="elsewhere"):
        drawing_of(model, [piece], (), False, {})
    with pytest.raises(ModelError, match="batch axes"):
        drawing_of(jax.tree.map(lambda x: x[None], model), None, (), False, {})
    with pytest.raises(ModelError, match="free_base"):
        drawing_of(model, None, (), False, {"free_base": True})
    with pytest.raises(ModelError, match="show is"):
        save_png("none.png", model, show=["meshes"])
    with pytest.raises(ModelError, match="renderer"):
        save_png("none.png", model, renderer="pencil")
    with pytest.raises(ShapeError, match="nq = 1"):
        save_png("none.png", model, [0.0, 1.0])
    # A changed model is drawn with the meshes of the file.
    heavier = load_urdf(URDF).scaled(mass=2.0)
    assert drawing_of(heavier, URDF, (), False, {}).shown == (MESHES,)


BALL = """<mujoco><worldbody><geom type="plane" size="40 40 1"/><body pos="3 4 0.7"><freejoint/>
<geom size="0.2" rgba="1 0 0 1"/></body></worldbody></mujoco>"""


def test_pictures_show_what_moves_where_its_file_has_it(tmp_path):
    """A floor of 80 m does not hide the robot, which stands where the file places it, above the floor."""
    world = jaxdyn.load_world(BALL)
    for source, more in ((BALL, {}), (mujoco.MjModel.from_xml_string(BALL), {}), (world, {"visuals": BALL})):
        save_png(tmp_path / "ball.png", source, width=80, height=60, **more)
        picture = np.asarray(Image.open(tmp_path / "ball.png")).astype(int)
        red = picture[..., 0] > picture[..., 1:].max(axis=-1) + 60
        assert red.mean() > 0.05
        np.testing.assert_allclose(drawing_of(source, more.get("visuals"), (), False, {}).start[:3], [3, 4, 0.7])
    # Nothing that moves has shapes, but the robot is at its joints.
    low, high = drawing_of(BALL.replace('rgba="1 0 0 1"', 'group="4"'), None, (), False, {}).bounds(np.zeros((1, 7)))
    assert np.isfinite([low, high]).all()


def test_sliders_stop_at_limits():
    model = load_urdf(URDF)
    np.testing.assert_allclose(slider_ranges(model), [[-1.0], [2.0]])
    low, high = slider_ranges(jaxdyn.samples.cartpole())
    np.testing.assert_allclose([low, high], [[-2.4, -np.pi], [2.4, np.pi]])


def test_frames_of_a_page_keep_the_time():
    t = 5.0 + np.arange(101) / 100
    kept = frame_samples(t, 25.0)
    assert [k for _, k in kept] == list(range(4, 101, 4))
    assert sum(seconds for seconds, _ in kept) == pytest.approx(1.0)
    assert [k for _, k in frame_samples(t, 1000.0)] == list(range(1, 101))


def test_matplotlib_draws_the_robot(tmp_path):
    model = jaxdyn.samples.double_pendulum()
    images = []
    for k, arguments in enumerate(({"q": [0.3, 0.4]}, {"q": [1.2, 0.4]}, {"q": [0.3, 0.4], "compare": [1.2, 0.4]})):
        path = tmp_path / f"{k}.png"
        save_png(path, model, width=300, height=200, **arguments)
        images.append(np.asarray(Image.open(path).convert("RGB"), np.float64))
        assert images[-1].shape == (200, 300, 3)
        drawn = (images[-1].min(axis=2) < 190).mean()
        assert 0.01 < drawn < 0.6, drawn
    assert np.abs(images[0] - images[1]).mean() > 1

    def orange(image):
        return int(((image[..., 0] > image[..., 2] + 60) & (image[..., 0] > 150)).sum())

    assert orange(images[2]) > orange(images[0]) + 100


def test_plots_show_the_numbers():
    model = jaxdyn.samples.quadruped()
    t = np.linspace(0, 1, 11)
    rng = np.random.default_rng(0)
    q, v, tau = rng.normal(size=(11, model.nq)), rng.normal(size=(11, model.nv)), rng.normal(size=(10, model.nv))
    names = [model.joint_names[0], model.joint_names[3]]
    figure = plot_trajectory(model, t, q, v, tau, compare={"other": (2 * q,)}, joints=names, title="T")
    panels = [x for x in figure.axes if x.get_visible()]
    assert len(panels) == 8 + 7 + 7
    column = next(x for x in panels if x.get_title() == "coordinates")
    np.testing.assert_allclose(column.lines[0].get_ydata(), q[:, 0])
    np.testing.assert_allclose(column.lines[1].get_ydata(), 2 * q[:, 0])
    labels = [x.get_ylabel() for x in panels]
    assert f"{names[0]}[6]\n1" in labels
    assert f"{names[0]}[5]\nrad/s" in labels
    assert f"{names[1]}\nN m" in labels
    with pytest.raises(ShapeError, match="coordinates"):
        plot_trajectory(model, t, q[:, 1:])
    with pytest.raises(DataError, match="joint"):
        plot_trajectory(model, t, q, joints=[])
    measured = rng.normal(size=(11, model.nv))
    figure = plot_torques(model, t, measured, {"fit": 100 * measured}, raw=measured)
    assert len(figure.axes) == 2 * model.nv
    np.testing.assert_allclose(figure.axes[6].lines[2].get_ydata(), 100 * measured[:, 3])
    np.testing.assert_allclose(figure.axes[7].lines[1].get_ydata(), 99 * measured[:, 3])
    # A prediction that is far off does not shrink the scale of the measurement.
    assert np.ptp(figure.axes[6].get_ylim()) < 4 * np.ptp(measured[:, 3])
    shifted = measured + 0.5 * np.ptp(measured, axis=0)
    figure = plot_torques(model, t, measured, {"fit": shifted})
    assert all(
        low < x.min() and x.max() < high
        for (low, high), x in zip([panel.get_ylim() for panel in figure.axes[::2]], shifted.T, strict=True)
    )
    with pytest.raises(ShapeError, match="fit"):
        plot_torques(model, t, measured, {"fit": measured[1:]})
    masses = np.asarray(model.mass)
    figure = plot_masses(model, {"a": masses, "b": 2 * masses}, {"b": (masses, 3 * masses)})
    points = [line.get_ydata() for bars in figure.axes[0].containers for line in bars.lines[:1]]
    np.testing.assert_allclose(np.concatenate(points), [*masses, *(2 * masses)])
    assert figure.axes[0].get_yscale() == "log"
