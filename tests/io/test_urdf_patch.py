"""Models written into their own URDF files: numbers change, and everything else stays to the last byte."""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# (Pinocchio is a compiled module without type stubs.)

import dataclasses
import re
import warnings
import xml.etree.ElementTree as ET

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pinocchio as pin
import pytest

import jaxdyn
from jaxdyn import BodyInertia, JaxdynError, Model, ModelError, RobotFileError, patch_urdf
from jaxdyn.io import RobotFileWarning, load_urdf, to_urdf
from jaxdyn.model import LEAVES
from tests.robots import all_urdf_files, robot_path
from tests.same_model import assert_same
from tests.urdf_texts import INERTIAL, arm, inertial, joint, link, robot

FILES = all_urdf_files()
DEFAULT = ("panda", "ur5", "solo12", "talos_reduced")

# Unusual spelling everywhere: what a program that parses and writes XML again would lose.
HANDWRITTEN = """<?xml version='1.0' encoding="utf-8"?>
<!-- measured by Ada, see page 3: mass="7" -->
<robot name = 'r' xmlns:xacro="http://x">
\t<link name="base"/>
  <link
      name = "hand">  <inertial  ><mass   value='2.50'/>
      <origin rpy="0.1 0 0"   xyz=" 0 0.10  1e-1 "/>
      <inertia ixx="1.0" ixy="0" ixz="0" iyy="1.10" iyz="0" izz="1"  />  </inertial>
    <visual><geometry><mesh filename="package://x/hand.dae" scale="1 1 1"/></geometry></visual>
    <collision><geometry><box size="1 2 3"/></geometry></collision></link>
  <link name="&lt;tool&gt; &#228;"><inertial><mass value="0.5"/>
    <inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial></link>
  <joint name="wrist" type="revolute"> <!-- the only one -->
    <parent link="base"/><child link="hand"/>
    <origin xyz="0 0 1"/>
    <limit effort="5" velocity="2" lower="-1" upper="1"/></joint>
  <joint name="flange" type="fixed"><parent link="hand"/>
    <child link="&lt;tool&gt; &#228;"/><origin xyz="0 0 .5"/></joint>
  <transmission name="t"><type>transmission_interface/SimpleTransmission</type><joint name="wrist"/>
    <actuator name="m"><mechanicalReduction>10</mechanicalReduction><motorInertia> 0.001 </motorInertia></actuator>
  </transmission>
  <gazebo reference="hand"><mu1>0.2</mu1></gazebo>
</robot>
<!-- end -->
"""


def load(text, **options) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_urdf(text, **options)


def patched(text, model: Model, **options) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return patch_urdf(text, model, **options)


def changed(model: Model, seed: int, *, frames: bool = False) -> Model:
    """Return the model with all of its numbers changed that its URDF file has."""
    rng, topology = np.random.default_rng(seed), model.topology
    out = {}
    for name in LEAVES:
        value = getattr(model, name)
        if value is None or name in ("gravity", "joint_pitch", "attached_parameters"):
            continue
        x = np.array(value, np.float64)
        if name.endswith("placement"):
            poses = x + 0.1 * rng.normal(size=x.shape)
            poses[:, 3:] /= np.linalg.norm(poses[:, 3:], axis=1, keepdims=True)
            # A body's own frame, and the placement of the root, are not in the file.
            kept = [0] * (topology.joint_names[0] == "root_joint")
            if name == "frame_placement":
                kept = [k for k, body in enumerate(topology.frame_bodies) if k < topology.nb or body < 0]
            poses[kept] = x[kept]
            out[name] = poses if frames or name == "joint_placement" else x
        elif name == "joint_axis":
            axes = x + 0.1 * rng.normal(size=x.shape)
            planar = topology.rows("axis", [i for i, kind in enumerate(topology.joint_types) if kind == "planar"])
            axes[planar] = x[planar]
            out[name] = axes / np.linalg.norm(axes, axis=1, keepdims=True)
        elif name == "inertial_parameters":
            out[name] = x * (1 + 0.3 * rng.random((len(x), 1)))
        else:
            out[name] = x + (-1 if name == "position_lower" else 1) * 0.1 * rng.random(x.shape)
    return dataclasses.replace(model, **{name: jnp.asarray(x, model.dtype) for name, x in out.items()})


def numbers_removed(text: str) -> str:
    """Return the text without the numbers in attributes and between tags."""
    return re.sub(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", "#", text)


@pytest.mark.parametrize(
    "name", [x if x in DEFAULT else pytest.param(x, marks=pytest.mark.slow) for x in (*DEFAULT, *FILES)]
)
@pytest.mark.parametrize("free_base", [False, True])
def test_files_of_robots(name, free_base):
    path = robot_path(name) if name in DEFAULT else FILES[name]
    try:
        model = load(path, free_base=free_base, strict=False)
    except JaxdynError:
        return
    assert patched(path, model, strict=False).encode() == path.read_bytes()
    other = changed(model, 0)
    text = patched(path, other, strict=False)
    assert text.encode() != path.read_bytes()
    assert_same(load(text, free_base=free_base, strict=False), other)
    # What is not about the motion is the same.
    for tag in ("visual", "collision", "transmission", "gazebo"):
        contents = [re.findall(rf"<{tag}\b.*?</{tag}>", x, re.DOTALL) for x in (path.read_bytes().decode(), text)]
        assert contents[0] == contents[1]


def test_only_numbers_change_in_a_text_of_any_spelling():
    model = load(HANDWRITTEN)
    assert patch_urdf(HANDWRITTEN, model) == HANDWRITTEN
    other = changed(model, 1)
    text = patched(HANDWRITTEN, other)
    # The joint has no <axis> and no <dynamics>, and <origin> no rpy; the transition velocity has no place.
    added = r'(?<=xyz="# # #") rpy="# # #"|\s*<axis xyz="# # #"/>|\s*<dynamics [^>]*/>|\s*<jaxdyn:joint [^>]*/>'
    assert re.sub(added, "", numbers_removed(text)) == numbers_removed(HANDWRITTEN)
    assert_same(load(text), other)


def test_numbers_that_stay_keep_their_spelling():
    model = load(HANDWRITTEN)
    heavier = model.with_link_parameters("hand", 2 * model.link_parameters("hand"))
    text = patch_urdf(HANDWRITTEN, heavier)
    expected = HANDWRITTEN.replace("value='2.50'", "value='5.0'")
    expected = expected.replace('ixx="1.0"', 'ixx="2.0"').replace('iyy="1.10"', 'iyy="2.2"', 1)
    expected = expected.replace('izz="1"  />', 'izz="2.0"  />')
    assert text == expected
    lower = dataclasses.replace(model, joint_placement=model.joint_placement.at[0, 2].set(0.75))
    assert patch_urdf(HANDWRITTEN, lower) == HANDWRITTEN.replace('"0 0 1"/>\n    <limit', '"0 0 0.75"/>\n    <limit')


def test_armature_goes_back_through_the_gear():
    model = load(HANDWRITTEN)
    text = patch_urdf(HANDWRITTEN, model.with_armature(0.3))
    assert text == HANDWRITTEN.replace("<motorInertia> 0.001 <", "<motorInertia> 0.003 <")


def test_frames_are_moved_by_their_fixed_joints():
    fixed = (joint("f", "b", "c", '<origin xyz="1 2 3"/>', "fixed"), joint("g", "c", "d", kind="fixed"))
    moving = (joint("j", "a", "b"), joint("k", "d", "e", '<origin rpy="1 2 3"/>'))
    text = robot(*(link(x) for x in "abcde"), *moving, *fixed)
    model = load(text)
    other = changed(model, 2, frames=True)
    # The names of fixed joints are frames at the places of their links.
    rows = {x: model.topology.frame(x) for x in "cdfg"}
    places = other.frame_placement.at[rows["f"]].set(other.frame_placement[rows["c"]])
    places = places.at[rows["g"]].set(places[rows["d"]])
    apart, other = other, dataclasses.replace(other, frame_placement=places)
    assert_same(load(patched(text, other)), other)
    with pytest.raises(ModelError, match=r"frame 'f' stands at .* move both alike"):
        patched(text, apart)


def test_what_the_file_lacks_is_added():
    text = (
        '<robot name="r">\n  <link name="a"/>\n  <link name="b" />\n  ' + joint("j", "a", "b").strip() + "\n</robot>\n"
    )
    model = load(text, kinematics_only=True)
    assert patch_urdf(text, model) == text
    known = model.with_link_parameters("b", BodyInertia.box(2.0, (0.1, 0.2, 0.3), (0.1, 0.0, 0.0)))
    known = known.with_joint_friction(damping=0.5).with_armature(0.1)
    with pytest.warns(RobotFileWarning, match="other readers pass over: armature of joint 'j'"):
        new = patch_urdf(text, known)
    assert_same(load(new), known)
    assert '<link name="b">\n    <inertial><origin xyz="0.1 0.0 0.0"/>' in new
    # Written once more, nothing is added again.
    assert patched(new, load(new)) == new


def test_joints_that_mimic():
    inside = '<dynamics damping="{}" friction="{}"/><mimic joint="j" multiplier="-2" offset="0.5"/>'
    joints = (
        joint("j", "a", "b", '<dynamics damping="1" friction="2"/>'),
        joint("k", "b", "c", inside.format(0.25, 0.5)),
    )
    text = robot(link("a"), link("b"), link("c"), *joints)
    model = load(text)
    assert model.damping == 2
    assert patch_urdf(text, model) == text
    damped = model.with_joint_friction(damping=1.5)
    assert patch_urdf(text, damped) == text.replace('damping="1"', 'damping="0.5"')
    other = changed(model, 3)
    assert_same(load(patched(text, other)), other)
    with pytest.raises(ModelError, match="damping of joint 'j' is less than what 'k', which mimics it, has"):
        patch_urdf(text, model.with_joint_friction(damping=0.5))
    sprung = text.replace("</robot>", '<jaxdyn:joint name="k" stiffness="3"/></robot>')
    soft = load(sprung)
    assert patch_urdf(sprung, soft.with_joint_friction(damping=1.5)) == sprung.replace('damping="1"', 'damping="0.5"')
    with pytest.raises(ModelError, match="joint 'k', which mimics 'j', has a spring in the file"):
        patch_urdf(sprung, dataclasses.replace(soft, stiffness=2 * jnp.asarray(soft.stiffness)))
    apart = load(text, mimic="independent")
    assert patch_urdf(text, apart) == text


def test_less_mass_than_its_parts_is_written_together():
    parts = (link("a"), link("b"), link("tool", inertial(mass="5")), joint("j", "a", "b", kind="continuous"))
    text = robot(*parts, joint("f", "b", "tool", '<origin xyz="1 0 0"/>', "fixed"))
    model = load(text)
    model = eqx.tree_at(lambda m: m.inertial_parameters, model, 0.5 * model.inertial_parameters)
    with pytest.warns(RobotFileWarning, match="link 'b': its body has 3.5 kg, the links that are fixed to it 5 kg"):
        new = patch_urdf(text, model)
    np.testing.assert_allclose(load(new).inertial_parameters, model.inertial_parameters, rtol=1e-12)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_encodings_and_line_ends(tmp_path, encoding):
    declared = encoding.removesuffix("-sig")
    text = HANDWRITTEN.replace("Ada", "Bär").replace('"utf-8"', f'"{declared}"').replace("\n", "\r\n")
    path = tmp_path / "robot.urdf"
    path.write_bytes(text.encode(encoding))
    model = load(path)
    again = patch_urdf(path, model)
    written = again.encode("utf-16" if encoding == "utf-16" else declared)
    assert again.removeprefix("\ufeff") == text
    if encoding != "utf-16":
        assert written == path.read_bytes()
    heavier = patch_urdf(path, model.with_link_parameters("hand", 2 * model.link_parameters("hand")))
    assert "Bär" in heavier
    assert heavier.count("\r\n") == heavier.count("\n") == text.count("\n")


def test_single_precision():
    text = robot_path("panda").read_text()
    model = load(text).astype(np.float32)
    assert patch_urdf(text, model) == text
    other = changed(model, 4)
    assert_same(load(patched(text, other)).astype(np.float32), other, 2e-6)


@pytest.mark.parametrize(
    ("edit", "fragments"),
    [
        (lambda m: m.with_locked_joints({"panda_joint3": 0.1}), ["the file has", "joint 'panda_joint3'", "to_urdf"]),
        (lambda m: m.with_payload("panda_link8", BodyInertia(1.0), "cup"), ["the model has", "'cup'", "to_urdf"]),
        (lambda m: m.with_attached(m, "panda_link8", prefix="b_"), ["the model has", "'b_panda_joint1'"]),
        (lambda m: jax.tree.map(lambda x: x[None], m), ["batch axes"]),
        (lambda m: m.topology, ["`model` is a Topology"]),
        (lambda m: eqx.tree_at(lambda x: x.inertial_parameters, m, -m.inertial_parameters), ["negative mass"]),
    ],
)
def test_what_the_file_cannot_say_is_named(edit, fragments):
    path = robot_path("panda")
    with pytest.raises(ModelError) as error:
        patch_urdf(path, edit(load(path)))
    for fragment in fragments:
        assert fragment in str(error.value)


def test_elements_given_twice():
    """The first of two origins counts; elements that are given twice alike change alike."""
    text = arm('<origin xyz="1 0 0"/><origin xyz="2 0 0"/><axis xyz="0 1 0"/><axis xyz="0 1 0"/>')
    model = load(text, strict=False)
    assert patch_urdf(text, model, strict=False) == text
    other = changed(model, 5)
    new = patched(text, other, strict=False)
    assert '<origin xyz="2 0 0"/>' in new
    assert_same(load(new, strict=False), other)


def test_a_joint_named_as_that_of_a_free_base():
    text = robot(link("a"), link("b"), joint("root_joint", "a", "b", kind="floating"))
    other = changed(load(text), 6)
    model = dataclasses.replace(other, joint_placement=other.joint_placement.at[0, 0].set(3.0))
    assert_same(load(patched(text, model)), model)


def test_gravity_is_named():
    text = arm()
    moon = load(text, gravity=(0, 0, -1.62))
    with pytest.warns(RobotFileWarning, match=r"gravity \[0.0, 0.0, -1.62\] m/s\^2, which URDF does not have"):
        assert patch_urdf(text, moon) == text


def test_the_placement_of_the_root_is_not_in_the_file():
    path = robot_path("solo12")
    model = load(path, root_placement=(1, 2, 3, 0.6, 0, 0.8, 0))
    assert patch_urdf(path, model) == path.read_text()


def test_shapes_of_a_file_go_with_another_structure():
    path = robot_path("panda")
    model = load(path).with_locked_joints({"panda_joint3": 0.5}).with_payload("panda_link8", BodyInertia(1.0), "cup")
    text = to_urdf(model, shapes_from=path)
    assert_same(load(text), load(to_urdf(model)))
    for one in ET.fromstring(path.read_text()).iter("link"):
        (same,) = [x for x in ET.fromstring(text).iter("link") if x.get("name") == one.get("name")]
        for tag in ("visual", "collision"):
            pairs = zip(one.findall(tag), same.findall(tag), strict=True)
            assert all(ET.tostring(a).strip() == ET.tostring(b).strip() for a, b in pairs)
    with pytest.warns(RobotFileWarning, match="links that the model does not have are left out: 'hand'"):
        to_urdf(jaxdyn.samples.arm(), shapes_from=HANDWRITTEN)
    with pytest.raises(RobotFileError, match="cannot read"):
        to_urdf(model, shapes_from="no such file")


# Other readers


@pytest.mark.parametrize("name", ["panda", "ur5", pytest.param("talos_reduced", marks=pytest.mark.slow)])
def test_pinocchio_reads_the_same_motion(name):
    path = robot_path(name)
    model = changed(load(path, mimic="independent"), 7)
    # Armature and the transition velocity of friction are this library's.
    model = model.with_armature(0.0)
    parsed = pin.buildModelFromXML(patched(path, model))
    # Pinocchio sorts joints by their names.
    order = [model.joint_names.index(name) for name in list(parsed.names)[1:]]
    assert len(order) == model.nv
    q, v, a = np.random.default_rng(0).normal(size=(3, model.nv))
    expected = pin.rnea(parsed, parsed.createData(), q[order], v[order], a[order])
    tau = jaxdyn.rnea(model, q, v, a, joint_friction=False)[np.array(order)]
    np.testing.assert_allclose(tau, expected, rtol=1e-9, atol=1e-9)


def test_mujoco_reads_the_same_mass_matrix():
    # Without shapes, whose files are elsewhere.
    text = re.sub(r"<(visual|collision)>.*?</\1>", "", robot_path("ur5").read_text(), flags=re.DOTALL)
    model = changed(load(text), 8).with_armature(0.0)
    m = mujoco.MjModel.from_xml_string(patched(text, model))
    assert [m.joint(i).name for i in range(m.njnt)] == list(model.joint_names)
    data, M = mujoco.MjData(m), np.zeros((m.nv, m.nv))
    data.qpos = np.random.default_rng(0).normal(size=m.nq)
    mujoco.mj_forward(m, data)
    mujoco.mj_fullM(m, data, M)
    np.testing.assert_allclose(jaxdyn.crba(model, data.qpos), M, rtol=1e-6, atol=1e-6)


def test_inertias_without_change_have_no_new_digits():
    """An edit of one joint leaves the numbers of all others alone."""
    path = robot_path("talos_reduced")
    model, old = load(path), path.read_text().splitlines()
    new = patch_urdf(path, model.with_joint_friction(damping={"head_1_joint": 0.123})).splitlines()
    assert sum(a != b for a, b in zip(old, new, strict=True)) == 1


def test_inertial_of_a_payload_goes_to_the_links_own():
    path = robot_path("panda")
    model = load(path)
    loaded = model.with_payload("panda_link8", BodyInertia.sphere(1.0, 0.1))
    again = load(patch_urdf(path, loaded))
    np.testing.assert_allclose(again.inertial_parameters, loaded.inertial_parameters, rtol=1e-12, atol=1e-12)


def test_text_is_given_as_text():
    text = "\n  " + arm() + "\n"
    assert patch_urdf(text, load(text)) == text
    assert INERTIAL in text
