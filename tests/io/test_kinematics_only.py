"""Robots without inertias load for their kinematics; their dynamics refuse by name until the inertias are given."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, Model, ModelBuilder, ModelError, RobotFileError, sysid, trajopt
from jaxdyn.cli import main
from jaxdyn.io import RobotFileWarning, load_mjcf, load_urdf, to_mjcf, to_urdf
from jaxdyn.viz import load_visuals
from tests.robots import robot_path
from tests.same_model import assert_same
from tests.urdf_texts import INERTIAL, arm, joint, link, robot

BALL = BodyInertia.sphere(1.0, 0.1)
PATH = robot_path("ur5")


@pytest.fixture(scope="module")
def whole() -> Model:
    return load_urdf(PATH)


@pytest.fixture(scope="module")
def bare() -> Model:
    return load_urdf(re.sub(r"<inertial>.*?</inertial>", "", PATH.read_text(), flags=re.DOTALL), kinematics_only=True)


def test_the_error_offers_it():
    with pytest.raises(ModelError, match=r"body 'hand', moved by joint 'wrist', has no mass.*kinematics_only=True"):
        load_urdf(arm(child_inside=""))
    assert load_urdf(arm(child_inside=""), kinematics_only=True).topology.missing_inertias == ("hand",)
    with pytest.raises(ModelError, match="kinematics_only=True"):
        ModelBuilder().add_body("a").build()
    # It is not offered to those who give it.
    with pytest.raises(ModelError, match="no inertia against the motion") as error:
        ModelBuilder().add_body("a", inertia=BodyInertia(1.0)).build(kinematics_only=True)
    assert "kinematics_only" not in str(error.value)
    with pytest.raises(ModelError, match="kinematics_only=True"):
        jaxdyn.from_dh([[1, 0, 0, 0]], convention="standard")
    assert jaxdyn.from_dh([[1, 0, 0, 0]], convention="standard", kinematics_only=True).topology.missing_inertias


@pytest.mark.slow
def test_kinematics_are_those_of_the_whole_robot(whole, bare):
    q, v, a = (whole.random_configuration(jax.random.key(k)) for k in range(3))
    for function, arguments in (
        (jaxdyn.frame_pose, (q, "tool0")),
        (jaxdyn.frame_jacobian, (q, "tool0")),
        (jaxdyn.frame_acceleration, (q, v, a, "tool0")),
        (jaxdyn.torque_regressor, (q, v, a)),
    ):
        jax.tree.map(np.testing.assert_array_equal, function(bare, *arguments), function(whole, *arguments))
    np.testing.assert_array_equal(bare.integrate(q, v), whole.integrate(q, v))
    pose = jaxdyn.frame_pose(whole, q, "tool0")
    found = jaxdyn.inverse_kinematics(bare, jaxdyn.FrameTarget("tool0", pose.translation, pose.rotation), q + 0.1)
    assert found.status == jaxdyn.Status.CONVERGED


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("rnea", lambda m, q: jaxdyn.rnea(m, q, q, q)),
        ("aba", lambda m, q: jaxdyn.aba(m, q, q, q)),
        ("crba", lambda m, q: jaxdyn.crba(m, q)),
        ("aba", lambda m, q: jax.jit(jax.grad(lambda x: jaxdyn.aba(m, x, q, q).sum()))(q)),
        ("kinetic_energy", lambda m, q: jaxdyn.mechanical_energy(m, q, q)),
        ("generalized_gravity", lambda m, q: jaxdyn.generalized_gravity(m, q)),
        ("center_of_mass", lambda m, q: jaxdyn.center_of_mass(m, q)),
        ("centroidal_momentum", lambda m, q: jaxdyn.centroidal_momentum(m, q, q)),
        ("aba", lambda m, q: jaxdyn.rollout(m, jaxdyn.State(q, q), jnp.zeros((3, m.nv)), 0.01)),
        ("aba", lambda m, q: trajopt.ModelDynamics(m, 0.01).step(jnp.concatenate([q, q]), q, 0)),
        ("aba", lambda m, q: jax.vmap(lambda x: jaxdyn.aba(m, x, x, x))(jnp.stack([q, q]))),
        ("aba", lambda m, q: jax.eval_shape(lambda x: jaxdyn.aba(m, x, x, x), q)),
    ],
)
def test_dynamics_refuse_by_name(bare, name, call):
    with pytest.raises(ModelError) as error:
        call(bare, jnp.zeros(bare.nv))
    for fragment in (f"{name} needs inertias", "kinematics_only=True", "'shoulder_link'", "with_link_parameters"):
        assert fragment in str(error.value)


def test_fits_ask_for_a_guess(bare):
    t = np.linspace(0, 1, 50)
    columns = np.outer(np.sin(t), np.ones(bare.nv))
    recording = sysid.Recording(t=t, q=columns, v=columns, a=columns, tau=columns)
    with pytest.raises(ModelError, match=r"an identification needs inertias.*Give a guess of each by"):
        sysid.fit_inverse_dynamics(bare, recording)


def test_a_model_whose_inertias_are_given_is_whole(whole, bare):
    model = bare
    for name in bare.topology.missing_inertias:
        with pytest.raises(ModelError, match=rf"none of .*'{name}'"):
            jaxdyn.crba(model, jnp.zeros(model.nv))
        model = model.with_link_parameters(name, whole.link_parameters(name))
    assert not model.topology.missing_inertias
    q = whole.random_configuration(jax.random.key(0))
    np.testing.assert_allclose(jaxdyn.crba(model, q), jaxdyn.crba(whole, q), rtol=1e-12, atol=1e-12)


def test_inertias_may_be_given_while_tracing():
    bare = load_urdf(arm(child_inside=""), kinematics_only=True)

    @jax.grad
    def slope(mass):
        model = bare.with_link_parameters("hand", mass * BALL.parameters())
        return jaxdyn.crba(model, jnp.zeros(1))[0, 0]

    np.testing.assert_allclose(slope(2.0), BALL.parameters()[4])


def test_a_whole_robot_stays_whole(whole):
    assert load_urdf(PATH, kinematics_only=True).topology == whole.topology


def test_the_rule_for_some_links_without_inertia_stays():
    """A massless body between others is no error, and a massless link at the end is one."""
    joints = joint("j", "a", "b"), joint("k", "b", "c", '<origin xyz="1 0 0"/>')
    between = robot(link("a"), link("b", ""), link("c"), *joints)
    assert not load_urdf(between).topology.missing_inertias
    end = robot(link("a"), link("b"), link("c", ""), *joints)
    with pytest.raises(ModelError, match="body 'c'"):
        load_urdf(end)
    model = load_urdf(end, kinematics_only=True)
    assert model.topology.missing_inertias == ("c",)
    # A link fixed to it may have the inertia.
    tool = robot(link("a"), link("b"), link("c", ""), link("t"), *joints, joint("f", "c", "t", kind="fixed"))
    assert not load_urdf(tool, kinematics_only=True).topology.missing_inertias


def test_edits_keep_what_is_missing(whole, bare):
    missing = bare.topology.missing_inertias
    assert bare.with_payload("tool0", BALL).topology.missing_inertias == missing
    assert bare.with_armature(0.1).topology.missing_inertias == missing
    assert bare.scaled(mass=2.0).topology.missing_inertias == missing
    assert bare.astype(jnp.float32).topology.missing_inertias == missing
    pair = whole.with_attached(bare, "tool0", prefix="second_")
    assert pair.topology.missing_inertias == tuple(f"second_{name}" for name in missing)
    assert bare.with_attached(whole, "tool0", prefix="second_").topology.missing_inertias == missing
    # The inertia of a link that is locked to the world has no effect; of one locked to another, it has.
    locked = bare.with_locked_joints({"shoulder_pan_joint": 0.0})
    assert locked.topology.missing_inertias == missing[1:]
    locked = bare.with_locked_joints({"wrist_3_joint": 0.0})
    assert locked.topology.missing_inertias == missing
    given = locked
    for name in missing:
        given = given.with_link_parameters(name, whole.link_parameters(name))
    assert not given.topology.missing_inertias
    q = jnp.linspace(-1, 1, given.nv)
    expected = jaxdyn.crba(whole.with_locked_joints({"wrist_3_joint": 0.0}), q)
    np.testing.assert_allclose(jaxdyn.crba(given, q), expected, rtol=1e-10, atol=1e-12)


def test_joints_that_mimic_and_batches():
    follower = joint("k", "b", "c", '<mimic joint="j" multiplier="2"/>')
    model = load_urdf(robot(link("a"), link("b"), link("c", ""), joint("j", "a", "b"), follower), kinematics_only=True)
    assert model.spanning_tree().topology.missing_inertias == ("c",)
    with pytest.raises(ModelError, match="crba needs inertias"):
        jaxdyn.crba(model, jnp.zeros(1))
    many = jax.tree.map(lambda x: jnp.stack([x, x]), model)
    assert jaxdyn.frame_pose(many, jnp.zeros((2, 1)), "c").translation.shape == (2, 3)
    with pytest.raises(ModelError, match="crba needs inertias"):
        jaxdyn.crba(many, jnp.zeros((2, 1)))
    # The structure is static, and part of what programs are compiled for.
    leaves, structure = jax.tree.flatten(model)
    assert jax.tree.unflatten(structure, leaves).topology.missing_inertias == ("c",)
    assert hash(model.topology) != hash(model.with_link_parameters("c", BALL).topology)


def test_the_summary_says_it(bare):
    text = bare.summary()
    assert "kinematics only, as these links have no inertia: shoulder_link" in text
    assert "has no mass" not in text
    assert "kinematics only" in repr(bare)


@pytest.mark.slow
def test_pictures(bare, tmp_path):
    text = re.sub(r"<inertial>.*?</inertial>", "", PATH.read_text(), flags=re.DOTALL)
    jaxdyn.viz.save_html(tmp_path / "model.html", bare)
    with pytest.warns(RobotFileWarning, match="files of meshes do not exist"):
        jaxdyn.viz.save_html(tmp_path / "file.html", text, skip_missing=True)
    assert all((tmp_path / f"{name}.html").stat().st_size > 1000 for name in ("model", "file"))


def test_writing(bare):
    text = to_urdf(bare)
    assert "<inertial>" not in text
    assert_same(load_urdf(text, kinematics_only=True), bare)
    with pytest.raises(ModelError, match="no mass"):
        to_mjcf(bare)
    assert INERTIAL not in text


def test_the_builder_counts_what_has_no_inertia():
    builder = ModelBuilder().add_body("a", joint=Joint("revolute"))
    builder.add_body("b", "a", Joint("revolute"), (1, 0, 0), BALL).add_body("c", "b", Joint("ball"), (1, 0, 0))
    assert builder.build(kinematics_only=True).topology.missing_inertias == ("a", "c")


# MJCF files

MASSLESS = """<mujoco><compiler angle="radian"/><worldbody>
  <body name="base" pos="0 0 1"><joint name="hip" axis="0 1 0"/><geom size="0.1"/>
    <body name="cross" pos="0.3 0 0"><joint name="x" axis="1 0 0"/><joint name="y" axis="0 1 0" pos="0.1 0 0"/>
      <body name="leg" pos="0 0 -0.5"><joint name="knee" axis="0 1 0"/>{leg}</body></body>
    <body name="bare" pos="0 0.3 0"><joint name="dial" axis="0 0 1" armature="0.1"/></body></body>
</worldbody></mujoco>"""
LEG = '<inertial pos="0 0 -0.2" mass="2" diaginertia="0.1 0.1 0.02"/>'


@pytest.mark.slow
def test_mjcf_files_with_massless_moving_bodies():
    text = MASSLESS.format(leg=LEG)
    with pytest.raises(RobotFileError, match=r"mass and inertia of moving bodies.*kinematics_only=True"):
        load_mjcf(text)
    model = load_mjcf(text, kinematics_only=True)
    assert model.topology.missing_inertias == ("cross:y", "bare")
    q = 0.3 * jnp.arange(1.0, 6.0)
    with pytest.raises(ModelError, match="'cross:y', 'bare'"):
        jaxdyn.crba(model, q)
    # The same file with inertias in these bodies has the same kinematics, and the same dynamics once they are given.
    small = LEG.replace("0.1 0.1 0.02", "0.1 0.1 0.1")
    whole = load_mjcf(
        text.replace('pos="0.1 0 0"/>', f'pos="0.1 0 0"/>{small}').replace(
            'armature="0.1"/>', f'armature="0.1"/>{small}'
        )
    )
    for frame in ("leg", "cross", "bare"):
        ours, theirs = (jaxdyn.frame_pose(m, q, frame).as_matrix() for m in (model, whole))
        np.testing.assert_allclose(ours, theirs, atol=1e-15)
    given = model.with_link_parameters("cross:y", whole.inertial_parameters[whole.topology.body("cross:y")])
    given = given.with_link_parameters("bare", whole.link_parameters("bare"))
    np.testing.assert_allclose(jaxdyn.crba(given, q), jaxdyn.crba(whole, q), atol=1e-14)
    known = model.with_link_parameters("cross:y", np.zeros(10)).with_link_parameters("bare", np.zeros(10))
    assert np.isfinite(jaxdyn.aba(known, q, 0 * q, q)).all()
    # What the compiler was given instead of zeros is gone, and what was small in the file is not touched.
    assert not np.asarray(model.inertial_parameters)[[model.topology.body(x) for x in ("cross:y", "bare")]].any()
    np.testing.assert_array_equal(model.link_parameters("leg"), whole.link_parameters("leg"))


@pytest.mark.slow
def test_mjcf_files_on_the_disk_with_includes(tmp_path, capsys):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "leg.xml").write_text(f"<mujocoinclude>{LEG}</mujocoinclude>")
    (tmp_path / "robot.xml").write_text(MASSLESS.format(leg='<include file="parts/leg.xml"/>'))
    model = load_mjcf(tmp_path / "robot.xml", kinematics_only=True)
    assert_same(model, load_mjcf(MASSLESS.format(leg=LEG), kinematics_only=True))
    assert main(["info", str(tmp_path / "robot.xml")]) == 0
    assert "kinematics only, as these links have no inertia: cross:y, bare" in capsys.readouterr().out
    assert load_visuals(tmp_path / "robot.xml")
    (tmp_path / "robot.txt").write_text((tmp_path / "robot.xml").read_text())
    with pytest.raises(RobotFileError, match=r"only if the file's name ends with \.xml"):
        load_mjcf(tmp_path / "robot.txt", kinematics_only=True)
    assert main(["view", str(tmp_path / "robot.xml"), "--png", str(tmp_path / "robot.png")]) == 0
    assert (tmp_path / "robot.png").exists()
    with pytest.raises(RobotFileError, match=r"robot\.xml"):
        load_mjcf(tmp_path / "robot.xml")
    (tmp_path / "robot.xml").write_text("<mujoco><worldbody><body><oops/></body></worldbody></mujoco>")
    with pytest.raises(RobotFileError, match="oops"):
        load_mjcf(tmp_path / "robot.xml", kinematics_only=True)
