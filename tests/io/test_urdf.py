"""Models from URDF files match Pinocchio's for published robots, and handwritten texts give the expected models."""

# pyright: reportAttributeAccessIssue=false
# (Pinocchio is a compiled module without type stubs.)

import functools
import itertools
import warnings

import numpy as np
import pinocchio as pin
import pytest

from jaxdyn import JaxdynError, Model, ModelError, PhysicalityWarning, RobotFileError
from jaxdyn.io import RobotFileWarning, load_urdf
from tests.io.urdf_against_pinocchio import check_frames, check_inertias, check_joints, check_limits_and_friction, close
from tests.robots import NAMES, robot_path
from tests.urdf_texts import INERTIAL, arm, inertial, joint, link, robot

# The root link of ur5 is the world.
CASES = [case for case in itertools.product(NAMES, (False, True)) if case != ("ur5", True)]


@functools.cache
def both(name: str, free_base: bool) -> tuple[Model, pin.Model]:
    path = robot_path(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Pinocchio's parser treats mimic joints as independent by default.
        model = load_urdf(path, free_base=free_base, mimic="independent")
    root = [pin.JointModelFreeFlyer()] if free_base else []
    return model, pin.buildModelFromUrdf(str(path), *root)


@pytest.mark.parametrize(("name", "free_base"), CASES)
def test_joints_are_pinocchios(name, free_base):
    check_joints(*both(name, free_base))


@pytest.mark.parametrize("name", NAMES)
def test_limits_and_friction_are_pinocchios(name):
    check_limits_and_friction(*both(name, False))


def test_continuous_joints_and_friction_occur():
    # If the files had none of these, the comparison above would compare only zeros.
    assert "continuous" in both("kinova", False)[0].topology.joint_types
    for field in ("damping", "friction"):
        assert any(np.any(getattr(both(name, False)[0], field)) for name in NAMES)


@pytest.mark.parametrize(("name", "free_base"), CASES)
def test_merged_inertias_are_pinocchios(name, free_base):
    check_inertias(*both(name, free_base))


@pytest.mark.parametrize(("name", "free_base"), CASES)
def test_every_link_and_fixed_joint_is_a_frame(name, free_base):
    check_frames(*both(name, free_base))


# Handwritten texts

BAD = {
    "unclosed tag": ("<robot>\n<link name='a'>\n</robot>", ["line 3", "mismatched tag"]),
    "no root": ("<!-- nothing -->", ["line 1", "no element found"]),
    "unknown encoding": (b"<?xml version='1.0' encoding='klingon'?><robot/>", ["klingon"]),
    "root is no robot": ("<sdf><model/></sdf>", ["<sdf>", "<robot>", "line 1"]),
    "xacro": ("<robot>\n<xacro:include filename='x'/></robot>", ["line 2", "xacro:include", "expand"]),
    "doctype": ("<!DOCTYPE robot>\n" + arm(), ["line 1", "DOCTYPE"]),
    "entity": ("<!DOCTYPE r [<!ENTITY a 'b'>]>\n" + arm(), ["DOCTYPE", "entities"]),
    "no links": (robot(), ["no links", "'r'"]),
    "nothing moves": (robot(link("base")), ["'base'", "free_base=True"]),
    "nothing but fixed joints": (arm(kind="fixed"), ["'base'", "nothing moves"]),
    "unknown type": (arm(kind="hinge"), ["'hinge'", "'wrist'", "revolute, continuous", "line 4"]),
    "no type": (arm().replace('type="revolute"', ""), ["'wrist'", "no type", "line 4"]),
    "no parent": (arm().replace('<parent link="base"/>', ""), ["'wrist'", "<parent> is missing"]),
    "no child": (arm().replace('<child link="hand"/>', ""), ["'wrist'", "<child> is missing"]),
    "parent without link": (arm().replace('parent link="base"', "parent"), ["'wrist'", "<parent> has no link"]),
    "two parents in one joint": (arm('<parent link="hand"/>'), ["'wrist'", "<parent> is given twice"]),
    "no joint name": (arm().replace('name="wrist"', ""), ["joint without a name", "line 4"]),
    "no link name": (robot("<link/>"), ["link without a name", "line 2"]),
    "unknown parent": (robot(link("base"), link("b"), joint("j", "bsae", "b")), ["'j'", "parent", "'base'", "line 4"]),
    "unknown child": (robot(link("a"), link("thumb"), joint("j", "a", "thum")), ["'j'", "child", "'thumb'"]),
    "duplicate link": (robot(link("a"), link("a")), ["link 'a'", "line 2", "line 3", "unique"]),
    "duplicate joint": (
        robot(link("a"), link("b"), link("c"), joint("j", "a", "b"), joint("j", "b", "c")),
        ["joint 'j'", "line 5", "line 6", "unique"],
    ),
    "two parents": (
        robot(link("a"), link("b"), link("c"), joint("j", "a", "c"), joint("k", "b", "c")),
        ["'j'", "'k'", "link 'c'", "loop", "line 5", "line 6"],
    ),
    "cycle beside the root": (
        robot(
            link("a"), link("b"), link("c"), link("d"), joint("j", "b", "c"), joint("k", "c", "b"), joint("l", "c", "d")
        ),
        ["a loop of the joints 'j', 'k' and links 'c', 'b';"],
    ),
    "cycle of all": (robot(link("a"), link("b"), joint("j", "a", "b"), joint("k", "b", "a")), ["'j', 'k'", "loop"]),
    "own parent": (robot(link("a"), link("b"), joint("j", "b", "b")), ["'j'", "'b'", "loop"]),
    "two roots": (robot(link("a"), link("b"), link("c"), joint("j", "b", "c")), ["2 root links, 'a', 'b'"]),
    "zero axis": (arm('<axis xyz="0 0 0"/>'), ["'wrist'", "no direction"]),
    "axis without xyz": (arm("<axis/>"), ["'wrist'", "<axis> has no xyz"]),
    "two axes": (arm('<axis xyz="1 0 0"/><axis xyz="0 1 0"/>'), ["'wrist'", "<axis> is given twice"]),
    "short axis": (arm('<axis xyz="0 1"/>'), ["'wrist'", "'0 1'", "3 finite numbers"]),
    "long origin": (arm('<origin xyz="0 1 2 3"/>'), ["'wrist'", "'0 1 2 3'", "3 finite numbers"]),
    "rpy in words": (arm('<origin rpy="0 0 ${pi}"/>'), ["'wrist'", "${pi}"]),
    "commas": (arm('<origin xyz="0, 1, 2"/>'), ["'wrist'", "'0, 1, 2'", "separated by spaces"]),
    "nan": (arm('<origin xyz="0 nan 0"/>'), ["'wrist'", "nan"]),
    "infinite": (arm('<limit lower="-inf" upper="1"/>'), ["'wrist'", "lower='-inf'"]),
    "overflow": (arm('<limit lower="-1e999" upper="1"/>'), ["'wrist'", "lower='-1e999'"]),
    "digits with underscores": (arm('<limit lower="-1_0" upper="1"/>'), ["'wrist'", "'-1_0'"]),
    "digits of another script": (arm('<limit lower="-1" upper="\u0661"/>'), ["'wrist'", "upper='\u0661'"]),
    "limits swapped": (arm('\n<limit lower="1" upper="-1"/>'), ["'wrist'", "lower 1.0 > upper -1.0", "line 5"]),
    "only a lower limit above zero": (arm('<limit lower="1"/>'), ["'wrist'", "lower 1.0 > upper 0.0"]),
    "negative effort": (arm('<limit effort="-1"/>', "continuous"), ["'wrist'", "negative effort"]),
    "negative damping": (arm('<dynamics damping="-1"/>'), ["'wrist'", "negative damping"]),
    "negative friction": (arm('<dynamics friction="-1"/>'), ["'wrist'", "negative friction"]),
    "negative mass": (arm(child_inside=inertial(mass="-3")), ["'hand'", "negative value of <mass>: -3", "line 3"]),
    "no mass value": (arm(child_inside=inertial(mass="")), ["'hand'", "<mass> has no value", "line 3"]),
    "no mass": (arm(child_inside="<inertial><inertia/></inertial>"), ["'hand'", "<mass> is missing"]),
    "no inertia": (arm(child_inside='<inertial><mass value="1"/></inertial>'), ["'hand'", "<inertia> is missing"]),
    "inertia no number": (arm(child_inside=inertial(iyz="o")), ["'hand'", "iyz='o'", "line 3"]),
    "two inertials": (arm(child_inside=INERTIAL * 2), ["'hand'", "<inertial> is given twice"]),
    "link named world": (robot(link("a"), link("world"), joint("j", "a", "world")), ["'world'", "root", "rename"]),
} | {
    f"no {a}": (arm(child_inside=inertial(**{a: ""})), ["link 'hand'", f"no {a}", "line 3"])
    for a in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what, tmp_path):
    text, fragments = BAD[what]
    path = tmp_path / "robot.urdf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RobotFileError) as from_path:
        load_urdf(path)
    assert str(path) in str(from_path.value)
    messages = [str(from_path.value)]
    if isinstance(text, str):
        with pytest.raises(RobotFileError) as from_text:
            load_urdf(text)
        messages.append(str(from_text.value))
    for message, fragment in itertools.product(messages, fragments):
        assert fragment in message


def test_bad_free_bases_are_named():
    with pytest.raises(RobotFileError, match=r"link 'world'.*free_base"):
        load_urdf(robot(link("world"), link("a"), joint("j", "world", "a")), free_base=True)
    with pytest.raises(RobotFileError, match=r"joint 'root_joint'.*rename"):
        load_urdf(robot(link("a"), link("b"), joint("root_joint", "a", "b")), free_base=True)
    with pytest.raises(ModelError, match="'base', moved by joint 'root_joint', has no mass"):
        load_urdf(robot(link("base", "")), free_base=True)


def test_errors_of_the_builder_name_the_file_too():
    with pytest.raises(ModelError, match="'hand', moved by joint 'wrist', has no mass") as error:
        load_urdf(arm(child_inside=""))
    assert "URDF text" in error.value.__notes__[0]
    with pytest.raises(JaxdynError, match="gravity"):
        load_urdf(arm(), gravity=(0.0, 1.0))


@pytest.mark.parametrize(
    ("name", "shown"), [("nowhere.urdf", "'nowhere.urdf'"), ("", "''"), ("a\0b", r"'a\x00b'"), ("x" * 5000, "xxx'...")]
)
def test_a_missing_file_is_named(name, shown):
    with pytest.raises(RobotFileError, match="cannot read the robot's file") as error:
        load_urdf(name)
    assert shown in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(RobotFileError, match="directory"):
        load_urdf(tmp_path)


def test_lines_count_from_the_start_of_the_text():
    with pytest.raises(RobotFileError, match="line 6: joint 'wrist'"):
        load_urdf("\n \n" + arm(kind="hinge"))


def test_path_and_text_agree(tmp_path):
    text = arm('<origin xyz="1 2 3"/>')
    path = tmp_path / "robot.urdf"
    path.write_text(text)
    for source in (path, str(path), text, "\n\t " + text, "\ufeff" + text, "\n\ufeff" + text):
        model = load_urdf(source)
        assert model.topology == load_urdf(text).topology
        close(model.joint_placement[0], [1, 2, 3, 1, 0, 0, 0])


def test_byte_order_marks_and_encodings(tmp_path):
    text = arm().replace("wrist", "Händgelenk").replace("hand", "Händ")
    path = tmp_path / "robot.urdf"
    declared = "<?xml version='1.0' encoding='iso-8859-1'?>"
    for data in (text.encode("utf-8-sig"), text.encode("utf-16"), (declared + text).encode("latin-1")):
        path.write_bytes(data)
        assert load_urdf(path).joint_names == ("Händgelenk",)
    # The declared encoding has no effect on decoded text.
    model = load_urdf(declared + arm().replace("wrist", "手首").replace("hand", "手"))
    assert (model.joint_names, model.body_names) == (("手首",), ("手",))


def test_a_default_namespace_is_no_obstacle():
    assert load_urdf(arm().replace("<robot", '<robot xmlns="http://www.ros.org"')).joint_names == ("wrist",)


def test_what_a_joint_leaves_out():
    model = load_urdf(arm())
    close(model.joint_axis, [[1, 0, 0]])
    close(model.joint_placement, [[0, 0, 0, 1, 0, 0, 0]])
    close(model.gravity, [0, 0, -9.81])
    assert np.all(model.position_lower == -np.inf)
    assert np.all(model.position_upper == np.inf)
    assert np.all(model.velocity_limit == np.inf)
    assert np.all(model.effort_limit == np.inf)
    assert not np.any(model.damping)
    assert not np.any(model.friction)


def test_what_a_joint_says():
    inside = (
        '<axis xyz="0 3 4"/><limit lower="-1" upper="2.5e0" effort=".5" velocity="+6."/>'
        '<dynamics damping="0.25" friction="7"/>'
    )
    for kind in ("revolute", "prismatic", "continuous"):
        with warnings.catch_warnings():
            # The limits of the continuous joint cause a warning.
            warnings.simplefilter("ignore", RobotFileWarning)
            model = load_urdf(arm(inside, kind), gravity=(1, 2, 3))
        assert model.topology.joint_types == (kind,)
        close(model.joint_axis, [[0, 0.6, 0.8]])
        limits = (-np.inf, np.inf) if kind == "continuous" else (-1, 2.5)
        assert (model.position_lower[0], model.position_upper[0]) == limits
        close([model.effort_limit[0], model.velocity_limit[0]], [0.5, 6])
        close([model.damping[0], model.friction[0]], [0.25, 7])
        close(model.gravity, [1, 2, 3])


def test_roll_pitch_yaw_turn_about_fixed_axes_in_this_order():
    quarter = np.pi / 2
    # Roll maps y to z and z to -y, yaw maps x to y and -y to x. Together x -> y -> z -> x, a third of a turn.
    model = load_urdf(arm(f'<origin xyz="1 2 3" rpy="{quarter} 0 {quarter}"/>'))
    close(model.joint_placement[0], [1, 2, 3, 0.5, 0.5, 0.5, 0.5])
    model = load_urdf(arm(f'<origin rpy="0 {quarter} 0"/>'))
    close(model.joint_placement[0], [0, 0, 0, np.sqrt(0.5), 0, np.sqrt(0.5), 0])


def test_a_rotated_inertial_origin():
    # The inertial frame's x and y axes are the link's y and -x: Ixx and Iyy swap, Ixy changes its sign; then Steiner's
    # terms 2 (c.c - c_i c_i) and -2 c_i c_j with c = (0.1, 0.2, 0.3), c.c = 0.14.
    origin = f'<inertial><origin xyz="0.1 0.2 0.3" rpy="0 0 {np.pi / 2}"/>'
    inside = inertial(mass="2", ixx="1.5", ixy="0.1", iyy="2", izz="3").replace("<inertial>", origin)
    model = load_urdf(arm(child_inside=inside))
    expected = [2, 0.2, 0.4, 0.6, 2 + 0.26, -0.1 - 0.04, 1.5 + 0.2, -0.06, -0.12, 3 + 0.1]
    close(model.inertial_parameters[0], expected)


def test_the_six_numbers_of_the_inertia_go_to_their_places():
    model = load_urdf(arm(child_inside=inertial(ixx="5", ixy="0.1", ixz="0.2", iyy="6", iyz="0.3", izz="7")))
    close(model.inertial_parameters[0], [2, 0, 0, 0, 5, 0.1, 6, 0.2, 0.3, 7])


def test_an_unphysical_inertia_is_warned_of():
    with pytest.warns(PhysicalityWarning, match="'hand'"):
        load_urdf(arm(child_inside=inertial(izz="9")))


def test_floating_joints():
    model = load_urdf(arm('<origin xyz="0 0 1"/>', "floating"))
    assert (model.topology.joint_types, model.nq, model.nv) == (("free",), 7, 6)
    close(model.joint_placement[0], [0, 0, 1, 1, 0, 0, 0])


def test_planar_joints_move_across_their_axis():
    model = load_urdf(arm('<axis xyz="0 2 0"/>', "planar"))
    assert (model.topology.joint_types, model.nq, model.nv) == (("planar",), 3, 3)
    axes = np.asarray(model.joint_axis)
    close(axes[2], [0, 1, 0])
    close(axes @ axes.T, np.eye(3))


OFFSET = '<origin xyz="{} 0 0"/>'


def test_fixed_links_are_merged_into_the_body_that_carries_them():
    model = load_urdf(
        robot(
            link("base"),
            link("arm"),
            link("flange", ""),
            link("tool"),
            joint("shoulder", "base", "arm", OFFSET.format(1), kind="continuous"),
            joint("bolts", "arm", "flange", OFFSET.format(10), kind="fixed"),
            joint("clamp", "flange", "tool", f'<origin xyz="100 0 0" rpy="0 0 {np.pi / 2}"/>', kind="fixed"),
        )
    )
    assert model.body_names == ("arm",)
    assert model.topology.frame_names == ("arm", "base", "flange", "bolts", "tool", "clamp")
    for name, x in {"flange": 10, "bolts": 10, "tool": 110, "clamp": 110}.items():
        assert model.frames[name].body == "arm"
        close(model.frames[name].placement[:3], [x, 0, 0])
    close(model.frames["clamp"].placement[3:], np.sqrt([0.5, 0, 0, 0.5]))
    # The two masses are 2 kg each, at 0 and at 110 m on the x axis.
    steiner = 2 * 110.0**2
    close(model.inertial_parameters[0], [4, 220, 0, 0, 2, 0, 2 + steiner, 0, 0, 2 + steiner])
    alone = [2, 0, 0, 0, 1, 0, 1, 0, 0, 1]
    for name in ("arm", "tool", "base"):
        np.testing.assert_allclose(model.link_parameters(name), alone, atol=1e-10)


def test_links_fixed_to_the_world_carry_joints():
    model = load_urdf(
        robot(
            link("floor", ""),
            link("column"),
            link("arm"),
            joint("screws", "floor", "column", OFFSET.format(1), kind="fixed"),
            joint("shoulder", "column", "arm", OFFSET.format(10)),
        )
    )
    assert model.topology.parents == (-1,)
    close(model.joint_placement[0], [11, 0, 0, 1, 0, 0, 0])
    close(model.inertial_parameters[0, 0], 2)
    assert {name: model.frames[name].body for name in ("floor", "column", "screws")} == dict.fromkeys(
        ("floor", "column", "screws"), "world"
    )


def test_a_fixed_joint_named_as_a_link_adds_no_frame():
    elements = (link("base"), link("a"), link("b"), joint("j", "base", "a"), joint("base", "a", "b", kind="fixed"))
    model = load_urdf(robot(*elements))
    assert model.topology.frame_names == ("a", "base", "b")
    assert model.frames["base"].body == "world"


def test_a_root_named_world_is_the_world():
    model = load_urdf(robot(link("world", ""), link("a"), joint("j", "world", "a", OFFSET.format(3))))
    assert model.body_names == ("a",)
    assert model.topology.parents == (-1,)
    close(model.joint_placement[0, 0], 3)


def test_a_free_base():
    model = load_urdf(arm('<origin xyz="0 0 1"/>'), free_base=True)
    assert model.joint_names == ("root_joint", "wrist")
    assert model.topology.joint_types == ("free", "revolute")
    assert model.topology.parents == (-1, 0)
    close(model.mass, [2, 2])


def test_a_free_base_without_inertia_takes_that_of_the_links_fixed_to_it():
    text = robot(link("base_footprint", ""), link("trunk"), joint("j", "base_footprint", "trunk", kind="fixed"))
    model = load_urdf(text, free_base=True)
    assert model.body_names == ("base_footprint",)
    close(model.mass, [2])


def test_children_stand_in_the_order_of_the_joints():
    joints = [
        joint("z", "base", "e"),
        joint("deep", "c", "d"),
        joint("fixed", "base", "c", kind="fixed"),
        joint("a", "base", "b"),
        joint("y", "e", "f"),
        joint("x", "e", "g"),
    ]
    links = [link(name) for name in ("b", "c", "d", "f", "g", "e", "base")]
    assert load_urdf(robot(*links, *joints)).joint_names == ("z", "y", "x", "deep", "a")
    assert load_urdf(robot(*links, *joints[::-1])).joint_names == ("a", "deep", "z", "x", "y")


def test_long_chains_need_no_recursion():
    n = 1100
    links = [link(f"l{i}") for i in range(n + 1)]
    model = load_urdf(robot(*links, *(joint(f"j{i}", f"l{i}", f"l{i + 1}") for i in range(n))))
    assert model.nv == n


WARNED = {
    "misspelled": (arm('<dynamic damping="1"/>'), ["<dynamic>", "line 4", "'wrist'"]),
    "other friction": (arm('<dynamics spring="1"/>'), ["'spring' in <dynamics>", "line 4", "'wrist'"]),
    "loop joint": (
        robot(link("a"), link("b"), joint("j", "a", "b"), '<loop_joint name="k"/>'),
        ["<loop_joint>", "'k'"],
    ),
    "link": (arm(child_inside=INERTIAL + "<inertia/>"), ["<inertia>", "line 3", "'hand'"]),
    "inertial": (arm(child_inside=INERTIAL.replace("<mass", "<orign/><mass")), ["<orign>", "line 3", "'hand'"]),
    "rotor": (
        arm().replace("</robot>", '<transmission name="t"><a><d:rotor_inertia value="1"/></a></transmission></robot>'),
        ["<d:rotor_inertia>", "line 5", "transmission 't'"],
    ),
    "damping of many axes": (arm('<dynamics damping="1"/>', "planar"), ["<dynamics> of a planar joint", "'wrist'"]),
    "limits of many axes": (arm('<limit lower="1"/>', "floating"), ["<limit> of a floating joint", "'wrist'"]),
    "limits left out": (arm('<limit effort="1"/>'), ["'wrist'", "neither lower nor upper", "line 4"]),
}


def test_limits_of_zero_and_inertias_in_another_unit_are_said():
    """Zeros in <limit> silence a motor, and moments in kg mm^2 put the mass far outside of the robot: both are said at
    loading, once, and in the summary."""
    zeros = arm('<limit lower="-1" upper="1" effort="0" velocity="0"/>', child_inside=INERTIAL)
    with pytest.warns(
        RobotFileWarning, match=r"limits of zero \(effort_limit of wrist; velocity_limit of wrist\)"
    ) as said:
        model = load_urdf(zeros)
    assert len(said) == 1
    assert "warning: limits of zero (effort_limit of wrist" in model.summary()
    assert "warning" not in load_urdf(arm(child_inside=inertial(ixx="0.01", iyy="0.01", izz="0.01"))).summary()
    large = inertial(ixx="10000", iyy="10000", izz="10000")
    with pytest.warns(PhysicalityWarning, match=r"radii of gyration of links 'hand' .*kg mm\^2") as said:
        model = load_urdf(arm(child_inside=large))
    assert len(said) == 1
    assert "warning: the radii of gyration of links 'hand'" in model.summary()


@pytest.mark.parametrize("what", WARNED)
def test_what_is_not_read_is_warned_of(what):
    text, fragments = WARNED[what]
    with pytest.warns(RobotFileWarning) as caught:
        load_urdf(text)
    (warning,) = caught
    assert warning.filename == __file__
    for fragment in fragments:
        assert fragment in str(warning.message)


def test_what_is_not_about_the_dynamics_is_passed_over():
    inside = '<safety_controller k_velocity="1"/><calibration rising="0"/><limit lower="-1" upper="1"/>'
    around = (
        '<material name="m"/><gazebo><joint name="x"/></gazebo><transmission name="t"><joint name="x"/></transmission>'
    )
    text = arm(inside, child_inside=INERTIAL + "<visual/><visual/><collision/>").replace(
        "</robot>", around + "</robot>"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = load_urdf(text)
    assert model.joint_names == ("wrist",)
