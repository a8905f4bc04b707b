"""Pictures of worlds: geoms, tendons and mocap bodies are where MuJoCo has them, as the world is now."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import jaxdyn
from jaxdyn import DataError, ModelError, ShapeError, load_world, save_world
from jaxdyn.viz import Viewer, plot_trajectory, save_png, save_video
from jaxdyn.viz._drawing import COLLISIONS, MESHES, TENDONS
from jaxdyn.viz._sources import drawing_of
from tests.worlds.test_world_inputs import TEXT

mujoco = pytest.importorskip("mujoco")


@functools.cache
def compiled():
    return mujoco.MjModel.from_xml_string(TEXT.format(integrator="Euler"))


@functools.cache
def world():
    return load_world(compiled())


def drawing(shown):
    return drawing_of(shown, None, (), False, {})


def test_geoms_and_tendons_are_where_mujoco_has_them(tmp_path):
    m, q = compiled(), np.array(world().model.random_configuration(jax.random.key(3)))
    data = mujoco.MjData(m)
    data.qpos, data.mocap_pos, data.mocap_quat = q, [[0.1, 0.5, 0.2]], [[0.5, 0.2, -0.4, 0.3]]
    mujoco.mj_kinematics(m, data)
    mujoco.mj_comPos(m, data)
    mujoco.mj_tendon(m, data)
    save_world(tmp_path / "world.npz", world())
    for shown in (world(), load_world(tmp_path / "world.npz")):
        drawn = drawing(shown)
        poses = drawn.poses(q, np.concatenate([data.mocap_pos, 2 * data.mocap_quat], axis=1))
        meshes = [x for x in drawn.surfaces if x.layer == MESHES]
        assert len(meshes) == m.ngeom
        for g, surface in enumerate(meshes):
            points = (surface.in_world(poses).vertices - data.geom_xpos[g]) @ data.geom_xmat[g].reshape(3, 3)
            if m.geom_type[g] != mujoco.mjtGeom.mjGEOM_PLANE:
                np.testing.assert_allclose(np.ptp(points, axis=0) / 2, m.geom_aabb[g][3:], atol=1e-6)
                np.testing.assert_allclose(points.max(axis=0), m.geom_aabb[g][3:], atol=1e-6)
        (rope,) = drawn.lines(poses)
        ends = data.site_xpos[[m.site(x).id for x in ("grip", "tip")]]
        radius = 0.02 * drawn.unit
        np.testing.assert_allclose(np.ptp(rope.mesh.vertices, axis=0), np.ptp(ends, axis=0), atol=2 * radius)
        np.testing.assert_allclose(np.mean(rope.mesh.bounds, axis=0), ends.mean(axis=0), atol=2 * radius)
        assert rope.layer == TENDONS
        assert drawn.ground(*drawn.bounds(poses))[0] == 0


def test_pictures_show_the_numbers_that_the_world_has_now():
    sizes = world().parts.constraints.contacts.sizes
    larger = eqx.tree_at(lambda x: x.parts.constraints.contacts.sizes, world(), 2 * sizes)
    for layer, shown in ((MESHES, None), (COLLISIONS, [COLLISIONS])):
        before, after = (
            [x for x in drawing(x).with_layers(shown).surfaces if x.layer == layer and x.body >= 0]
            for x in (world(), larger)
        )
        assert len(before) > 3
        for one, two in zip(before, after, strict=True):
            np.testing.assert_allclose(np.ptp(two.mesh.bounds, axis=0), 2 * np.ptp(one.mesh.bounds, axis=0), rtol=0.05)
    with pytest.raises(ModelError, match="batch axes"):
        drawing(jax.tree.map(lambda x: jnp.stack([x, x]), world()))


def test_worlds_that_only_look_different_run_the_same_programs():
    other = load_world(TEXT.format(integrator="Euler").replace('size=".06"', 'size=".06" rgba="1 0 0 1"'))
    assert jax.tree.structure(other) == jax.tree.structure(load_world(compiled()))
    assert not np.array_equal(other.appearance.colors, world().appearance.colors)


def test_colors_are_those_of_materials():
    world = load_world("""<mujoco><asset>
<texture name="t" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 1 0" width="4" height="4"/>
<material name="textured" texture="t" rgba=".5 1 1 .8"/><material name="plain" rgba="0 .2 1 1"/></asset><worldbody>
<body><joint/><geom size=".1" material="textured"/><geom size=".1" material="plain" rgba="1 1 1 1"/></body>
</worldbody></mujoco>""")
    np.testing.assert_allclose(world.appearance.colors, [[0.25, 0.5, 0, 0.8], [0, 0.2, 1, 1]], atol=0.003)


def test_height_fields_and_meshes_are_drawn():
    m = mujoco.MjModel.from_xml_string("""
<mujoco><asset><hfield name="h" nrow="2" ncol="3" size="2 1 .3 .1" elevation="0 1 0 0 .2 .4"/>
<mesh name="m" vertex="0 0 0 .2 0 0 0 .2 0 0 0 .2"/></asset><worldbody>
<geom type="hfield" hfield="h" conaffinity="0" contype="2"/>
<body><freejoint/><geom type="mesh" mesh="m" contype="4"/></body></worldbody></mujoco>""")
    for shown in (load_world(m), m):
        field, mesh = (x.mesh for x in drawing(shown).surfaces if x.layer == MESHES)
        np.testing.assert_allclose(field.bounds, [[-2, -1, 0], [2, 1, 0.3]])
        assert len(mesh.faces) == 4
        assert (field.face_normals[:, 2] > 0).all()


def test_a_viewer_shows_states_and_plays_trajectories(tmp_path):
    states = world().state(q=np.tile(world().start, (3, 1)), mocap=np.tile([0, 0, 1, 1, 0, 0, 0.0], (3, 1, 1)))
    states = eqx.tree_at(lambda x: x.time, states, jnp.array([0.0, 0.1, 0.2]))
    motion = jaxdyn.Trajectory(states.time, states.q, states.v, control=jnp.ones((2, 1)))
    with Viewer(world(), port=9740) as viewer:
        viewer.show(jax.tree.map(lambda x: x[0], states))
        hand = viewer._robot._bodies[-1]
        np.testing.assert_allclose(hand.position + [0.3, 0, 0.5], [0, 0, 1], atol=0.6)
        moved = np.array(hand.position)
        viewer.play(motion)
        viewer.pause(0.1)
        np.testing.assert_allclose(hand.position, 0, atol=1e-9)
        viewer.play(states, compare=motion)
        viewer.pause(0.1)
        np.testing.assert_allclose(hand.position, moved)
        viewer.save_png(tmp_path / "now.png", width=80, height=60)
        assert "tendon" in viewer._legend.content
        viewer.show_layer("tendons", False)
        with pytest.raises(DataError, match="both t and qs"):
            viewer.play(motion.t)
        with pytest.raises(ShapeError, match="qs has shape"):
            viewer.play(jax.tree.map(lambda x: x[None], motion))
    # Equal pictures of a film are one.
    motion = eqx.tree_at(lambda x: x.q, motion, motion.q.at[:, -1].add(motion.t))
    save_video(tmp_path / "motion.gif", world(), motion, width=80, height=60)
    assert Image.open(tmp_path / "motion.gif").n_frames == 3
    save_png(tmp_path / "two.png", world(), world().state(keyframe="moved"), compare=states.q[0], width=80, height=60)
    figure = plot_trajectory(world(), motion, compare={"again": motion})
    assert [x.get_title() for x in figure.axes if x.get_title()] == ["coordinates", "velocities", "controls"]
    with pytest.raises(DataError, match="no coordinates"):
        plot_trajectory(world(), motion.t)


URDF = """<robot name="r"><link name="base"/><link name="bob"><inertial><mass value="1"/>
<inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/></inertial>
<visual><geometry><box size=".1 .2 .3"/></geometry></visual>
<collision><geometry><sphere radius=".2"/></geometry></collision></link>
<joint name="j" type="prismatic"><parent link="base"/><child link="bob"/><origin xyz="0 0 1"/><axis xyz="0 0 1"/>
<limit lower="-2" upper="2" effort="9" velocity="9"/></joint></robot>"""


@pytest.mark.parametrize("law", [jaxdyn.ContactLaw(), jaxdyn.MujocoLaw()])
def test_worlds_of_urdf_files_and_models_show_what_they_have(tmp_path, law):
    path = tmp_path / "r.urdf"
    path.write_text(URDF)
    save_world(tmp_path / "r.npz", load_world(path, ground=True, law=law))
    world = load_world(tmp_path / "r.npz")
    drawn = drawing(world)
    box = next(x for x in drawn.surfaces if x.layer == MESHES and x.body == 0)
    np.testing.assert_allclose(np.ptp(box.mesh.bounds, axis=0), [0.1, 0.2, 0.3])
    assert drawn.ground(*drawn.bounds(drawn.poses(world.start)))[0] == 0
    state = world.state(v=np.array([0.1]))
    original = load_world(path, ground=True, law=law)
    np.testing.assert_array_equal(world.step(state).q, original.step(state).q)
    path.unlink()
    with pytest.warns(jaxdyn.RobotFileWarning, match="without the meshes of .*r.urdf, which is not there"):
        drawing(world)
    ball = jaxdyn.ContactShape("bob", jaxdyn.Sphere(0.2))
    layers = {x.layer for x in drawing(jaxdyn.World(original.model, [ball], law=law)).surfaces}
    assert layers & {MESHES, "contacts"}
