"""The URDF loader's options, mimic joints, transmissions, format versions and strictness work as documented."""

import warnings

import equinox as eqx
import jax
import numpy as np
import pinocchio as pin
import pytest

import jaxdyn
from jaxdyn import SE3, JaxdynError, ModelError, PhysicalityWarning, RobotFileError, ShapeError
from jaxdyn.io import LeftOutWarning, RobotFileWarning, left_out, load_urdf
from tests.robots import robot_path
from tests.same_model import assert_same
from tests.urdf_texts import INERTIAL, arm, inertial, joint, link, robot

NO_LIMIT = "1.7976931348623157e+308"


def close(got, expected) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def quietly(text, **options):
    """Return the model after asserting that the loader does not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_urdf(text, **options)


# Texts that the standard forbids although they have one obvious meaning

FORGIVEN = {
    "commas": (arm('<origin xyz="0, 1,2"/>'), arm('<origin xyz="0 1 2"/>'), "xyz='0, 1,2'", "4"),
    "infinite limits": (
        arm('<limit lower="-inf" upper="Infinity" effort="inf" velocity="1"/>'),
        arm(f'<limit lower="-{NO_LIMIT}" upper="{NO_LIMIT}" velocity="1"/>'),
        "effort='inf'",
        "4",
    ),
    "capitals": (arm(kind="Continuous"), arm(kind="continuous"), "'Continuous'", "4"),
    "axis without xyz": (arm("<axis/>"), arm('<axis xyz="1 0 0"/>'), "<axis> has no xyz", "4"),
    "no products": (arm(child_inside=inertial(ixy="", iyz="")), arm(child_inside=inertial()), "no ixy", "3"),
    "twice alike": (
        arm('<axis xyz="0 1 0"/>\n<axis xyz="0 1 0"/>'),
        arm('<axis xyz="0 1 0"/>'),
        "<axis> is given twice",
        "5",
    ),
    "two origins": (
        arm('<origin xyz="1 0 0" rpy="0 0 1"/>\n<origin xyz="2 0 0"/>'),
        arm('<origin xyz="1 0 0" rpy="0 0 1"/>'),
        "<origin> is given twice, and differently",
        "5",
    ),
    "two origins of an inertia": (
        arm(child_inside=inertial().replace("<mass", '<origin xyz="1 0 0"/><origin xyz="2 0 0"/><mass')),
        arm(child_inside=inertial().replace("<mass", '<origin xyz="1 0 0"/><mass')),
        "<origin> is given twice, and differently",
        "3",
    ),
    "unknown version": (arm().replace('"r"', '"r" version="7.0"'), arm(), "version='7.0'", "1"),
    "quaternion in version 1.0": (
        arm('<origin quat_xyzw="0.6 0 0 0.8"/>'),
        arm('<origin quat_xyzw="0.6 0 0 0.8"/>').replace('"r"', '"r" version="1.1"'),
        "version='1.1'",
        "4",
    ),
    "no upper limit in version 1.2": (
        arm('<limit lower="-1"/>').replace('"r"', '"r" version="1.2"'),
        arm(f'<limit lower="-1" upper="{NO_LIMIT}"/>'),
        "<limit> has no upper",
        "4",
    ),
}


@pytest.mark.parametrize("what", FORGIVEN)
def test_what_is_forgiven_where_not_strict(what):
    text, corrected, named, line = FORGIVEN[what]
    with pytest.raises(RobotFileError) as error:
        load_urdf(text)
    for fragment in (named, f"line {line}:", "strict=False"):
        assert fragment in str(error.value)
    with pytest.warns(RobotFileWarning, match="against the URDF standard") as caught:
        model = load_urdf(text, strict=False)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert named in str(caught[0].message)
    assert f"line {line}," in str(caught[0].message)
    assert_same(model, load_urdf(corrected))


def test_the_first_of_two_origins_counts_as_in_other_readers():
    text = arm('<origin xyz="1 0 0" rpy="0 0 1"/><origin xyz="2 0 0"/>', "continuous")
    with pytest.warns(RobotFileWarning, match="read as the first one alone"):
        model = load_urdf(text, strict=False)
    parsed = pin.buildModelFromXML(text)
    close(model.joint_placement[0, :3], parsed.jointPlacements[1].translation)
    close(SE3.from_vector(model.joint_placement[0]).rotation, parsed.jointPlacements[1].rotation)


def test_white_space_before_the_declaration(tmp_path):
    path = tmp_path / "robot.urdf"
    path.write_text("\n \n<?xml version='1.0'?>\n" + arm(kind="hinge"))
    with pytest.raises(RobotFileError, match=r"white space before the XML declaration in line 3.*strict=False"):
        load_urdf(path)
    with pytest.raises(RobotFileError, match="line 7: joint 'wrist': unknown joint type"):
        load_urdf(path, strict=False)
    path.write_text("\n <?xml version='1.0'?>\n" + arm())
    with pytest.warns(RobotFileWarning, match="white space before the XML declaration in line 2"):
        assert_same(load_urdf(path, strict=False), load_urdf(arm()))


def test_what_is_forgiven_is_listed_once_and_not_without_end():
    links = [link("a")] + [link(f"b{i}", inertial(ixy="", ixz="")) for i in range(30)]
    joints = [joint(f"j{i}", "a", f"b{i}") for i in range(30)]
    with pytest.warns(RobotFileWarning) as caught:
        load_urdf(robot(*links, *joints), strict=False)
    (warning,) = caught
    assert "no ixy" in str(warning.message)
    assert "and 40 more" in str(warning.message)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        (arm('<origin xyz="0, 1"/>'), "3 finite numbers"),
        (arm('<axis xyz="1 0 0"/><axis xyz="0 1 0"/>'), "given twice, and differently"),
        (arm('<limit lower="nan" upper="1"/>'), "lower='nan'"),
        (arm('<limit lower="1" upper="-1"/>'), "lower 1.0 > upper -1.0"),
        (arm(kind="Hinge"), "unknown joint type 'Hinge'"),
        (arm(child_inside=inertial(ixx="")), "no ixx"),
        (arm('<origin xyz="1e13 0 0"/>'), "beyond 1e+12"),
        (arm('<origin quat_xyzw="0 0 0 2"/>').replace('"r"', '"r" version="1.1"'), "norm 2; a unit quaternion"),
        (
            arm('<origin quat_xyzw="0 0 0 1" rpy="0 0 0"/>').replace('"r"', '"r" version="1.1"'),
            "both rpy and quat_xyzw",
        ),
        (arm(f'<limit lower="-1" upper="{"1" * 2000}"/>'), "11111'..."),
    ],
)
def test_what_has_no_obvious_meaning_is_an_error_in_any_case(text, fragment, strict):
    with pytest.raises(RobotFileError) as error:
        load_urdf(text, strict=strict)
    assert fragment in str(error.value)
    assert len(str(error.value)) < 600


# Versions of the format


def test_quaternions_of_version_1_1():
    model = quietly(arm('<origin xyz="1 2 3" quat_xyzw="0.1 0.5 0.7 0.5"/>').replace('"r"', '"r" version="1.1"'))
    close(model.joint_placement[0], [1, 2, 3, 0.5, 0.1, 0.5, 0.7])


def test_limits_of_version_1_2():
    model = quietly(arm('<limit lower="-1" upper="2" jerk="5"/>').replace('"r"', '"r" version="1.2"'))
    assert (model.position_lower[0], model.position_upper[0]) == (-1, 2)
    assert model.effort_limit[0] == model.velocity_limit[0] == np.inf


def test_the_largest_number_is_no_limit():
    model = quietly(arm(f'<limit lower="-{NO_LIMIT}" upper="{NO_LIMIT}" effort="{NO_LIMIT}" velocity="{NO_LIMIT}"/>'))
    assert (model.position_lower[0], model.position_upper[0]) == (-np.inf, np.inf)
    assert model.effort_limit[0] == model.velocity_limit[0] == np.inf


# Mimic joints


def chain(*mimics: str, kinds: tuple[str, ...] = ()) -> str:
    """Return a chain of links with joints `j0`, `j1`, ... that contain `mimics`; the joints are in reverse order."""
    kinds = kinds or ("continuous",) * len(mimics)
    links = [link(f"l{i}") for i in range(len(mimics) + 1)]
    joints = [joint(f"j{i}", f"l{i}", f"l{i + 1}", mimics[i], kinds[i]) for i in range(len(mimics))]
    return robot(*links, *reversed(joints))


def panda():
    with warnings.catch_warnings():
        # Panda's file has friction attributes that URDF does not define.
        warnings.simplefilter("ignore")
        return load_urdf(robot_path("panda"))


def test_mimic_joints_follow():
    model = panda()
    assert (model.nq, model.nv, model.nb) == (8, 8, 9)
    q = np.arange(8.0)
    assert list(model.spanning_configuration(q)) == [*q, 7.0]


def test_chains_of_mimic_joints_end_at_one_leader():
    text = chain(
        '<mimic joint="j2" multiplier="2" offset="0.5"/>',
        "",
        '<mimic joint="j3" multiplier="-3" offset="0.25"/>',
        '<mimic joint="j1" multiplier="0.5"/>',
        '<mimic joint="j3"/>',
    )
    model = quietly(text)
    assert (model.nv, model.nb) == (1, 5)
    assert {(model.joint_names[a], model.joint_names[b]) for a, b in model.topology.mimics} == {
        (name, "j1") for name in ("j0", "j2", "j3", "j4")
    }
    x = 0.7
    j3 = 0.5 * x
    j2 = -3 * j3 + 0.25
    close(model.spanning_configuration(np.array([x])), [2 * j2 + 0.5, x, j2, j3, j3])


def test_a_prismatic_joint_may_follow_a_turning_one():
    model = quietly(chain("", '<mimic joint="j0" multiplier="0.01"/>', kinds=("revolute", "prismatic")))
    assert model.nv == 1
    close(model.spanning_configuration(np.array([2.0])), [2, 0.02])


def test_independent_mimic_joints_are_named():
    with pytest.warns(RobotFileWarning) as caught:
        model = load_urdf(robot_path("panda"), mimic="independent")
    assert any("independent joints (1): 'panda_finger_joint2';" in str(warning.message) for warning in caught)
    assert model.nv == 9
    assert not model.topology.mimics


def test_mimic_joints_may_be_refused():
    with pytest.raises(RobotFileError, match=r"line 6: joint 'j0': mimic='error' refuses.*'j0'"):
        load_urdf(chain('<mimic joint="j1"/>', "").replace("line", ""), mimic="error")
    assert quietly(chain("", ""), mimic="error").nv == 2
    with pytest.raises(ModelError, match="mimic is 'merged'; it must be one of 'merge', 'independent', 'error'"):
        load_urdf(chain("", ""), mimic="merged")


BAD_MIMICS = {
    "unknown leader": (chain('<mimic joint="j2"/>', ""), ["'j0'", "'j2'", "did you mean", "line 6", "independent"]),
    "no leader": (chain("<mimic/>", ""), ["'j0'", "<mimic> has no joint", "line 6"]),
    "itself": (chain('<mimic joint="j0"/>'), ["'j0'", "mimic each other: 'j0';"]),
    "two": (chain('<mimic joint="j1"/>', '<mimic joint="j0"/>'), ["mimic each other: 'j1', 'j0';", "line 5"]),
    "a loop at the end": (
        chain('<mimic joint="j1"/>', '<mimic joint="j2"/>', '<mimic joint="j1"/>'),
        ["mimic each other: 'j2', 'j1';"],
    ),
    "fixed leader": (chain('<mimic joint="j1"/>', "", kinds=("revolute", "fixed")), ["'j0'", "'j1' is fixed"]),
    "planar leader": (chain('<mimic joint="j1"/>', "", kinds=("revolute", "planar")), ["'j1' is planar"]),
    "planar follower": (chain('<mimic joint="j1"/>', "", kinds=("planar", "revolute")), ["'j0' is planar"]),
    "number": (chain('<mimic joint="j1" multiplier="a"/>', ""), ["'j0'", "multiplier='a'", "line 6"]),
    "given twice": (chain('<mimic joint="j1"/><mimic joint="j2"/>', "", ""), ["<mimic> is given twice"]),
}


@pytest.mark.parametrize("what", BAD_MIMICS)
def test_bad_mimic_joints_are_named(what):
    text, fragments = BAD_MIMICS[what]
    with pytest.raises(RobotFileError) as error:
        load_urdf(text)
    for fragment in fragments:
        assert fragment in str(error.value)


def test_mimic_of_a_fixed_joint_is_warned_of():
    with pytest.warns(RobotFileWarning, match="<mimic> of a fixed joint"):
        model = load_urdf(chain("", '<mimic joint="j0"/>', kinds=("revolute", "fixed")))
    assert model.nv == 1


# Placement of the root


def test_root_placement_of_a_fixed_base():
    turned = np.array([1.0, 2, 3, np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
    text = arm('<origin xyz="1 0 0"/>')
    for placement in (turned, tuple(turned), SE3(np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), turned[:3])):
        model = quietly(text, root_placement=placement)
        close(model.frames["base"].placement, turned)
        close(model.joint_placement[0], [1, 3, 3, *turned[3:]])
    close(quietly(text, root_placement=(1, 2, 3)).joint_placement[0], [2, 2, 3, 1, 0, 0, 0])


def test_root_placement_of_a_free_base():
    model = quietly(arm(), free_base=True, root_placement=(1, 2, 3))
    close(model.joint_placement[0], [1, 2, 3, 1, 0, 0, 0])
    close(jaxdyn.frame_pose(model, model.neutral(), "base").translation, [1, 2, 3])


def test_bad_root_placements_are_named():
    text = robot(link("world", ""), link("a"), joint("j", "world", "a"))
    with pytest.raises(RobotFileError, match=r"line 2: link 'world'.*root_placement"):
        load_urdf(text, root_placement=(1, 2, 3))
    with pytest.raises(ShapeError, match=r"root_placement has shape \(4,\)"):
        load_urdf(arm(), root_placement=(1, 2, 3, 4))
    with pytest.raises(ModelError, match=r"root_placement.*unit quaternion"):
        load_urdf(arm(), root_placement=(1, 2, 3, 0, 0, 0, 0))


def test_files_in_packages(tmp_path):
    folder = tmp_path / "arm_description" / "urdf"
    folder.mkdir(parents=True)
    (folder / "arm.urdf").write_text(arm())
    url = "package://arm_description/urdf/arm.urdf"
    for dirs in ([tmp_path], [str(tmp_path)], tmp_path, [tmp_path / "arm_description"], [tmp_path / "x", tmp_path]):
        assert quietly(url, package_dirs=dirs).joint_names == ("wrist",)
    with pytest.raises(RobotFileError, match=r"package://arm_description.*package_dirs"):
        load_urdf(url)
    with pytest.raises(RobotFileError) as error:
        load_urdf("package://hand/urdf/arm.urdf", package_dirs=[tmp_path])
    assert str(tmp_path / "hand" / "urdf" / "arm.urdf") in str(error.value)
    # A file in another folder needs no package.
    assert quietly(folder / "arm.urdf", package_dirs=[tmp_path / "x"]).nv == 1


def test_meshes_are_not_looked_for():
    mesh = '<visual><geometry><mesh filename="package://nowhere/a.stl"/></geometry></visual>'
    assert quietly(arm(child_inside=INERTIAL + mesh)).nv == 1


# Transmissions


def transmission(
    inside: str, joint_name: str = "wrist", kind: str = "transmission_interface/SimpleTransmission"
) -> str:
    return (
        f'<transmission name="t"><type>{kind}</type><joint name="{joint_name}"/>'
        f'<actuator name="m">{inside}</actuator></transmission>'
    )


def with_transmissions(*transmissions: str, kind: str = "continuous") -> str:
    return arm(kind=kind).replace("</robot>", "\n".join(transmissions) + "</robot>")


DRAKE = '<drake:rotor_inertia value="2e-4"/>'
MOTOR = "<motorInertia> 2e-4 </motorInertia>"


@pytest.mark.parametrize(
    ("transmissions", "armature"),
    [
        ([transmission(DRAKE)], 2e-4),
        ([transmission(DRAKE + '<drake:gear_ratio value="-100"/>')], 2.0),
        ([transmission(DRAKE + "<mechanicalReduction>3</mechanicalReduction>")], 2e-4),
        ([transmission(MOTOR)], 2e-4),
        ([transmission("<mechanicalReduction>100</mechanicalReduction>" + MOTOR)], 2.0),
        ([transmission("<motorInertia><![CDATA[2e-4]]></motorInertia>")], 2e-4),
        # Two motors drive one joint.
        ([transmission(DRAKE), transmission(MOTOR)], 4e-4),
        # The transmission has no rotor.
        ([transmission("<mechanicalReduction>100</mechanicalReduction>")], 0.0),
    ],
)
def test_rotor_inertia_is_seen_through_the_gear(transmissions, armature):
    model = quietly(with_transmissions(*transmissions))
    close(model.armature, [armature])
    q = v = np.zeros(1)
    close(jaxdyn.crba(model, q)[0, 0], 1.0 + armature)
    # The kinetic energy at 1 rad/s of the joint includes the rotor's.
    assert float(jaxdyn.kinetic_energy(model, q, v + 1)) == pytest.approx(0.5 + 0.5 * armature, rel=1e-12)


@pytest.mark.parametrize(
    ("inside", "fragments"),
    [
        ("<drake:rotor_inertia/>", ["<drake:rotor_inertia> has no value", "transmission 't'", "line 5"]),
        ('<drake:rotor_inertia value="-1"/>', ["negative value"]),
        ("<motorInertia>x</motorInertia>", ["'x' in <motorInertia>", "a finite number"]),
        ("<motorInertia>-1</motorInertia>", ["negative number of <motorInertia>"]),
        (DRAKE + MOTOR, ["remove one"]),
        (DRAKE + '<drake:gear_ratio value="0"/>', ["<drake:gear_ratio> is zero"]),
        (MOTOR + "<mechanicalReduction>0</mechanicalReduction>", ["<mechanicalReduction> is zero"]),
    ],
)
def test_bad_rotors_are_named(inside, fragments):
    with pytest.raises(RobotFileError) as error:
        load_urdf(with_transmissions(transmission(inside)))
    for fragment in fragments:
        assert fragment in str(error.value)


def test_a_rotor_of_an_unknown_joint():
    with pytest.raises(RobotFileError, match=r"transmission 't'.*no joint named 'wirst': did you mean 'wrist'"):
        load_urdf(with_transmissions(transmission(DRAKE, "wirst")))


@pytest.mark.parametrize(
    "text",
    [
        with_transmissions(transmission(DRAKE, kind="transmission_interface/DifferentialTransmission")),
        with_transmissions(transmission(DRAKE).replace("<joint", '<joint name="other"/><joint')),
        with_transmissions(
            transmission(MOTOR).replace("/><act", "><mechanicalReduction>2</mechanicalReduction></joint><act")
        ),
        with_transmissions(transmission("<rotorInertia>1</rotorInertia>")),
        with_transmissions(transmission(DRAKE), kind="planar"),
        with_transmissions(transmission(DRAKE).replace("transmission", "ros2_control")),
    ],
)
def test_rotors_that_cannot_be_read_are_warned_of(text):
    with pytest.warns(RobotFileWarning, match=r"no part of URDF that is read.*[iI]nertia> \(line 5"):
        model = load_urdf(text)
    assert not np.any(model.armature)


# This library's element


def test_what_the_own_element_says():
    element = '<jaxdyn:joint name="wrist" friction_velocity="0.05" stiffness="3" spring_reference="0.5"/></robot>'
    model = quietly(arm().replace("</robot>", element))
    close(model.friction_velocity, [0.05])
    close(model.stiffness, [3])
    close(model.spring_reference, [0.5])
    element = f'<jaxdyn:joint name="wrist" damping="1 2 3" lower="-1 -2 -{NO_LIMIT}" upper="1 2 {NO_LIMIT}"/></robot>'
    model = quietly(arm(kind="planar").replace("</robot>", element))
    close(model.damping, [1, 2, 3])
    assert list(model.position_lower) == [-1, -2, -np.inf]
    element = '<jaxdyn:joint name="root_joint" armature="1 2 3 4 5 6"/></robot>'
    close(quietly(arm().replace("</robot>", element), free_base=True).armature[:6], [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("element", "fragments"),
    [
        ("<jaxdyn:joint/>", ["<jaxdyn:joint> has no name", "line 5"]),
        ('<jaxdyn:joint name="root_joint"/>', ["no joint named 'root_joint'"]),
        ('<jaxdyn:joint name="wrist" friction="1"/>', ["friction of this joint is given elsewhere"]),
        ('<jaxdyn:joint name="wrist" damper="1"/>', ["unknown attribute 'damper'", "damping"]),
        ('<jaxdyn:joint name="wrist" stiffness="1 2"/>', ["stiffness='1 2'", "a finite number"]),
        ('<jaxdyn:joint name="wrist"/><jaxdyn:joint name="wrist"/>', ["given twice for this joint"]),
    ],
)
def test_bad_own_elements_are_named(element, fragments):
    text = arm('<dynamics friction="1"/>').replace("</robot>", element + "</robot>")
    with pytest.raises(RobotFileError) as error:
        load_urdf(text)
    for fragment in fragments:
        assert fragment in str(error.value)


def test_values_that_the_builder_refuses_name_the_joint():
    element = '<jaxdyn:joint name="wrist" stiffness="-1"/></robot>'
    with pytest.raises(JaxdynError, match="stiffness of joint 'wrist'"):
        load_urdf(arm().replace("</robot>", element))


# Typing errors and inertias


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        (arm('<origin ryp="0 0 1"/>'), "'ryp' in <origin> (line 4, joint 'wrist')"),
        (arm('<limit lower="-1" upper="1" efort="1"/>'), "'efort' in <limit>"),
        (arm(child_inside=INERTIAL.replace("<mass", '<mass unit="g"')), "'unit' in <mass> (line 3, link 'hand')"),
        (arm('<limit lower="-1" upper="1"/>', "continuous"), "'lower' in <limit> of a continuous joint"),
        (arm(child_inside=INERTIAL + '<origin xyz="0 0 0"/>'), "<origin> (line 3, link 'hand')"),
        (arm().replace("<joint", '<joint axis="z"'), "'axis' in <joint>"),
    ],
)
def test_slips_of_the_pen_are_warned_of(text, fragment):
    with pytest.warns(RobotFileWarning) as caught:
        load_urdf(text)
    (warning,) = caught
    assert fragment in str(warning.message)


def test_singular_inertias_are_named_in_one_warning():
    point, rod = inertial(ixx="0", iyy="0", izz="0"), inertial(ixx="3", iyy="0", izz="3")
    text = robot(link("a"), link("b", point), link("c", rod), link("d"), *(joint(f"j{x}", "a", x) for x in "bcd"))
    text = text.replace('name="jb" type="revolute"', 'name="jb" type="prismatic"')
    with pytest.warns(PhysicalityWarning) as caught:
        load_urdf(text)
    (warning,) = caught
    assert "'b' (0, 0, 0 kg m^2); 'c' (0, 3, 3 kg m^2)" in str(warning.message)
    assert "'d'" not in str(warning.message)


@pytest.mark.parametrize(
    ("inside", "fragments"),
    [
        (inertial(izz="-1"), ["-1, 1, 1 kg m^2", "nonnegative"]),
        (inertial(izz="9"), ["1, 1, 9 kg m^2", "exceeds the sum"]),
        (inertial(mass="0"), ["zero mass", "1, 1, 1 kg m^2"]),
    ],
)
def test_impossible_inertias_are_warned_of_with_their_principal_moments(inside, fragments):
    with pytest.warns(PhysicalityWarning) as caught:
        load_urdf(arm(child_inside=inside))
    (warning,) = caught
    for fragment in ("link 'hand'", *fragments):
        assert fragment in str(warning.message)


# Names, white space and character encodings


def test_prefixes_are_other_programs():
    text = arm().replace("<robot", '<robot xmlns:xacro="http://ros.org/wiki/xacro" xmlns:c="urn:c" c:x="1"')
    text = text.replace("<link", '<link c:friction="1"').replace("<parent", '<c:parent/><parent c:link="x"')
    with pytest.warns(RobotFileWarning) as caught:
        model = load_urdf(text)
    assert "each named once (1): <c:parent> (line 4, joint 'wrist')" in str(caught[0].message)
    assert len(caught) == 1
    assert_same(model, load_urdf(arm()))


def test_white_space_of_any_kind_stands_between_numbers():
    model = quietly(arm('<origin xyz="\n 1\t+2.\r\n  .3e1 " rpy=\'&#9;0&#10;0 0\'/><limit lower=" -1 " upper="\n1"/>'))
    close(model.joint_placement[0], [1, 2, 3, 1, 0, 0, 0])
    close([model.position_lower[0], model.position_upper[0]], [-1, 1])


def test_default_type_is_followed():

    with jax.enable_x64(False):
        model = load_urdf(arm())
    assert model.dtype == np.float32


def test_a_model_with_followers_is_a_pytree():
    model = panda()
    doubled = eqx.tree_at(lambda m: m.mimic_multiplier, model, 2 * model.mimic_multiplier)
    assert doubled.spanning_configuration(np.arange(8.0))[-1] == 14


def test_what_is_left_out_is_listed_and_shapes_are_no_reason_to_warn():
    extras = '<collision><geometry><sphere radius="1"/></geometry></collision>'
    text = arm('<limit lower="-1" upper="1" effort="1" velocity="1"/><safety_controller k_velocity="1"/>')
    text = text.replace("</link>", f"{extras}</link>", 1).replace(
        "</robot>", '<gazebo reference="a"/><transmission name="t"/></robot>'
    )
    quietly(text)
    parts = {part.kind: part for part in left_out(text)}
    assert not any(part.acts for part in parts.values())
    assert parts["<gazebo>"].names == ("'a'",)
    assert parts["<transmission>"].names == ("'t'",)
    for kind in ("<collision> of links", "<safety_controller> of joints", "ranges of joints"):
        assert len(parts[kind].names) == 1
    with pytest.warns(
        LeftOutWarning, match=r"no part of URDF that is read, each named once \(1\): <motor> \(line"
    ) as caught:
        load_urdf(text.replace("</robot>", "<motor/></robot>"))
    assert len(caught) == 1
