"""Models written as URDF load again unchanged, and other readers understand the text."""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# (Pinocchio is a compiled module without type stubs.)

import dataclasses
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
from jaxdyn import BodyInertia, JaxdynError, Joint, Mimic, Model, ModelBuilder, ModelError
from jaxdyn.io import RobotFileWarning, load_urdf, to_urdf
from jaxdyn.spatial import quaternion_to_rpy
from tests.robots import all_urdf_files
from tests.same_model import assert_same, rotation
from tests.urdf_texts import INERTIAL, arm, inertial, joint, link, robot

BALL = BodyInertia.sphere(2.0, 0.3, (0.1, 0.2, 0.3))
FILES = all_urdf_files()
REFUSED = (
    "mimics does not exist",
    "the fixed world, which cannot move",
    "nothing moves",
    "has no mass",
    "has no links",
)


KNOWN = {
    *("topology", "joint_placement", "joint_axis", "joint_pitch", "inertial_parameters", "attached_parameters"),
    *("armature", "damping", "friction", "friction_velocity", "stiffness", "spring_reference", "gravity"),
    *("position_lower", "position_upper", "velocity_limit", "effort_limit", "frame_placement"),
    *("mimic_multiplier", "mimic_offset"),
}


def load(text, **options) -> Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_urdf(text, **options)


def again(model: Model, **options) -> Model:
    return load(to_urdf(model), gravity=model.gravity, **options)


CASES = [(x, False) for x in FILES] + [(x, True) for x in list(FILES)[::3]]


@pytest.mark.parametrize(
    ("name", "free_base"), [pytest.param(*x, marks=[pytest.mark.slow] * (i % 4 != 0)) for i, x in enumerate(CASES)]
)
def test_every_robot_goes_out_as_it_came_in(name, free_base):
    try:
        model = load(FILES[name], free_base=free_base)
    except JaxdynError as error:
        # The model zoo tests which files are refused; this test allows only known reasons.
        assert any(reason in str(error) for reason in REFUSED)  # noqa: PT017
        return
    assert_same(again(model, free_base=free_base), model)


def test_enough_robots_are_read():
    # If no robot could be read, the test above would pass without any comparison.
    def read(path) -> bool:
        try:
            return bool(load(path))
        except JaxdynError:
            return False

    assert sum(read(path) for path in list(FILES.values())[::4]) >= 14


def everything() -> Model:
    """Return a robot with every feature of a model that URDF can express."""
    rng = np.random.default_rng(0)

    def placement() -> np.ndarray:
        q = rng.normal(size=4)
        return np.concatenate([rng.normal(size=3), q / np.linalg.norm(q)])

    def inertia() -> BodyInertia:
        L = rng.normal(size=(3, 3))
        Sigma = L @ L.T
        return BodyInertia(abs(rng.normal()) + 0.1, rng.normal(size=3), np.trace(Sigma) * np.eye(3) - Sigma)

    builder = ModelBuilder()
    builder.add_fixed_body("floor", "world", placement(), inertia())
    builder.add_body(
        "ankle",
        "floor",
        Joint("revolute", (1, 2, 3), lower=-1, upper=0.5, velocity_limit=3, effort_limit=7, armature=0.1, damping=0.2),
        placement(),
        inertia(),
    )
    builder.add_body(
        "cart", "ankle", Joint("planar", (0, 3, 4), damping=(1, 2, 3), upper=(1, np.inf, 2)), placement(), inertia()
    )
    builder.add_body(
        "slider", "cart", Joint("prismatic", (0, 0, -2), friction=3, friction_velocity=0.05), placement(), inertia()
    )
    builder.add_fixed_body("tool", "slider", placement(), inertia())
    builder.add_frame("tip", "tool", placement())
    builder.add_body(
        "wheel", "tool", Joint("continuous", (-1, 0.1, 0), velocity_limit=9, stiffness=2), placement(), inertia()
    )
    builder.add_body(
        "finger",
        "wheel",
        Joint("revolute", (0, 1, 0), mimic=Mimic("slider_joint", -1.7, 0.3), armature=0.5),
        placement(),
        inertia(),
    )
    builder.add_body("boat", "world", Joint("free", armature=(1, 2, 3, 4, 5, 6), stiffness=0.1), placement(), inertia())
    builder.add_frame("ceiling", "world", placement())
    builder.add_body("wing", "boat", Joint("revolute", (0, 1, 0), stiffness=3, spring_reference=0.4), placement(), None)
    builder.add_body("flap", "wing", Joint("revolute", (0, 1, 1), armature=1e-3), placement(), inertia())
    builder.add_frame("flap_joint2", "flap")
    return builder.build(gravity=(1, 2, 3))


def test_everything_that_a_model_can_hold():
    model = everything()
    # A new array of `Model` needs support in the writer and an entry here.
    present = {f.name for f in dataclasses.fields(model) if getattr(model, f.name) is not None}
    unset = {name for name in present - {"topology"} if not np.size(getattr(model, name))}
    assert unset == {"joint_pitch"}
    assert present == KNOWN
    # The writer refuses models with these.
    others = {f.name for f in dataclasses.fields(model)} - present
    assert all(name.startswith(("loop_", "coupling_")) for name in others)
    assert_same(again(model), model)


@pytest.mark.parametrize("seed", range(3))
def test_identified_numbers_survive(seed):
    # Every physical array changes, as in a fit, and the structure stays.
    rng = np.random.default_rng(seed)

    def perturb(x):
        if x is None:
            return None
        x = np.asarray(x)
        return jax.device_put(np.where(np.isfinite(x), x * (1 + 0.1 * rng.uniform(size=x.shape)), x))

    model = everything()
    fields = sorted(KNOWN - {"topology", "joint_axis", "attached_parameters"})
    model = eqx.tree_at(lambda m: [getattr(m, f) for f in fields], model, [perturb(getattr(model, f)) for f in fields])
    assert_same(again(model), model)


def test_single_precision():
    model = everything().astype(jnp.float32)
    with jax.enable_x64(False):
        reloaded = again(model)
    assert_same(reloaded, model, tolerance=5e-7)
    # Reading in double precision gives the model's exact numbers, except that merged inertias are summed again.
    wide = again(model)
    assert_same(wide.astype(jnp.float32), model, tolerance=5e-7)
    np.testing.assert_array_equal(wide.damping, np.asarray(model.damping, np.float64))


def test_a_free_base_loads_as_a_free_base():
    model = load_urdf(arm(), free_base=True)
    model = eqx.tree_at(lambda m: m.armature, model, jnp.arange(1.0, 8.0))
    text = to_urdf(model)
    assert 'type="floating"' not in text
    assert_same(load_urdf(text, free_base=True), model)
    with pytest.raises(JaxdynError, match=r"'root_joint'.*free_base=True"):
        load_urdf(text)


@pytest.mark.parametrize("what", ["placed elsewhere", "another name", "with a frame in the world", "two"])
def test_other_free_joints_are_floating(what):
    builder = ModelBuilder()
    placement = (1, 2, 3) if what == "placed elsewhere" else None
    builder.add_body(
        "a", "world", Joint("free", name="base" if what == "another name" else "root_joint"), placement, BALL
    )
    if what == "with a frame in the world":
        builder.add_frame("floor", "world")
    if what == "two":
        builder.add_body("b", "world", Joint("free"), None, BALL)
    model = builder.build()
    assert_same(again(model), model)


def test_links_and_fixed_joints_keep_their_names():
    text = robot(
        link("base"),
        link("arm"),
        link("flange", ""),
        link("tool", inertial(mass="3")),
        joint("shoulder", "base", "arm", kind="continuous"),
        joint("bolts", "arm", "flange", '<origin xyz="1 0 0"/>', kind="fixed"),
        joint("clamp", "flange", "tool", '<origin xyz="0 0 1" rpy="1 2 3"/>', kind="fixed"),
    )
    model = load_urdf(text)
    root = ET.fromstring(to_urdf(model, "Händler"))
    assert root.get("name") == "Händler"
    assert {x.get("name") for x in root.iter("link")} == {"base", "arm", "flange", "tool"}
    assert {x.get("name"): x.get("type") for x in root.iter("joint")} == {
        "shoulder": "continuous",
        "bolts": "fixed",
        "clamp": "fixed",
    }
    masses = {x.get("name"): float(x.find("inertial/mass").get("value")) for x in root.iter("link") if len(x)}
    assert masses == {"base": 2, "arm": 2, "tool": 3}
    reloaded = load_urdf(to_urdf(model))
    for name in ("arm", "tool", "base"):
        np.testing.assert_allclose(reloaded.link_parameters(name), model.link_parameters(name), rtol=1e-12, atol=1e-12)


def test_a_link_without_inertia_of_its_own_stays_so():
    # The body's inertia minus its parts leaves only rounding, which would become a mass, possibly a negative one.
    parts = [link(f"m{i}", inertial(mass=str(0.1 * (i + 1)))) for i in range(7)]
    fixed = [joint(f"f{i}", "b", f"m{i}", f'<origin xyz="0.{i} 0.3 0.7" rpy="0.{i} 1 2"/>', "fixed") for i in range(7)]
    model = load_urdf(robot(link("a", ""), link("b", ""), joint("j", "a", "b", kind="continuous"), *parts, *fixed))
    text = to_urdf(model)
    assert '<link name="b" />' in text
    assert_same(load_urdf(text), model)


def test_less_mass_than_its_parts_is_written_together():
    parts = (link("a"), link("b"), link("tool", inertial(mass="5")), joint("j", "a", "b", kind="continuous"))
    model = load_urdf(robot(*parts, joint("f", "b", "tool", '<origin xyz="1 0 0"/>', "fixed")))
    model = eqx.tree_at(lambda m: m.inertial_parameters, model, 0.5 * model.inertial_parameters)
    with pytest.warns(RobotFileWarning, match="link 'b': its body has 3.5 kg, the links that are fixed to it 5 kg"):
        text = to_urdf(model)
    reloaded = load_urdf(text)
    np.testing.assert_allclose(reloaded.inertial_parameters, model.inertial_parameters, rtol=1e-12)
    assert set(reloaded.frames) == set(model.frames)


# Other readers


def test_what_other_readers_pass_over_is_named():
    joints = [Joint("revolute", (0, 1, 0), name=f"j{k}", armature=k, stiffness=5.0 * (k == 1)) for k in range(3)]
    builder = ModelBuilder()
    for k, each in enumerate(joints):
        builder.add_body(f"b{k}", f"b{k - 1}" if k else "world", each, (1, 0, 0), BALL)
    model = builder.build(gravity=(0, 0, -1.62))
    with pytest.warns(RobotFileWarning, match="not all readers") as caught:
        text = to_urdf(model)
    (warning,) = caught
    for fragment in (
        "in <transmission>, which Drake reads, but MuJoCo (use to_mjcf) and Pinocchio do not: armature of joint 'j1', ",
        "in <jaxdyn:joint>, which other readers pass over: stiffness of joint 'j1'",
        "gravity [0.0, 0.0, -1.62] m/s^2",
    ):
        assert fragment in str(warning.message)
    # It is so.
    m, parsed = mujoco.MjModel.from_xml_string(text), pin.buildModelFromXML(text)
    assert not m.dof_armature.any()
    assert not parsed.armature.any()
    again = mujoco.MjModel.from_xml_string(jaxdyn.to_mjcf(model))
    np.testing.assert_allclose(again.dof_armature, model.armature)
    plain = dataclasses.replace(model.with_armature(0.0), stiffness=jnp.zeros(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_urdf(dataclasses.replace(plain, gravity=jnp.array([0, 0, -9.81])))


def test_pinocchio_reads_the_same_motion():
    # Mimic joints are left out because Pinocchio treats them as independent, and planar joints because their velocities
    # have moving axes in Pinocchio.
    builder = ModelBuilder()
    builder.add_fixed_body("floor", "world", (1, 2, 3), BALL)
    builder.add_body("a", "floor", Joint("revolute", (1, 2, 3), damping=1.0), (0, 0, 1), BALL)
    builder.add_fixed_body("b", "a", (0, 1, 0, 0.5, 0.5, 0.5, 0.5), BALL)
    builder.add_body("c", "b", Joint("prismatic", (0, 1, -1), lower=-1, upper=2), (1, 0, 0, 0.6, 0, 0.8, 0), BALL)
    builder.add_body("d", "c", Joint("revolute", (0, 0, 1), effort_limit=5), (1, 0, 0), BALL)
    model = builder.build()
    parsed = pin.buildModelFromXML(to_urdf(model))
    assert list(parsed.names)[1:] == list(model.joint_names)
    np.testing.assert_allclose(parsed.lowerPositionLimit[1], -1)
    np.testing.assert_allclose(parsed.upperEffortLimit[2], 5)
    np.testing.assert_allclose(parsed.damping[0], 1)
    q, v, a = np.random.default_rng(0).normal(size=(3, model.nv))
    expected = pin.rnea(parsed, parsed.createData(), q, v, a)
    np.testing.assert_allclose(jaxdyn.rnea(model, q, v, a, joint_friction=False), expected, rtol=1e-12)


def test_mujoco_reads_the_same_mass():
    model = jaxdyn.samples.arm()
    spec = mujoco.MjModel.from_xml_string(to_urdf(model))
    assert [spec.joint(i).name for i in range(spec.njnt)] == list(model.joint_names)
    np.testing.assert_allclose(sum(spec.body_mass), model.mass.sum(), rtol=1e-9)


# Rotations

ANGLES = [0.0, 1e-9, -1e-9, 0.3, np.pi / 2, np.nextafter(np.pi / 2, 0), np.pi / 2 + 1e-9, np.pi / 2 - 1e-8, np.pi, 3.0]


@pytest.mark.parametrize(
    "pitch",
    [
        pytest.param(sign * angle, marks=[pytest.mark.slow] * (sign == (-1) ** k))
        for k, angle in enumerate(ANGLES)
        for sign in (1, -1)
    ],
)
def test_roll_pitch_and_yaw_give_the_rotation_again(pitch):
    for roll in (0.0, 0.7, -2.0, np.pi):
        for yaw in (0.0, -0.4, 1.9, -np.pi):
            text = arm(f'<origin rpy="{float(roll)!r} {float(pitch)!r} {float(yaw)!r}"/>', "continuous")
            model = load_urdf(text)
            quaternion = np.asarray(model.joint_placement[0, 3:])
            angles = " ".join(repr(float(x)) for x in quaternion_to_rpy(quaternion))
            back = load_urdf(arm(f'<origin rpy="{angles}"/>', "continuous")).joint_placement[0, 3:]
            np.testing.assert_allclose(rotation(np.asarray(back)), rotation(quaternion), atol=2e-15)


def test_random_rotations_and_quaternions_that_are_not_unit():
    rng = np.random.default_rng(0)
    axes = np.concatenate([np.eye(4), -np.eye(4), np.array([[1, 0, s, 0] for s in (1, -1)]), rng.normal(size=(50, 4))])
    for q in axes:
        model = load_urdf(arm(kind="continuous"))
        model = eqx.tree_at(lambda m: m.joint_placement, model, jnp.asarray([[0, 0, 0, *q]]))
        back = again(model).joint_placement[0, 3:]
        np.testing.assert_allclose(rotation(np.asarray(back)), rotation(q), atol=2e-15)


# Models that cannot be written


@pytest.mark.parametrize(
    "bad",
    [
        Joint("helical", pitch=0.1),
        Joint("cylindrical"),
        Joint("universal", axis=(1, 0, 0), axis2=(0, 1, 0)),
        Joint("ball"),
    ],
    ids=lambda x: x.type,
)
def test_joints_that_urdf_does_not_have(bad):
    model = ModelBuilder().add_body("a", "world", Joint(), None, BALL).add_body("b", "a", bad, (0, 0, 1), BALL).build()
    with pytest.raises(ModelError, match=rf"'b_joint' \({bad.type}\)"):
        to_urdf(model)


def replace_field(field: str, value) -> Model:
    model = load_urdf(arm('<limit lower="-1" upper="1"/>'))
    return eqx.tree_at(lambda m: getattr(m, field), model, jnp.asarray(value))


@pytest.mark.parametrize(
    ("make", "fragments"),
    [
        (lambda: replace_field("armature", [[0.0], [0.0]]), ["armature", r"batch axes \(2,\)", "one element"]),
        (lambda: replace_field("damping", [np.nan]), ["damping of joint 'wrist'", "nan"]),
        (lambda: replace_field("joint_placement", [[np.inf, 0, 0, 1, 0, 0, 0]]), ["joint 'wrist'", "inf"]),
        (lambda: replace_field("friction", [-0.1]), ["friction of joint 'wrist' is negative", "-0.1"]),
        (lambda: replace_field("position_lower", [2.0]), ["joint 'wrist' has the limits", "swap"]),
        (lambda: replace_field("position_lower", [np.nan]), ["lower of joint 'wrist'", "nan"]),
        (lambda: replace_field("inertial_parameters", [[-1.0] + [0] * 9]), ["link 'hand'", "negative mass -1 kg"]),
        (lambda: replace_field("inertial_parameters", [[0.0, 1] + [0] * 8]), ["link 'hand'", "first moment"]),
    ],
)
def test_what_cannot_be_written_is_named(make, fragments):
    model = make()
    for fragment in fragments:
        with pytest.raises(ModelError, match=fragment):
            to_urdf(model)


def test_planar_joints_with_axes_of_their_own():
    model = load_urdf(arm('<axis xyz="0 1 2"/>', "planar"))
    turned = jnp.asarray([model.joint_axis[1], -model.joint_axis[0], model.joint_axis[2]])
    with pytest.raises(ModelError, match="planar joint 'wrist' has the axes"):
        to_urdf(eqx.tree_at(lambda m: m.joint_axis, model, turned))


def test_limits_of_continuous_joints():
    model = load_urdf(arm(kind="continuous"))
    with pytest.raises(ModelError, match="'wrist' is continuous, but has limits"):
        to_urdf(eqx.tree_at(lambda m: m.position_upper, model, jnp.ones(1)))


@pytest.mark.parametrize("name", ["", None, 3, "a\0b", "a\ud800", "a\x1b"])
def test_bad_names_of_the_robot(name):
    with pytest.raises(ModelError, match="name"):
        to_urdf(load_urdf(arm()), name)


@pytest.mark.parametrize("name", ["a<b>&\"'", "手首", "a\tb\nc\rd", " ", "x" * 5000, "world_fixed"])
def test_any_name_that_xml_can_hold(name):
    model = (
        ModelBuilder().add_body(name, "world", Joint(name=f"{name}!"), None, BALL).add_frame(f"{name}?", name).build()
    )
    assert_same(again(model), model)


def test_names_that_are_taken_by_joints():
    builder = ModelBuilder().add_body("a", "world", Joint(name="tool_fixed"), None, BALL)
    builder.add_body("b", "a", Joint(name="tool"), (0, 0, 1), BALL)
    builder.add_fixed_body("tool", "b", (0, 0, 1), BALL).add_frame("tool_fixed", "tool")
    model = builder.build()
    assert_same(again(model), model)


def test_the_text_is_a_file(tmp_path):
    path = tmp_path / "robot.urdf"
    model = load_urdf(arm().replace("wrist", "手首"))
    path.write_text(to_urdf(model), encoding="utf-8")
    assert_same(load_urdf(path), model)
    assert INERTIAL
