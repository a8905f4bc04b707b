"""ModelBuilder: the order of bodies, merging, errors that name body and joint, warnings of unphysical inertias."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import (
    SE3,
    BodyInertia,
    JaxdynError,
    Joint,
    Model,
    ModelBuilder,
    ModelError,
    PhysicalityWarning,
    ShapeError,
    UnknownNameError,
)
from jaxdyn.model import FRICTION_VELOCITY, STANDARD_GRAVITY

BALL = BodyInertia.sphere(2.0, 0.1)
QUARTER = np.sqrt(0.5)


def small_tree(scale: float = 1.0) -> Model:
    """A body with two children, one of which has a child. They are not added in depth-first order."""
    builder = ModelBuilder()
    builder.add_body("base", joint=Joint("free"), inertia=BodyInertia.box(3.0 * scale, (1, 2, 3)))
    builder.add_body("left", "base", Joint("revolute", axis=(0, 2, 0), lower=-1, upper=2), (0, 1, 0), BALL)
    builder.add_body("right", "base", Joint("prismatic", axis=(1, 0, 0), damping=0.5 * scale), (0, -1, 0), BALL)
    builder.add_body("hand", "left", Joint("ball", name="wrist", armature=(0.1, 0.2, 0.3)), (0, 0, -1), BALL)
    builder.add_body("screw", "right", Joint("helical", pitch=0.1 * scale), None, BALL)
    return builder.build()


# NumPy references


def quaternion_matrix(q) -> np.ndarray:
    w, v = q[0], np.asarray(q[1:])
    V = np.cross(np.eye(3), v)
    return np.eye(3) + 2 * w * V + 2 * V @ V


def homogeneous(pose) -> np.ndarray:
    pose = np.asarray(pose)
    M = np.eye(4)
    M[:3, :3], M[:3, 3] = quaternion_matrix(pose[3:]), pose[:3]
    return M


def pseudo_inertia(parameters) -> np.ndarray:
    """The matrix `[4, 4]` of second moments `int (x, 1)(x, 1)^T dm`, which a pose transforms by congruence."""
    m, x, y, z, xx, xy, yy, xz, yz, zz = np.asarray(parameters, np.float64)
    J = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    out = np.empty((4, 4))
    out[:3, :3] = 0.5 * np.trace(J) * np.eye(3) - J
    out[:3, 3] = out[3, :3] = x, y, z
    out[3, 3] = m
    return out


def moved(parameters, pose) -> np.ndarray:
    X = homogeneous(pose)
    return X @ pseudo_inertia(parameters) @ X.T


# Order, names, sizes


def test_depth_first_order():
    model = small_tree()
    assert model.body_names == ("base", "left", "hand", "right", "screw")
    assert model.joint_names == ("base_joint", "left_joint", "wrist", "right_joint", "screw_joint")
    assert model.topology.parents == (-1, 0, 1, 0, 3)
    assert model.topology.joint_types == ("free", "revolute", "ball", "prismatic", "helical")
    assert (model.nq, model.nv, model.nb) == (7 + 1 + 4 + 1 + 1, 6 + 1 + 3 + 1 + 1, 5)


def test_children_keep_their_order_through_fixed_bodies():
    """A fixed body between parent and child does not change the order."""
    builder = ModelBuilder()
    builder.add_body("a", inertia=BALL)
    builder.add_fixed_body("plate", "a")
    builder.add_body("b", "plate", inertia=BALL)
    builder.add_body("c", "a", inertia=BALL)
    builder.add_body("d", "plate", inertia=BALL)
    builder.add_body("e", "b", inertia=BALL)
    assert builder.build().body_names == ("a", "b", "e", "c", "d")


def test_several_roots():
    builder = ModelBuilder().add_body("a", inertia=BALL).add_body("b", inertia=BALL).add_body("c", "a", inertia=BALL)
    model = builder.build()
    assert model.body_names == ("a", "c", "b")
    assert model.topology.parents == (-1, 0, -1)


def test_values_stand_where_the_names_say():
    model = small_tree(2.0)
    np.testing.assert_allclose(model.joint_axis, [(0, 1, 0), (1, 0, 0), (0, 0, 1)])
    np.testing.assert_allclose(model.joint_pitch, [0.2])
    np.testing.assert_allclose(model.damping[model.v_index("right_joint")], [1.0])
    np.testing.assert_allclose(model.armature[model.v_index("wrist")], [0.1, 0.2, 0.3])
    assert np.count_nonzero(model.damping) == 1
    assert np.count_nonzero(model.armature) == 3
    np.testing.assert_allclose(model.position_lower[model.q_index("left_joint")], [-1])
    np.testing.assert_allclose(model.position_upper[model.q_index("left_joint")], [2])
    assert np.isinf(model.position_upper).sum() == model.nq - 1
    np.testing.assert_allclose(model.friction_velocity, FRICTION_VELOCITY)
    np.testing.assert_allclose(model.joint_placement[:, :3], [(0, 0, 0), (0, 1, 0), (0, 0, -1), (0, -1, 0), (0, 0, 0)])
    np.testing.assert_allclose(model.joint_placement[:, 3:], [(1, 0, 0, 0)] * 5)
    np.testing.assert_allclose(model.mass, [6, 2, 2, 2, 2])


def test_axes_of_compound_joints():
    builder = ModelBuilder()
    builder.add_body("u", joint=Joint("universal", axis=(2, 0, 0), axis2=(0, 3, 0)), inertia=BALL)
    builder.add_body("c", joint=Joint("cylindrical", axis=(0, 0, -2)), inertia=BALL)
    builder.add_body("p", joint=Joint("planar"), inertia=BALL)
    rng = np.random.default_rng(0)
    normals = [*rng.normal(size=(5, 3)), (0, 0, -1), (1e-9, 0, -1)]
    for k, normal in enumerate(normals):
        builder.add_body(f"p{k}", joint=Joint("planar", axis=normal), inertia=BALL)
    axes = np.asarray(builder.build().joint_axis)
    np.testing.assert_allclose(axes[:4], [(1, 0, 0), (0, 1, 0), (0, 0, -1), (0, 0, -1)])
    np.testing.assert_allclose(axes[4:7], np.eye(3))
    for k, normal in enumerate(normals):
        frame = axes[7 + 3 * k : 10 + 3 * k]
        np.testing.assert_allclose(frame[2], np.array(normal) / np.linalg.norm(normal))
        np.testing.assert_allclose(frame @ frame.T, np.eye(3), atol=1e-7)
        np.testing.assert_allclose(np.linalg.det(frame), 1, atol=1e-7)


def test_gravity():
    builder = ModelBuilder().add_body("a", inertia=BALL)
    np.testing.assert_allclose(builder.build().gravity, STANDARD_GRAVITY)
    np.testing.assert_allclose(builder.build(gravity=(1, 2, 3)).gravity, (1, 2, 3))
    assert jnp.issubdtype(builder.build(gravity=(0, 0, -10)).gravity.dtype, jnp.floating)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SE3.from_rpy((0.0, 0.0, np.pi / 2), (1.0, 2.0, 3.0)),
        lambda: (1, 2, 3, QUARTER, 0, 0, QUARTER),
        lambda: np.array([1, 2, 3, QUARTER, 0, 0, QUARTER]) * np.array([1, 1, 1, 1.0005, 1.0005, 1.0005, 1.0005]),
    ],
    ids=["SE3", "vector", "nearly unit"],
)
def test_forms_of_a_placement(make):
    model = ModelBuilder().add_body("a", placement=make(), inertia=BALL).build()
    np.testing.assert_allclose(model.joint_placement[0], (1, 2, 3, QUARTER, 0, 0, QUARTER), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(model.joint_placement[0, 3:]), 1, rtol=1e-6)


def test_builder_can_go_on_after_build():
    builder = ModelBuilder().add_body("a", inertia=BALL)
    first = builder.build()
    builder.add_body("b", "a", inertia=BALL).add_fixed_body("load", "a", inertia=BALL)
    second = builder.build()
    assert first.nb == 1
    assert second.nb == 2
    np.testing.assert_allclose(first.mass, [2])
    np.testing.assert_allclose(builder.build().inertial_parameters, second.inertial_parameters)


# Fixed bodies


PLATE = BodyInertia(1.5, (0.1, -0.2, 0.05), np.diag([0.02, 0.03, 0.04]))
TOOL = BodyInertia(0.7, (0.0, 0.3, 0.1), [[0.02, 0.001, 0], [0.001, 0.02, 0.002], [0, 0.002, 0.01]])
AT_PLATE = np.array([0.3, -0.1, 0.2, *(np.array([0.8, 0.1, -0.3, 0.4]) / np.sqrt(0.9))])
AT_TOOL = np.array([-0.2, 0.5, 0.1, *(np.array([-0.3, 0.5, 0.6, 0.2]) / np.sqrt(0.74))])
AT_CAMERA = np.array([0, 0, 0.1, 0, 1, 0, 0])
AT_CHILD = np.array([0.0, 0.2, 0.0, *(np.array([1, 1, 0, 0]) * QUARTER)])


@pytest.fixture(scope="module")
def merged() -> Model:
    builder = ModelBuilder()
    builder.add_fixed_body("pedestal", "world", (0, 0, 1), BodyInertia.box(50, (1, 1, 1)))
    builder.add_body("arm", "pedestal", Joint(), (0, 0, 0.5), BALL)
    builder.add_fixed_body("plate", "arm", AT_PLATE, PLATE)
    builder.add_fixed_body("tool", "plate", AT_TOOL, TOOL)
    builder.add_frame("camera", "tool", AT_CAMERA)
    builder.add_frame("origin", "world")
    builder.add_body("child", "tool", Joint(), AT_CHILD, BALL)
    return builder.build()


def test_inertias_of_fixed_bodies_are_merged(merged):
    """The merged inertias equal sums of second moments moved by 4x4 matrices; the pedestal adds to no moving body."""
    ball = pseudo_inertia(BALL.parameters())
    at_tool = homogeneous(AT_PLATE) @ homogeneous(AT_TOOL)
    total = ball + moved(PLATE.parameters(), AT_PLATE) + at_tool @ pseudo_inertia(TOOL.parameters()) @ at_tool.T
    np.testing.assert_allclose(pseudo_inertia(merged.inertial_parameters[0]), total, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(merged.inertial_parameters[1], BALL.parameters(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(merged.mass, [2 + 1.5 + 0.7, 2], rtol=1e-6)


def test_fixed_bodies_stay_as_frames(merged):
    at_tool = homogeneous(AT_PLATE) @ homogeneous(AT_TOOL)
    expected = {
        "arm": ("arm", np.eye(4)),
        "child": ("child", np.eye(4)),
        "plate": ("arm", homogeneous(AT_PLATE)),
        "tool": ("arm", at_tool),
        "camera": ("arm", at_tool @ homogeneous(AT_CAMERA)),
        "pedestal": ("world", homogeneous((0, 0, 1, 1, 0, 0, 0))),
        "origin": ("world", np.eye(4)),
    }
    frames = merged.frames
    assert set(frames) == set(expected)
    for name, (body, pose) in expected.items():
        assert frames[name].name == name
        assert frames[name].body == body
        np.testing.assert_allclose(homogeneous(frames[name].placement), pose, atol=1e-6)


def test_children_of_fixed_bodies_are_placed_in_the_moving_one(merged):
    assert merged.topology.parents == (-1, 0)
    expected = homogeneous(AT_PLATE) @ homogeneous(AT_TOOL) @ homogeneous(AT_CHILD)
    np.testing.assert_allclose(homogeneous(merged.joint_placement[1]), expected, atol=1e-6)
    np.testing.assert_allclose(merged.joint_placement[0], (0, 0, 1.5, 1, 0, 0, 0), atol=1e-6)


@pytest.mark.parametrize(
    ("link", "inertia"),
    [("arm", BALL), ("plate", PLATE), ("tool", TOOL), ("child", BALL), ("pedestal", BodyInertia.box(50, (1, 1, 1)))],
)
def test_link_parameters_recover_what_was_given(merged, link, inertia):
    np.testing.assert_allclose(merged.link_parameters(link), inertia.parameters(), rtol=1e-5, atol=2e-6)


def test_link_parameters_of_unknown_links(merged):
    with pytest.raises(UnknownNameError, match=r"'plat'|'arn'.*'arm'"):
        merged.link_parameters("arn")
    with pytest.raises(UnknownNameError, match="camera"):
        merged.link_parameters("camera")


# Errors


def model_of_one_body(joint: Joint | None = None, **arguments: Any) -> Model:
    arguments = {"inertia": BALL} | arguments
    return ModelBuilder().add_body("forearm", joint=joint, **arguments).build()


@pytest.mark.parametrize(
    ("joint", "error", "words"),
    [
        (Joint("hinge", name="elbow"), ModelError, ["elbow", "forearm", "hinge", "revolute"]),
        (Joint("fixed", name="elbow"), ModelError, ["elbow", "forearm", "fixed"]),
        (Joint(axis=(0, 0, 0), name="elbow"), ModelError, ["elbow", "forearm", "axis"]),
        (Joint(axis=(0, np.nan, 1), name="elbow"), ModelError, ["elbow", "forearm", "axis", "nan"]),
        (Joint(axis=(0, 1), name="elbow"), ShapeError, ["elbow", "forearm", "axis", "(2,)"]),
        (Joint("universal", name="elbow"), ModelError, ["elbow", "forearm", "axis2"]),
        (Joint(axis2=(1, 0, 0), name="elbow"), ModelError, ["elbow", "forearm", "axis2", "revolute"]),
        (Joint("universal", axis=(1, 0, 0), axis2=(-2, 0, 0), name="elbow"), ModelError, ["elbow", "parallel"]),
        (Joint("universal", axis2=(0, 0, 0), name="elbow"), ModelError, ["elbow", "axis2"]),
        (Joint("universal", axis2=(0, 1), name="elbow"), ShapeError, ["elbow", "axis2", "(2,)"]),
        (Joint("helical", name="elbow"), ModelError, ["elbow", "forearm", "pitch"]),
        (Joint(pitch=0.1, name="elbow"), ModelError, ["elbow", "forearm", "pitch", "revolute"]),
        (Joint("helical", pitch=np.nan, name="elbow"), ModelError, ["elbow", "forearm", "pitch"]),
        (Joint(lower=np.nan, name="elbow"), ModelError, ["lower", "elbow", "forearm", "NaN"]),
        (Joint(upper=np.nan, name="elbow"), ModelError, ["upper", "elbow", "forearm", "NaN"]),
        (Joint(lower=1.0, upper=-1.0, name="elbow"), ModelError, ["elbow", "lower", "upper"]),
        (Joint(velocity_limit=np.nan, name="elbow"), ModelError, ["velocity_limit", "elbow", "NaN"]),
        (Joint(velocity_limit=-1.0, name="elbow"), ModelError, ["velocity_limit", "elbow", "negative"]),
        (Joint(effort_limit=-1.0, name="elbow"), ModelError, ["effort_limit", "elbow", "negative"]),
        (Joint(damping=-1.0, name="elbow"), ModelError, ["damping", "elbow", "forearm", "negative"]),
        (Joint(damping=np.inf, name="elbow"), ModelError, ["damping", "elbow", "finite"]),
        (Joint(friction=-1.0, name="elbow"), ModelError, ["friction", "elbow", "negative"]),
        (Joint(armature=-1.0, name="elbow"), ModelError, ["armature", "elbow", "negative"]),
        (Joint(friction_velocity=0.0, name="elbow"), ModelError, ["friction_velocity", "elbow", "positive"]),
        (Joint(damping=(1.0, 2.0), name="elbow"), ShapeError, ["damping", "elbow", "(2,)", "[1]"]),
        (Joint("ball", upper=(1.0, 2.0, 3.0), name="elbow"), ShapeError, ["upper", "elbow", "(3,)", "[4]"]),
        (Joint("continuous", lower=-1.0, name="elbow"), ModelError, ["elbow", "continuous", "lower"]),
    ],
    ids=lambda a: f"{a.type}" if isinstance(a, Joint) else None,
)
def test_errors_of_joints_name_joint_and_body(joint, error, words):
    with pytest.raises(error) as caught:
        model_of_one_body(joint)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"placement": (0, 0)}, ShapeError, ["placement", "forearm", "(2,)"]),
        ({"placement": (0, 0, 0, 1, 1, 0, 0)}, ModelError, ["placement", "forearm", "unit quaternion"]),
        ({"placement": (0, 0, 0, 0, 0, 0, 0)}, ModelError, ["placement", "forearm", "unit quaternion"]),
        ({"placement": (0, np.nan, 0)}, ModelError, ["placement", "forearm"]),
        ({"placement": SE3(jnp.eye(3), jnp.full(3, jnp.nan))}, ModelError, ["placement", "forearm"]),
        ({"placement": SE3(2 * jnp.eye(3), jnp.zeros(3))}, JaxdynError, ["placement", "forearm", "rotation"]),
        ({"placement": SE3(jnp.eye(3), jnp.zeros((2, 3)))}, JaxdynError, ["placement", "forearm"]),
        ({"inertia": np.zeros(9)}, ShapeError, ["inertia", "forearm", "(9,)"]),
        ({"inertia": np.array([-1.0] + [0] * 9)}, ModelError, ["inertia", "forearm", "negative mass"]),
        ({"inertia": np.array([1.0, np.inf] + [0] * 8)}, ModelError, ["inertia", "forearm", "finite"]),
        ({"parent": "wrld"}, UnknownNameError, ["forearm", "wrld", "did you mean 'world'"]),
        ({"parent": "nothing like it"}, UnknownNameError, ["forearm", "nothing like it", "world"]),
    ],
)
@pytest.mark.parametrize("add", ["add_body", "add_fixed_body"])
def test_errors_of_bodies_name_the_body(add, arguments, error, words):
    with pytest.raises(error) as caught:
        getattr(ModelBuilder(), add)("forearm", **arguments)
    for word in words:
        assert word in str(caught.value)


def test_error_of_an_unknown_parent_suggests_the_nearest():
    builder = ModelBuilder().add_body("upper_arm", inertia=BALL).add_fixed_body("flange", "upper_arm")
    with pytest.raises(UnknownNameError, match="no parent named 'uper_arm': did you mean 'upper_arm'"):
        builder.add_body("forearm", "uper_arm")
    with pytest.raises(UnknownNameError, match="'flang': did you mean 'flange'"):
        builder.add_frame("tip", "flang")
    with pytest.raises(KeyError):
        builder.add_body("forearm", "uper_arm")


@pytest.mark.parametrize("name", ["world", "upper", "plate", "tip"])
@pytest.mark.parametrize("add", ["add_body", "add_fixed_body", "add_frame"])
def test_duplicate_names(add, name):
    builder = ModelBuilder().add_body("upper", inertia=BALL).add_fixed_body("plate", "upper").add_frame("tip", "upper")
    with pytest.raises(ModelError, match=f"already a body or frame named '{name}'"):
        getattr(builder, add)(name, "upper")


@pytest.mark.parametrize("name", ["", None, 3])
def test_names_are_strings(name):
    with pytest.raises(ModelError, match="non-empty string"):
        ModelBuilder().add_body(name)


def test_duplicate_joint_names():
    builder = ModelBuilder().add_body("upper", joint=Joint(name="elbow"), inertia=BALL)
    with pytest.raises(ModelError, match=r"'lower'.*joint named 'elbow'"):
        builder.add_body("lower", "upper", Joint(name="elbow"), inertia=BALL)
    # A given name must not equal a generated name.
    builder.add_body("lower", "upper", inertia=BALL)
    with pytest.raises(ModelError, match=r"'tip'.*joint named 'lower_joint'"):
        builder.add_body("tip", "lower", Joint(name="lower_joint"), inertia=BALL)


def test_a_refused_body_leaves_no_trace():
    builder = ModelBuilder().add_body("upper", inertia=BALL)
    with pytest.raises(ModelError):
        builder.add_body("lower", "upper", Joint("hinge"))
    builder.add_body("lower", "upper", inertia=BALL)
    assert builder.build().body_names == ("upper", "lower")


@pytest.mark.parametrize("make", [ModelBuilder, lambda: ModelBuilder().add_fixed_body("table", inertia=BALL)])
def test_model_without_moving_bodies(make):
    with pytest.raises(ModelError, match="no moving body"):
        make().build()


@pytest.mark.parametrize(
    ("gravity", "error"), [((0, 0), ShapeError), (np.zeros((2, 3)), ShapeError), ((0, 0, np.nan), ModelError)]
)
def test_bad_gravity(gravity, error):
    with pytest.raises(error, match="gravity"):
        ModelBuilder().add_body("a", inertia=BALL).build(gravity=gravity)


# Bodies without inertia against a motion of their joint


POINT_ON_AXIS = BodyInertia(1.0, (0, 0, 0.5))


@pytest.mark.parametrize(
    ("joint", "inertia", "words"),
    [
        (Joint(name="elbow"), None, "no mass"),
        (Joint("free", name="elbow"), None, "no mass"),
        (Joint(name="elbow"), POINT_ON_AXIS, "no inertia against the motion"),
        (Joint("ball", name="elbow"), BodyInertia(1.0, (0, 0, 0.5)), "no inertia against the motion"),
        (Joint("free", name="elbow"), BodyInertia(1.0), "no inertia against the motion"),
        (Joint("universal", axis2=(0, 1, 0), name="elbow"), POINT_ON_AXIS, "no inertia against the motion"),
        (Joint("cylindrical", name="elbow"), POINT_ON_AXIS, "no inertia against the motion"),
    ],
)
def test_a_leaf_that_nothing_resists(joint, inertia, words):
    with pytest.raises(ModelError, match=f"(?s)forearm.*elbow.*{words}.*armature"):
        model_of_one_body(joint, inertia=inertia)


@pytest.mark.parametrize(
    ("joint", "inertia"),
    [
        (Joint(axis=(1, 0, 0)), POINT_ON_AXIS),
        (Joint(armature=0.1), None),
        (Joint(armature=0.1), POINT_ON_AXIS),
        (Joint("prismatic"), BodyInertia(1.0)),
        (Joint("helical", pitch=0.1), POINT_ON_AXIS),
        (Joint("ball", armature=(0, 0, 1e-3)), POINT_ON_AXIS),
        (Joint(), BodyInertia.sphere(1e-6, 1e-3)),
        (Joint("free"), BodyInertia.box(1000, (10, 10, 10), center_of_mass=(3, 4, 5))),
    ],
)
def test_a_leaf_that_something_resists(joint, inertia):
    assert model_of_one_body(joint, inertia=inertia).nb == 1


def test_a_free_joint_does_not_give_its_mass_to_the_body_before_it():
    def chain(joint):
        return ModelBuilder().add_body("a", joint=Joint("free")).add_body("b", "a", joint, inertia=BALL)

    with pytest.raises(ModelError, match=r"'a'.*no mass, and nothing with mass is attached to it, except by a free"):
        chain(Joint("free")).build()
    assert chain(Joint("free", armature=0.1)).build().nb == 2


def test_massless_bodies_inside_a_chain_are_fine():
    builder = ModelBuilder().add_body("a").add_body("b", "a", Joint(axis=(0, 1, 0)), inertia=BALL)
    assert builder.build().nb == 2
    builder = ModelBuilder().add_body("a").add_fixed_body("load", "a", inertia=BALL)
    assert builder.build().nb == 1


def test_a_massless_leaf_behind_others_is_named():
    builder = ModelBuilder().add_body("a", inertia=BALL).add_body("b", "a", inertia=BALL).add_body("finger", "b")
    with pytest.raises(ModelError, match=r"'finger'.*'finger_joint'"):
        builder.build()


# Unphysical inertias


def parameters(moments, mass=1.0, com=(0.0, 0.0, 0.0)) -> np.ndarray:
    return BodyInertia(mass, com, moments).parameters()


@pytest.mark.parametrize(
    ("inertia", "words"),
    [
        (BodyInertia(1.0, (0, 0, 0), (1.0, 1.0, 2.1)), "exceeds the sum"),
        (BodyInertia(1.0, (0.2, 0.3, -0.4), (3.0, 1.0, 1.0)), "exceeds the sum"),
        (BodyInertia(1.0, (1, 2, 3), (-0.1, 1.0, 1.0)), "not all are nonnegative"),
        (BodyInertia(1.0, (1, 2, 3), [[1, 2, 0], [2, 1, 0], [0, 0, 2]]), "not all are nonnegative"),
        (np.array([0.0, 0, 0, 0, 1, 0, 1, 0, 0, 1]), "zero mass"),
        (np.array([0.0, 0.1, 0, 0, 0, 0, 0, 0, 0, 0]), "zero mass"),
    ],
)
@pytest.mark.parametrize("fixed", [False, True])
def test_unphysical_inertias_warn_and_name_the_link(inertia, words, fixed):
    builder = ModelBuilder().add_body("arm", inertia=BALL)
    if fixed:
        builder.add_fixed_body("gripper", "arm", (1, 0, 0), inertia)
    else:
        builder.add_body("gripper", "arm", Joint(armature=1.0), inertia=inertia)
    with pytest.warns(PhysicalityWarning, match=f"(?s)'gripper'.*{words}") as caught:
        builder.build()
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "inertia",
    [
        BodyInertia(1.0, (0, 0, 0), (1.0, 1.0, 2.0)),
        BodyInertia(1.0, (5, 6, 7), (0.0, 1.0, 1.0)),
        BodyInertia(1.0, (1, 2, 3)),
        BodyInertia.box(1.0, (1, 0, 0)),
        BodyInertia.rod(1.0, (0, 0, 0), (1, 2, 3)),
        np.round(BodyInertia(1.3, (0.1, 0.2, 0.3), (0.2, 0.3, 0.5)).parameters(), 8),
        np.zeros(10),
    ],
)
def test_physical_inertias_do_not_warn(inertia):
    builder = ModelBuilder().add_body("arm", inertia=BALL)
    builder.add_body("gripper", "arm", Joint(armature=1.0), inertia=inertia)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        builder.build()


# BodyInertia


def upper(J: np.ndarray) -> np.ndarray:
    return J[[0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]]


def direct(points: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """The ten parameters of a cloud of point masses."""
    J = np.einsum("n,nij->ij", masses, np.einsum("ni,ni,jk->njk", points, points, np.eye(3)))
    J -= np.einsum("n,ni,nj->ij", masses, points, points)
    return np.array([masses.sum(), *(masses @ points), *upper(J)])


def gauss(size: float) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights (of sum 1) of a quadrature that is exact for second moments of an edge of length `size`."""
    x, w = np.polynomial.legendre.leggauss(3)
    return 0.5 * size * x, 0.5 * w


def test_box_against_its_integral():
    size, com = (0.4, 1.0, 2.5), np.array([0.1, -0.3, 0.2])
    edges = [gauss(s) for s in size]
    grid = np.stack(np.meshgrid(*(e[0] for e in edges), indexing="ij"), axis=-1).reshape(-1, 3)
    masses = 3.0 * np.einsum("i,j,k->ijk", *(e[1] for e in edges)).reshape(-1)
    np.testing.assert_allclose(BodyInertia.box(3.0, size, com).parameters(), direct(grid + com, masses), atol=1e-12)


def test_rod_against_its_integral():
    start, end = np.array([0.3, -0.2, 1.0]), np.array([-1.0, 0.5, 0.2])
    x, w = gauss(1.0)
    points = start + (x + 0.5)[:, None] * (end - start)
    np.testing.assert_allclose(BodyInertia.rod(2.0, start, end).parameters(), direct(points, 2.0 * w), atol=1e-12)
    # The moment of inertia about the rod's end is m l^2 / 3.
    np.testing.assert_allclose(BodyInertia.rod(3.0, (0, 0, 0), (0, 0, 2)).parameters()[[4, 6, 9]], [4, 4, 0])


def test_sphere():
    np.testing.assert_allclose(BodyInertia.sphere(5.0, 0.3).parameters(), [5, 0, 0, 0, 0.18, 0, 0.18, 0, 0, 0.18])
    # The parallel axis theorem gives 2/5 m r^2 + m d^2.
    shifted = BodyInertia.sphere(5.0, 0.3, (0, 0, 2)).parameters()
    np.testing.assert_allclose(shifted, [5, 0, 0, 10, 20.18, 0, 20.18, 0, 0, 0.18])


def test_parameters_of_a_general_inertia():
    rng = np.random.default_rng(3)
    points, masses = rng.normal(size=(6, 3)), rng.uniform(0.1, 1, 6)
    com = masses @ points / masses.sum()
    central = direct(points - com, masses)
    J = np.array([[central[4], central[5], central[7]], [central[5], central[6], central[8]], [*central[7:]]])
    inertia = BodyInertia(masses.sum(), com, J)
    np.testing.assert_allclose(inertia.parameters(), direct(points, masses), rtol=1e-12, atol=1e-12)


def test_diagonal_inertia_is_short_for_the_matrix():
    short, full = BodyInertia(1.0, (1, 2, 3), (1, 2, 3)), BodyInertia(1.0, (1, 2, 3), np.diag([1, 2, 3]))
    np.testing.assert_array_equal(short.parameters(), full.parameters())


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: BodyInertia(-1.0), ModelError, "negative mass"),
        (lambda: BodyInertia.sphere(-1.0, 1.0), ModelError, "negative mass"),
        (lambda: BodyInertia(np.nan), ModelError, "not finite"),
        (lambda: BodyInertia(1.0, (0, np.inf, 0)), ModelError, "not finite"),
        (lambda: BodyInertia(1.0, (0, 0, 0), (1, 1, np.nan)), ModelError, "not finite"),
        (lambda: BodyInertia(1.0, (0, 0)), ShapeError, "center_of_mass"),
        (lambda: BodyInertia(1.0, np.zeros((2, 3))), ShapeError, "center_of_mass"),
        (lambda: BodyInertia(1.0, (0, 0, 0), (1, 1)), ShapeError, "rotational"),
        (lambda: BodyInertia(1.0, (0, 0, 0), np.zeros((2, 3, 3))), ShapeError, "rotational"),
        (lambda: BodyInertia(1.0, (0, 0, 0), [[1, 0.1, 0], [0, 1, 0], [0, 0, 1]]), ModelError, "not symmetric"),
        (lambda: BodyInertia.box(1.0, (1, 1)), ShapeError, "size"),
        (lambda: BodyInertia.rod(1.0, (1, 1), (0, 0)), ShapeError, "start"),
    ],
)
def test_errors_of_inertias(make, error, words):
    with pytest.raises(error, match=words):
        make()


# The model as a pytree


def test_every_leaf_is_a_floating_point_array():
    model = small_tree()
    leaves = jax.tree.leaves(model)
    assert len(leaves) == 17
    assert all(isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)
    assert {leaf.dtype for leaf in leaves} == {jnp.zeros(()).dtype}


def test_structure_is_equal_and_hashable_whatever_the_numbers():
    first, second = small_tree(1.0), small_tree(2.0)
    assert first.topology is not second.topology
    a, b = jax.tree.structure(first), jax.tree.structure(second)
    assert a == b
    assert hash(a) == hash(b)
    assert len({a, b}) == 1
    other = ModelBuilder().add_body("a", inertia=BALL).build()
    assert jax.tree.structure(other) != a


def test_models_of_one_structure_share_one_trace():
    traces = []

    @jax.jit
    def total_mass(model):
        traces.append(model)
        return model.mass.sum()

    np.testing.assert_allclose(total_mass(small_tree(1.0)), 11, rtol=1e-6)
    np.testing.assert_allclose(total_mass(small_tree(2.0)), 14, rtol=1e-6)
    assert len(traces) == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_astype(dtype):
    model = small_tree()
    cast = model.astype(dtype)
    assert {leaf.dtype for leaf in jax.tree.leaves(cast)} == {np.dtype(dtype)}
    assert cast.dtype == np.dtype(dtype)
    assert cast.neutral().dtype == np.dtype(dtype)
    assert cast.topology == model.topology
    for a, b in zip(jax.tree.leaves(cast), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_center_of_mass():
    model = ModelBuilder().add_body("a", inertia=BodyInertia.sphere(2.0, 0.1, (1, 2, 3))).build()
    np.testing.assert_allclose(model.center_of_mass, [(1, 2, 3)], rtol=1e-6)
    batched = jax.tree.map(lambda x: jnp.stack([x, x]), model)
    assert batched.center_of_mass.shape == (2, 1, 3)
    assert batched.link_parameters("a").shape == (2, 10)
    assert batched.frames["a"].placement.shape == (2, 7)
