"""MJCF files of worlds whose numbers have changed: MuJoCo simulates them as the worlds move."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import LeftOutWarning, ModelError, RobotFileError, load_world, to_mjcf
from jaxdyn.sysid import Positive
from tests.worlds.world_oracle import MIXED, path_of, solved_to_the_end

mujoco = pytest.importorskip("mujoco", minversion="4")
pytestmark = pytest.mark.filterwarnings("ignore::jaxdyn.RobotFileWarning")


def scaled(world, seed: int = 0):
    """A world with other numbers in what MJCF can say of it without another value of what MuJoCo derives."""
    rng = np.random.default_rng(seed)
    constraints, actuators, passive = world.parts.constraints, world.parts.actuators, world.parts.passive
    of_pairs = [x for pairs in constraints.contacts.pairs for x in (pairs.friction, pairs.solimp)]
    arrays = [world.model.gravity, world.timestep, constraints.limits.range, constraints.losses.loss]
    arrays += [*of_pairs, constraints.contacts.impratio, actuators.gear, actuators.gain, actuators.bias]
    arrays += [passive.stiffness, passive.tendon_damping, world.keys.v]
    # One factor for each row: some numbers of a row, such as the friction along two tangents, are one in MJCF.
    factors = [rng.uniform(0.9, 1.1, (*x.shape[:-1], 1)[-x.ndim :] if x.ndim else ()) for x in arrays]
    new = {id(x): x * jnp.asarray(factor) for x, factor in zip(arrays, factors, strict=True)}
    return jax.tree.map(lambda x: new.get(id(x), x), world)


@pytest.mark.parametrize("name", [pytest.param("ant", marks=pytest.mark.slow), "half_cheetah"])
def test_mujoco_simulates_the_written_world(name):
    path = path_of("gymnasium", name)
    world = scaled(load_world(path))
    joints = jnp.arange(world.model.nv) >= (6 if name == "ant" else 3)
    world = eqx.tree_at(
        lambda x: x.parts.passive.damping, world, world.parts.passive.damping.at[:, 0].multiply(1 + 0.3 * joints)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOutWarning)
        text = to_mjcf(world, template=path)
    m = solved_to_the_end(mujoco.MjModel.from_xml_string(text))
    assert m.opt.timestep == float(world.timestep)
    assert m.npair == sum(len(x.first) for x in world.parts.constraints.contacts.pairs)
    data = mujoco.MjData(m)
    rng = np.random.default_rng(3)
    data.qvel[:] = 0.3 * rng.normal(size=m.nv)
    if name == "ant":
        data.qpos[2] = 0.5
    state = world.state(data.qpos, world.from_qvel(data.qpos, data.qvel))
    controls, steps = rng.uniform(-1, 1, (100, m.nu)), 100
    motion = world.rollout(state, controls)
    touching = 0
    for k in range(steps):
        data.ctrl[:] = controls[k]
        mujoco.mj_step(m, data)
        touching += data.ncon > 0
    assert touching > 10
    np.testing.assert_allclose(motion.final.q, data.qpos, atol=1e-6)


def test_everything_that_is_written_is_read_again():
    text = MIXED.format(cone="elliptic", integrator="implicitfast")
    world = scaled(load_world(text))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOutWarning)
        again = load_world(to_mjcf(world, template=text))
    old = load_world(text)
    for name in ("gear", "gain", "bias"):
        new = getattr(world.parts.actuators, name)
        assert not np.array_equal(new, getattr(old.parts.actuators, name))
        np.testing.assert_allclose(getattr(again.parts.actuators, name), new, rtol=1e-14)
    for one, two in ((world.parts.passive, again.parts.passive), (world.keys, again.keys)):
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_inertia_along_tendons_and_geoms_that_they_wrap_around_are_written():
    text = """<mujoco><worldbody><site name="w" pos=".1 0 1"/><body pos=".2 0 0" euler="10 20 30"><joint name="h"/>
    <inertial pos="0 0 0" mass="1" diaginertia=".1 .1 .1"/>
    <geom name="g" size=".1 .2" type="cylinder" euler="40 50 60"/><site name="s" pos="0 0 -.3"/></body></worldbody>
    <tendon><spatial name="a" springlength="0"><site site="w"/><geom geom="g"/><site site="s"/></spatial>
    <spatial name="b" armature="2" springlength="0"><site site="w"/><site site="s"/></spatial></tendon></mujoco>"""
    world = load_world(text)
    tendons = world.parts.tendons
    changed = 1.1 * tendons.armature, 0.9 * tendons.radius, tendons.geoms.placement.at[:, :3].add(0.01)
    changed = eqx.tree_at(lambda x: (x.armature, x.radius, x.geoms.placement), tendons, changed)
    world = eqx.tree_at(lambda x: x.parts.tendons, world, changed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOutWarning)
        again = load_world(to_mjcf(world, template=text)).parts.tendons
    np.testing.assert_allclose(again.armature, [0, 2.2], rtol=1e-14)
    np.testing.assert_allclose(again.radius, [0.09], rtol=1e-14)
    np.testing.assert_allclose(again.geoms.placement[:, :3], changed.geoms.placement[:, :3], atol=1e-14)
    Positive("armature", tendons=["b"]).bind(world)
    with pytest.raises(ModelError, match="no armature of tendon a"):
        Positive("armature", tendons=["a"]).bind(world)


def test_inertias_are_written_and_what_follows_from_them_is_named():
    path = path_of("gymnasium", "half_cheetah")
    world = load_world(path)
    model = world.model.with_link_parameters("bthigh", 1.7 * world.model.link_parameters("bthigh"))
    changed = eqx.tree_at(lambda x: x.model, world, model)
    with pytest.warns(LeftOutWarning, match=r"contact of geoms: weight \(\d+, by .*load_world\(text\)"):
        text = to_mjcf(changed, template=path)
    again = load_world(text)
    np.testing.assert_allclose(again.model.inertial_parameters, model.inertial_parameters, rtol=1e-9, atol=1e-12)
    assert mujoco.MjModel.from_xml_string(text).body("bthigh").mass[0] == pytest.approx(float(model.mass[3]), abs=1e-12)


def test_constants_that_have_followed_the_inertias_are_those_of_the_compiler():
    path = path_of("gymnasium", "half_cheetah")
    world = load_world(path)
    model = world.model.with_link_parameters("bthigh", 1.7 * world.model.link_parameters("bthigh"))
    changed = world.with_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftOutWarning)
        again = load_world(to_mjcf(changed, template=path))
    for pairs, new, old in zip(*(x.parts.constraints.contacts.pairs for x in (world, changed, again)), strict=True):
        assert not np.array_equal(pairs.weight, new.weight)
        np.testing.assert_allclose(new.weight, old.weight, rtol=1e-9)


def test_files_of_meshes_keep_their_places(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    (tmp_path / "meshes").mkdir()
    trimesh.creation.box((0.1, 0.2, 0.3)).export(tmp_path / "meshes" / "box.stl")
    path = tmp_path / "scene.xml"
    path.write_text("""<mujoco><compiler meshdir="meshes"/><asset><mesh name="box" file="box.stl"/></asset>
<worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 1"><joint name="h" axis="0 1 0" damping=".1"/>
<geom type="mesh" mesh="box"/></body></worldbody></mujoco>""")
    world = load_world(path)
    damped = eqx.tree_at(lambda x: x.parts.passive.damping, world, 0.123456789012345 * jnp.eye(1, 3))
    (tmp_path / "damped.xml").write_text(to_mjcf(damped, template=path))
    np.testing.assert_array_equal(
        load_world(tmp_path / "damped.xml").parts.passive.damping, [[0.123456789012345, 0, 0]]
    )


def test_what_cannot_be_written_is_named():
    text = MIXED.format(cone="pyramidal", integrator="Euler")
    world = load_world(text)
    moved = eqx.tree_at(lambda x: x.model.joint_placement, world, world.model.joint_placement + 0.1)
    limited = eqx.tree_at(lambda x: x.parts.actuators.force_range, world, 0 * world.parts.actuators.force_range)
    uneven = eqx.tree_at(lambda x: x.model.armature, world, world.model.armature.at[8].add(1.0))
    for wrong, template, message in (
        (world, None, "give its MJCF file as `template`"),
        (moved, text, "cannot write what has changed in 'model.joint_placement'"),
        (limited, text, "does not limit"),
        (uneven, text, "MuJoCo cannot write .*armature"),
        (world, text.replace("<motor", "<velocity"), "other parts than the world"),
        (jax.tree.map(lambda x: jnp.stack([x, x]), world), text, "batch axes"),
        (world.model, text, "`template` is for worlds"),
    ):
        with pytest.raises(ModelError, match=message):
            to_mjcf(wrong, template=template)
    with pytest.raises(RobotFileError, match="cannot read the template"):
        to_mjcf(world, template="nowhere.xml")
    with pytest.raises(ModelError, match="nothing else"):
        to_mjcf(world, template=text, limits=False)
