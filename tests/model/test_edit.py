"""Edited models agree with Pinocchio, with the builder and with identities; edits have gradients and compile once."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

from jaxdyn import (
    SE3,
    BodyInertia,
    Joint,
    Model,
    ModelBuilder,
    ModelError,
    PhysicalityWarning,
    ShapeError,
    UnknownNameError,
    rnea,
    samples,
)
from jaxdyn.model import (
    LEAVES,
    Mimic,
    attach,
    scaled,
    with_armature,
    with_joint_friction,
    with_link_parameters,
    with_locked_joints,
    with_payload,
)
from jaxdyn.spatial import rotation_to_quaternion
from tests.oracles import PinocchioOracle, motion_to_se3, relative_error, to_pinocchio

BALL = BodyInertia.sphere(2.0, 0.1, (0.1, 0.2, -0.1))
PLATE = BodyInertia(1.5, (0.1, -0.2, 0.05), np.diag([0.02, 0.03, 0.04]))
TOOL = BodyInertia(0.7, (0.0, 0.3, 0.1), [[0.02, 0.001, 0], [0.001, 0.02, 0.002], [0, 0.002, 0.01]])


def unit(*q) -> np.ndarray:
    return np.array(q) / np.linalg.norm(q)


def homogeneous(placement) -> np.ndarray:
    """The homogeneous matrix `[..., 4, 4]`."""
    x = np.asarray(placement, np.float64)
    w, v = x[..., 3, None, None], x[..., 4:]
    V = np.cross(np.eye(3), v[..., None, :])
    out = np.zeros((*x.shape[:-1], 4, 4))
    out[..., :3, :3] = np.eye(3) + 2 * w * V + 2 * V @ V
    out[..., :3, 3], out[..., 3, 3] = x[..., :3], 1
    return out


AT_PLATE = np.array([0.3, -0.1, 0.2, *unit(0.8, 0.1, -0.3, 0.4)])
AT_TOOL = np.array([-0.2, 0.5, 0.1, *unit(-0.3, 0.5, 0.6, 0.2)])
AT_CHILD = np.array([0.0, 0.2, 0.1, *unit(1, 1, 0.2, 0)])


def add_arm(
    builder: ModelBuilder, prefix: str = "", root: str = "world", placement=None, springs=False
) -> ModelBuilder:
    """Add an arm with merged links, frames, a branch, and a joint that mimics another. Its base is fixed to `root`."""

    def named(name: str) -> str:
        return prefix + name if name != "world" else root

    def place(pose_in_base):
        pose_in_root = np.array([0.0, 0, 0, 1, 0, 0, 0]) if pose_in_base is None else np.asarray(pose_in_base, float)
        if placement is None:
            return pose_in_root
        pose = homogeneous(placement) @ homogeneous(pose_in_root)
        return np.concatenate([pose[:3, 3], rotation_to_quaternion(pose[:3, :3])])

    stiff = {"stiffness": 3.0, "spring_reference": 0.2} if springs else {}
    builder.add_fixed_body(named("base"), root, place(None), PLATE)
    builder.add_body(
        named("upper"),
        root,
        Joint(
            "revolute",
            axis=(0, 1, 0.2),
            name=prefix + "shoulder",
            armature=0.1,
            damping=0.3,
            lower=-1,
            upper=2,
            **stiff,
        ),
        place(AT_CHILD),
        BALL,
    )
    builder.add_fixed_body(named("plate"), named("upper"), AT_PLATE, PLATE)
    builder.add_body(
        named("slide"), named("plate"), Joint("prismatic", axis=(1, 0, 0), name=prefix + "rail"), AT_TOOL, BALL
    )
    builder.add_body(
        named("jaw"),
        named("slide"),
        Joint("revolute", axis=(0, 0, 1), name=prefix + "jaw_joint", mimic=Mimic(prefix + "wrist", -0.5, 0.3)),
        AT_CHILD,
        BALL,
    )
    builder.add_fixed_body(named("tool"), named("jaw"), AT_TOOL, TOOL)
    builder.add_frame(named("tip"), named("tool"), (0, 0, 0.1))
    builder.add_body(
        named("hand"),
        named("upper"),
        Joint("revolute", axis=(1, 0, 0), name=prefix + "wrist", damping=0.1),
        AT_TOOL,
        TOOL,
    )
    builder.add_frame(named("mark"), root, place(AT_PLATE))
    return builder


@pytest.fixture(scope="module")
def arm() -> Model:
    return add_arm(ModelBuilder()).build()


@pytest.fixture(scope="module")
def tree() -> Model:
    """A tree with every type of joint, a free joint first."""
    return samples.random_tree(jax.random.key(3), 10)


def assert_same(model: Model, other: Model, atol: float = 1e-12) -> None:
    assert model.topology == other.topology
    for field in LEAVES:
        a, b = getattr(model, field), getattr(other, field)
        assert (a is None) == (b is None), field
        if a is None:
            continue
        assert a.dtype == b.dtype, field
        if field.endswith("placement"):
            # The quaternions q and -q are the same rotation.
            a, b = homogeneous(a), homogeneous(b)
        np.testing.assert_allclose(a, b, atol=atol, err_msg=field)


def random_q(model: Model, seed: int) -> np.ndarray:
    q = np.random.default_rng(seed).uniform(-1, 1, model.nq)
    for name, kind in zip(model.joint_names, model.topology.joint_types, strict=True):
        if kind in ("ball", "free"):
            turn = slice(model.q_index(name).stop - 4, model.q_index(name).stop)
            q[turn] = unit(*q[turn])
    return q


def columns_by_joint(model: pin.Model) -> dict[str, range]:
    joints = zip(model.names[1:], model.joints[1:], strict=True)
    return {name: range(joint.idx_v, joint.idx_v + joint.nv) for name, joint in joints}


def compare_pinocchio(model: pin.Model, other: pin.Model, q_one, q_other, rows) -> None:
    """Compare mass matrix and torques of two models; the rows of the first are `rows` of the second."""
    assert model.nv == other.nv
    rng = np.random.default_rng(0)
    v, a = rng.normal(size=(2, model.nv))
    data, other_data = model.createData(), other.createData()
    M, N = pin.crba(model, data, q_one), pin.crba(other, other_data, q_other)
    M, N = (np.triu(X) + np.triu(X, 1).T for X in (M, N))
    w, b = np.empty(model.nv), np.empty(model.nv)
    w[rows], b[rows] = v, a
    assert relative_error(M, N[np.ix_(rows, rows)]) < 1e-11
    tau = pin.rnea(other, other_data, q_other, w, b)[rows]
    assert relative_error(pin.rnea(model, data, q_one, v, a), tau) < 1e-11


def with_joint_frames(model: pin.Model) -> pin.Model:
    """Return the model with the frames that `buildReducedModel` needs."""
    out = pin.Model()
    out.gravity = model.gravity
    bodies = {frame.parentJoint: frame.name for frame in model.frames}
    for i in range(1, model.njoints):
        out.addJoint(model.parents[i], model.joints[i], model.jointPlacements[i], model.names[i])
        frame = out.addJointFrame(i)
        out.appendBodyToJoint(i, model.inertias[i], pin.SE3.Identity())
        if i in bodies:
            out.addBodyFrame(bodies[i], i, pin.SE3.Identity(), frame)
    out.armature = model.armature.copy()
    return out


def test_every_leaf_has_its_rows():
    """Every array of a model is in the table `LEAVES`; an edit would lose others."""
    leaves = {f.name for f in dataclasses.fields(Model) if not f.metadata.get("static", False)}
    assert set(LEAVES) == leaves
    builder = add_arm(ModelBuilder(), springs=True).add_loop("rod", "distance", "upper", "world", length=1.0)
    model = builder.add_coupling("coupled", "shoulder", "wrist").build()
    assert {f for f, leaf in LEAVES.items() if getattr(model, f).shape != leaf.shape(model.topology)} == set()


# Locked joints


@pytest.mark.parametrize("seed", range(6))
def test_locked_joints_are_pinocchios_reduced_model(seed):
    rng = np.random.default_rng(seed)
    model = samples.random_tree(jax.random.key(seed), 9 + seed)
    q = random_q(model, seed)
    chosen = list(rng.choice(model.joint_names, size=int(rng.integers(1, model.nb)), replace=False))
    if seed == 0 and "joint0" not in chosen:
        chosen.append("joint0")
    locked = with_locked_joints(model, {name: q[model.q_index(name)] for name in chosen})
    oracle = PinocchioOracle(model, with_joint_frames(to_pinocchio(model)))
    # In Pinocchio our joints are chains of joints that are named after them.
    chain = [i for i, name in enumerate(oracle.pin_model.names) if name.rsplit("_", 1)[0] in chosen]
    reduced = pin.buildReducedModel(oracle.pin_model, chain, oracle.q(q))
    reduced.armature = np.delete(
        oracle.pin_model.armature, [k for i in chain for k in _velocities(oracle.pin_model, i)]
    )
    ours = to_pinocchio(locked)
    kept = np.concatenate([q[model.q_index(name)] for name in locked.joint_names])
    theirs_q = PinocchioOracle(locked, ours).q(kept)
    assert list(ours.names) == list(reduced.names)
    compare_pinocchio(ours, reduced, theirs_q, theirs_q, np.arange(locked.nv))

    data = reduced.createData()
    pin.framesForwardKinematics(reduced, data, theirs_q)
    our_data = ours.createData()
    pin.forwardKinematics(ours, our_data, theirs_q)
    last = {name.rsplit("_", 1)[0]: i for i, name in enumerate(ours.names)}
    for body in model.body_names:
        frame = locked.frames[body]
        carrier = our_data.oMi[
            0 if frame.body == "world" else last[locked.joint_names[locked.body_names.index(frame.body)]]
        ]
        pose = carrier * motion_to_se3(frame.placement)
        assert pose.isApprox(data.oMf[reduced.getFrameId(body)], 1e-10), body


def _velocities(model: pin.Model, joint: int) -> range:
    return range(model.joints[joint].idx_v, model.joints[joint].idx_v + model.joints[joint].nv)


def test_torques_of_the_joints_that_are_left(tree):
    """The torques equal those of the whole model with the locked joints at rest."""
    q = random_q(tree, 0)
    chosen = ["joint2", "joint5", "joint8", tree.joint_names[-1]]
    locked = with_locked_joints(tree, {name: q[tree.q_index(name)] for name in chosen})
    kept_q = np.concatenate([np.arange(tree.nq)[tree.q_index(n)] for n in locked.joint_names])
    kept = np.concatenate([np.arange(tree.nv)[tree.v_index(n)] for n in locked.joint_names])
    v, a = np.zeros((2, tree.nv))
    v[kept], a[kept] = np.random.default_rng(0).normal(size=(2, len(kept)))
    expected = rnea(tree, q, v, a)[kept]
    assert relative_error(rnea(locked, q[kept_q], v[kept], a[kept]), expected) < 1e-11


def test_names_and_links_of_locked_joints(arm):
    locked = with_locked_joints(arm, {"rail": 0.25, "shoulder": [0.4]})
    assert locked.joint_names == ("jaw_joint", "wrist")
    assert locked.topology.parents == (-1, -1)
    assert set(locked.frames) == {*arm.frames, "rail", "shoulder"}
    for name in ("upper", "plate", "shoulder", "base"):
        assert locked.frames[name].body == "world"
    for name in ("slide", "rail"):
        assert locked.frames[name].body == "world"
    for link in ("base", "upper", "plate", "slide", "jaw", "tool", "hand"):
        np.testing.assert_allclose(locked.link_parameters(link), arm.link_parameters(link), atol=1e-14)
    np.testing.assert_allclose(locked.mass, [2.0 + 0.7, 0.7])
    # A frame of a fixed body keeps its place relative to that body.
    for name, body in (("plate", "upper"), ("base", None)):
        placement = homogeneous(arm.frames[name].placement)
        carried = np.eye(4) if body is None else homogeneous(locked.frames[body].placement)
        np.testing.assert_allclose(homogeneous(locked.frames[name].placement), carried @ placement, atol=1e-14)
    np.testing.assert_allclose(locked.damping, [0.1])
    assert locked.nv == 1


def test_a_locked_joint_is_a_fixed_body_of_the_builder():
    """The model equals one whose locked prismatic joint is written as a displacement along x."""
    builder = ModelBuilder().add_body("a", joint=Joint(axis=(0, 1, 0)), inertia=BALL)
    builder.add_body("b", "a", Joint("prismatic", axis=(1, 0, 0), name="rail"), (0, 0, 1), PLATE)
    builder.add_body("c", "b", Joint("ball", name="wrist"), (0, 1, 0), TOOL)
    by_hand = ModelBuilder().add_body("a", joint=Joint(axis=(0, 1, 0)), inertia=BALL)
    by_hand.add_fixed_body("b", "a", (0.3, 0, 1), PLATE).add_body(
        "c", "b", Joint("ball", name="wrist"), (0, 1, 0), TOOL
    )
    assert_same(with_locked_joints(builder.build(), {"rail": 0.3}), by_hand.add_frame("rail", "b").build())


def test_frame_of_a_joint_whose_name_a_frame_has():
    builder = ModelBuilder().add_body("a", inertia=BALL).add_body("b", "a", Joint(name="b"), (0, 0, 1), PLATE)
    locked = with_locked_joints(builder.build(), {"b": 0.1})
    assert locked.topology.frame_names == ("a", "b")


def test_joints_that_mimic_are_locked_where_they_are(arm):
    """The model equals the spanning tree with the joint and its mimic locked."""
    locked = with_locked_joints(arm, {"wrist": 0.8})
    both = with_locked_joints(arm.spanning_tree(), {"wrist": 0.8, "jaw_joint": -0.5 * 0.8 + 0.3})
    assert_same(locked, both)
    other = with_locked_joints(arm, {"rail": 0.1})
    assert other.topology.mimics == ((1, 2),)
    np.testing.assert_allclose(other.mimic_multiplier, arm.mimic_multiplier)


def test_locking_nothing(arm):
    assert with_locked_joints(arm, {}) is arm


def test_springs_of_the_joints_that_are_left():
    model = add_arm(ModelBuilder(), springs=True).build()
    locked = with_locked_joints(model, {"rail": 0.1})
    np.testing.assert_allclose(locked.stiffness, [3.0, 0.0])
    np.testing.assert_allclose(locked.spring_reference, [0.2, 0.0])


@pytest.mark.parametrize(
    ("joints", "error", "words"),
    [
        ({"sholder": 0.0}, UnknownNameError, ["sholder", "'shoulder'"]),
        ({"jaw_joint": 0.0}, ModelError, ["jaw_joint", "'wrist'"]),
        ({"shoulder": np.zeros(2)}, ShapeError, ["shoulder", "(2,)", "or a number"]),
        ({"shoulder": "a"}, ShapeError, ["shoulder", "'a'"]),
        ({"shoulder": np.nan}, ModelError, ["shoulder", "not finite"]),
        ({"shoulder": 0, "rail": 0, "wrist": 0}, ModelError, ["all 4 joints"]),
        (["shoulder"], ModelError, ["mapping", "'wrist'"]),
        ({"shoulder": np.zeros((2, 1)), "rail": np.zeros((3, 1))}, ShapeError, ["[2]", "[3]", "rail"]),
    ],
)
def test_errors_of_locking(arm, joints, error, words):
    with pytest.raises(error) as caught:
        with_locked_joints(arm, joints)
    for word in words:
        assert word in str(caught.value)


def test_errors_of_locked_rotations(tree):
    ball = next(n for n, t in zip(tree.joint_names, tree.topology.joint_types, strict=True) if t == "ball")
    with pytest.raises(ModelError, match="unit quaternion"):
        with_locked_joints(tree, {ball: [1.0, 1.0, 0, 0]})
    with pytest.raises(ShapeError, match=r"\(1,\).*ball joints have 4$"):
        with_locked_joints(tree, {ball: [0.3]})


@pytest.mark.parametrize(("q", "armature", "fine"), [(0.0, 0.0, False), (0.5, 0.0, True), (0.0, 0.1, True)])
def test_a_joint_that_locking_leaves_without_inertia(q, armature, fine):
    """A point mass hangs below two hinges; it is on the axis of the first hinge if the second is straight."""
    builder = ModelBuilder().add_body("a", joint=Joint(axis=(0, 0, 1), armature=armature))
    builder.add_body("b", "a", Joint(axis=(1, 0, 0), name="knee"), inertia=BodyInertia(1.0, (0, 0, -1)))
    model = builder.build()
    if fine:
        assert with_locked_joints(model, {"knee": q}).nb == 1
    else:
        with pytest.raises(ModelError, match=r"'a'.*'a_joint'.*no inertia.*armature"):
            with_locked_joints(model, {"knee": q})


# Payloads


@pytest.mark.parametrize(
    "inertia", [TOOL, TOOL.parameters(), list(TOOL.parameters())], ids=["inertia", "array", "list"]
)
@pytest.mark.parametrize("frame", ["upper", "tool", "tip"])
def test_payload_is_a_fixed_body_of_the_builder(arm, frame, inertia):
    expected = add_arm(ModelBuilder()).add_fixed_body("load", frame, None, TOOL).build()
    assert_same(with_payload(arm, frame, inertia, name="load"), expected)
    unnamed = with_payload(arm, frame, inertia)
    assert unnamed.topology == arm.topology
    np.testing.assert_allclose(unnamed.inertial_parameters, expected.inertial_parameters, atol=1e-14)


def test_payload_counts_to_the_link_of_its_frame(arm):
    """The payload counts to the frame's link, or to the link of the body for a frame that is not a link."""
    for frame, link, others in (("plate", "plate", ["upper"]), ("upper", "upper", ["plate"]), ("tip", "jaw", ["tool"])):
        loaded = with_payload(arm, frame, TOOL)
        for other in others:
            np.testing.assert_allclose(loaded.link_parameters(other), arm.link_parameters(other), atol=1e-14)
        change = loaded.link_parameters(link) - arm.link_parameters(link)
        assert change[0] == pytest.approx(0.7)
        if frame == link:
            np.testing.assert_allclose(change, TOOL.parameters(), atol=1e-14)


@pytest.mark.parametrize(
    ("frame", "inertia", "name", "error", "words"),
    [
        ("handd", TOOL, None, UnknownNameError, ["handd", "'hand'"]),
        ("base", TOOL, None, ModelError, ["'base'", "world"]),
        ("hand", np.zeros(9), None, ShapeError, ["(9,)", "'hand'"]),
        ("hand", -TOOL.parameters(), None, ModelError, ["negative mass", "'hand'"]),
        ("hand", TOOL.parameters() * np.nan, None, ModelError, ["not finite", "'hand'"]),
        ("hand", TOOL, "plate", ModelError, ["'plate'", "unique"]),
        ("hand", TOOL, "world", ModelError, ["'world'"]),
        ("hand", TOOL, "", ModelError, ["not empty"]),
    ],
)
def test_errors_of_payloads(arm, frame, inertia, name, error, words):
    with pytest.raises(error) as caught:
        with_payload(arm, frame, inertia, name)
    for word in words:
        assert word in str(caught.value)


def test_unphysical_inertias_warn(arm):
    odd = BodyInertia(1.0, (0, 0, 0), (1.0, 1.0, 2.1))
    with pytest.warns(PhysicalityWarning, match="payload at frame 'hand'.*exceeds the sum") as caught:
        with_payload(arm, "hand", odd)
    assert caught[0].filename == __file__
    with pytest.warns(PhysicalityWarning, match="link 'tool'.*exceeds the sum"):
        with_link_parameters(arm, "tool", odd)


def test_rounding_is_no_warning(arm):
    """A thin rod's largest moment is the sum of the others; rounding to single precision must not cause a warning."""
    rod = BodyInertia.rod(1.0, (3.0, 2.0, 1.0), (3.5, 2.2, 0.9))
    single = rod.parameters().astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (arm, arm.astype(jnp.float32)):
            for inertia in (rod, single, jnp.asarray(single)):
                with_payload(model, "hand", inertia)
        with_link_parameters(arm, "tool", [1, 0, 0, 0, 1, 0, 1, 0, 0, 1])


# Links


@pytest.mark.parametrize("link", ["base", "upper", "plate", "tool", "hand", "slide"])
def test_replaced_links_are_those_of_the_builder(arm, link):
    new = BodyInertia(3.3, (0.1, 0.02, -0.3), (0.2, 0.3, 0.25))
    replaced = with_link_parameters(arm, link, new)
    assert replaced.topology == arm.topology
    for name in ("base", "upper", "plate", "slide", "jaw", "tool", "hand"):
        expected = new.parameters() if name == link else arm.link_parameters(name)
        np.testing.assert_allclose(replaced.link_parameters(name), expected, atol=1e-14)
    moving = {"base": 0.0}.get(link, 3.3 - float(arm.link_parameters(link)[0]))
    assert replaced.mass.sum() - arm.mass.sum() == pytest.approx(moving)
    assert_same(with_link_parameters(replaced, link, arm.link_parameters(link)), arm, atol=1e-14)


def test_errors_of_links(arm):
    with pytest.raises(UnknownNameError, match=r"'tol'.*'tool'"):
        with_link_parameters(arm, "tol", TOOL)
    with pytest.raises(UnknownNameError, match="'tip'"):
        with_link_parameters(arm, "tip", TOOL)
    with pytest.raises(ShapeError, match=r"link 'tool'.*\(9,\)"):
        with_link_parameters(arm, "tool", np.zeros(9))
    with pytest.raises(ModelError, match=r"link 'tool'.*negative mass"):
        with_link_parameters(arm, "tool", [-1.0] + [0.0] * 9)
    single = ModelBuilder().add_body("a", inertia=BALL).build()
    with pytest.raises(ModelError, match=r"'a'.*'a_joint'.*no mass"):
        with_link_parameters(single, "a", np.zeros(10))


# Attaching


MOUNT = np.array([0.1, 0.2, 0.3, *unit(0.5, -0.5, 0.1, 0.7)])


@pytest.mark.parametrize("frame", ["upper", "tool", "tip", "world", "base"])
@pytest.mark.parametrize("springs", [(False, False), (True, False), (False, True)])
def test_attached_models_are_those_of_the_builder(frame, springs):
    ours, theirs = springs
    base = add_arm(ModelBuilder(), springs=ours)
    branch = add_arm(ModelBuilder(), springs=theirs).build(gravity=(0, -9.81, 0))
    expected = add_arm(ModelBuilder(), springs=ours)
    add_arm(expected, "left_", frame, MOUNT, springs=theirs)
    assert_same(attach(base.build(), branch, frame, MOUNT, prefix="left_"), expected.build())


@pytest.mark.parametrize(
    ("placement", "pose"),
    [
        (None, [0, 0, 0, 1, 0, 0, 0]),
        ((0.1, 0.2, 0.3), [0.1, 0.2, 0.3, 1, 0, 0, 0]),
        (SE3.from_vector(MOUNT), MOUNT),
    ],
    ids=["nothing", "position", "SE3"],
)
def test_forms_of_a_placement(arm, placement, pose):
    assert_same(attach(arm, arm, "hand", placement, "b_"), attach(arm, arm, "hand", np.array(pose, float), "b_"))


@pytest.mark.parametrize("seed", range(3))
def test_attached_models_are_pinocchios(seed):
    types = ("revolute", "ball", "helical", "cylindrical", "prismatic")
    base = samples.random_tree(jax.random.key(seed), 6, types)
    branch = samples.random_tree(jax.random.key(seed + 5), 4, types[::-1])
    frame = base.body_names[3]
    both = attach(base, branch, frame, MOUNT, prefix="b_")
    a, b = to_pinocchio(base), to_pinocchio(branch)
    for i, name in enumerate(list(b.names)[1:], start=1):
        b.names[i] = f"b_{name}"
    for frame_b in b.frames:
        frame_b.name = f"b_{frame_b.name}"
    expected = pin.appendModel(a, b, a.getFrameId(frame), motion_to_se3(MOUNT))
    ours = to_pinocchio(both)
    theirs = columns_by_joint(expected)
    rows = np.concatenate([theirs[name] for name in ours.names[1:]])
    # Pinocchio does not carry the armature over.
    armature = np.empty(ours.nv)
    armature[rows] = ours.armature
    expected.armature = armature
    q = random_q(both, 1)
    q_ours = PinocchioOracle(both, ours).q(q)
    q_theirs = np.empty(expected.nq)
    for i in range(1, ours.njoints):
        j = expected.getJointId(ours.names[i])
        mine, his = ours.joints[i], expected.joints[j]
        q_theirs[his.idx_q : his.idx_q + his.nq] = q_ours[mine.idx_q : mine.idx_q + mine.nq]
    compare_pinocchio(ours, expected, q_ours, q_theirs, rows)


def test_locking_the_joints_of_what_is_attached_leaves_a_payload(arm):
    """A pendulum that is attached and locked becomes a link; all else equals a payload."""
    both = attach(arm, samples.pendulum(), "tip", MOUNT)
    rod = samples.pendulum().inertial_parameters[0]
    locked = with_locked_joints(both, {"hinge": 0.0})
    frame = with_payload(add_arm(ModelBuilder()).add_frame("at", "tip", MOUNT).build(), "at", rod)
    np.testing.assert_allclose(locked.inertial_parameters, frame.inertial_parameters, atol=1e-12)
    np.testing.assert_allclose(locked.link_parameters("rod"), rod, atol=1e-12)


@pytest.mark.parametrize(
    ("other", "arguments", "error", "words"),
    [
        ("same", {"frame": "hand"}, ModelError, ["'base', 'hand'", "give a prefix"]),
        ("joints", {"frame": "hand"}, ModelError, ["joint", "'wrist'", "give a prefix"]),
        ("same", {"frame": "hannd", "prefix": "b_"}, UnknownNameError, ["'hannd'", "'hand'"]),
        ("same", {"frame": "hand", "placement": (0, 0), "prefix": "b_"}, ShapeError, ["placement", "(2,)"]),
        ("same", {"frame": "hand", "placement": np.ones(7), "prefix": "b_"}, ModelError, ["placement", "not a pose"]),
        ("same", {"frame": "hand", "prefix": 3}, ModelError, ["prefix", "3"]),
        ("nothing", {"frame": "hand"}, ModelError, ["other", "Model"]),
        ("batch", {"frame": "hand", "placement": np.tile(MOUNT, (2, 1)), "prefix": "b_"}, ShapeError, ["[3]", "[2]"]),
    ],
)
def test_errors_of_attaching(arm, other, arguments, error, words):
    others = {
        "same": arm,
        "joints": ModelBuilder().add_body("x", joint=Joint(name="wrist"), inertia=BALL).build(),
        "nothing": "arm",
        "batch": jax.tree.map(lambda x: jnp.stack([x] * 3), arm),
    }
    with pytest.raises(error) as caught:
        attach(arm, others[other], **arguments)
    for word in words:
        assert word in str(caught.value)


# Friction and armature


def test_friction_by_name_and_by_array(tree):
    ball = next(n for n, t in zip(tree.joint_names, tree.topology.joint_types, strict=True) if t == "ball")
    changed = with_joint_friction(tree, damping={ball: (1.0, 2.0, 3.0), "joint1": 4.0}, friction=0.0)
    expected = np.array(tree.damping)
    expected[tree.v_index(ball)], expected[tree.v_index("joint1")] = (1, 2, 3), 4
    np.testing.assert_allclose(changed.damping, expected)
    np.testing.assert_allclose(changed.friction, np.zeros(tree.nv))
    np.testing.assert_allclose(changed.friction_velocity, tree.friction_velocity)
    assert changed.topology == tree.topology
    values = np.arange(1.0, tree.nv + 1)
    np.testing.assert_allclose(with_joint_friction(tree, friction_velocity=values).friction_velocity, values)
    np.testing.assert_allclose(with_armature(tree, {"joint1": 0.5}).armature[tree.v_index("joint1")], [0.5])
    many = with_joint_friction(tree, damping={"joint1": np.ones((4, 1)), ball: np.zeros(3)})
    assert many.damping.shape == (4, tree.nv)
    assert with_joint_friction(tree) is not tree


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"damping": {"wirst": 1.0}}, UnknownNameError, ["wirst", "'wrist'"]),
        ({"damping": {"jaw_joint": 1.0}}, ModelError, ["jaw_joint", "damping", "'wrist'"]),
        ({"friction": {"wrist": (1.0, 2.0)}}, ShapeError, ["friction of joint 'wrist'", "(2,)"]),
        ({"friction": np.zeros(4)}, ShapeError, ["friction", "(4,)", "3"]),
        ({"friction": -1.0}, ModelError, ["friction", "negative"]),
        ({"damping": np.inf}, ModelError, ["damping", "not finite"]),
        ({"friction_velocity": {"wrist": 0.0}}, ModelError, ["friction_velocity of joint 'wrist'", "positive"]),
        ({"damping": {"wrist": np.ones((2, 1)), "rail": np.ones((3, 1))}}, ShapeError, ["wrist [2]", "rail [3]"]),
    ],
)
def test_errors_of_friction(arm, arguments, error, words):
    with pytest.raises(error) as caught:
        with_joint_friction(arm, **arguments)
    for word in words:
        assert word in str(caught.value)


def test_armature_that_a_joint_needs():
    model = ModelBuilder().add_body("a", joint=Joint(armature=0.1), inertia=BodyInertia(1.0, (0, 0, 1))).build()
    with pytest.raises(ModelError, match=r"'a_joint'.*no inertia"):
        with_armature(model, 0.0)


# Scaling


def test_scaled_robots_have_scaled_torques(tree):
    """With gravity scaled by the length as well, torques scale by their unit; `q`, `v` and `a` scale where they are
    lengths."""
    L, M = 1.7, 0.6
    model = scaled(tree, length=L, mass=M)
    model = dataclasses.replace(model, gravity=model.gravity * L)
    linear_q, linear_v = np.zeros(tree.nq), np.zeros(tree.nv)
    for name, kind in zip(tree.joint_names, tree.topology.joint_types, strict=True):
        count = {"prismatic": 1, "cylindrical": 1, "planar": 2, "free": 3}.get(kind, 0)
        linear_q[tree.q_index(name).start :][:count] = 1
        linear_v[tree.v_index(name).start :][:count] = 1
    q = random_q(tree, 2)
    v, a = np.random.default_rng(2).normal(size=(2, tree.nv))
    expected = rnea(tree, q, v, a) * M * L ** (2 - linear_v)
    assert relative_error(rnea(model, q * L**linear_q, v * L**linear_v, a * L**linear_v), expected) < 1e-11
    np.testing.assert_allclose(scaled(tree).inertial_parameters, tree.inertial_parameters)
    np.testing.assert_allclose(scaled(tree, length=3.0, mass=2.0).gravity, tree.gravity)


def test_scaled_springs_limits_and_mimics():
    builder = add_arm(ModelBuilder(), springs=True)
    builder.add_body("finger", "hand", Joint("prismatic", name="f", mimic=Mimic("wrist", 0.1, 0.02)), None, TOOL)
    builder.add_body("nail", "finger", Joint(name="n", mimic=Mimic("rail", 4.0, 0.5)), None, TOOL)
    model = builder.build()
    L, M = 2.0, 3.0
    big = scaled(model, length=L, mass=M)
    by_name = {model.joint_names[a]: k for k, (a, _) in enumerate(model.topology.mimics)}
    factors = {"jaw_joint": (1, 1), "f": (L, L), "n": (1 / L, 1)}
    for name, (m, o) in factors.items():
        k = by_name[name]
        np.testing.assert_allclose(big.mimic_multiplier[k], m * model.mimic_multiplier[k])
        np.testing.assert_allclose(big.mimic_offset[k], o * model.mimic_offset[k])
    np.testing.assert_allclose(big.stiffness, np.array([3.0, 0, 0]) * M * L**2)
    np.testing.assert_allclose(big.position_lower[big.q_index("shoulder")], [-1])
    assert np.isinf(big.position_upper[big.q_index("rail")]).all()
    np.testing.assert_allclose(big.link_parameters("tool")[0], 0.7 * M)
    np.testing.assert_allclose(big.frames["tip"].placement[:3], L * model.frames["tip"].placement[:3])


@pytest.mark.parametrize("factor", [0.0, -1.0, np.inf, np.nan])
def test_errors_of_scaling(arm, factor):
    with pytest.raises(ModelError, match="length"):
        scaled(arm, length=factor)
    with pytest.raises(ModelError, match="mass"):
        scaled(arm, mass=factor)


# Transformations: every edit as a function of its numbers


def weights(model: Model) -> Model:
    rng = np.random.default_rng(7)
    return jax.tree.map(lambda x: rng.normal(size=x.shape), model)


EDITS = {
    "lock": (lambda m, x: with_locked_joints(m, {"wrist": x[0]}), np.zeros(1)),
    "payload": (lambda m, x: with_payload(m, "tip", x), TOOL.parameters()),
    "named payload": (lambda m, x: with_payload(m, "plate", x, "load"), TOOL.parameters()),
    "link": (lambda m, x: with_link_parameters(m, "upper", x), TOOL.parameters()),
    "merged link": (lambda m, x: with_link_parameters(m, "tool", x), TOOL.parameters()),
    "attach": (lambda m, x: attach(m, m, "tool", x, "b_"), MOUNT),
    "friction": (lambda m, x: with_joint_friction(m, {"rail": x[0]}, x[1], {"wrist": x[2]}), np.array([0.1, 0.2, 0.3])),
    "armature": (lambda m, x: with_armature(m, x), np.array([0.1, 0.2, 0.3])),
    "scale": (lambda m, x: scaled(m, length=x[0], mass=x[1]), np.array([1.3, 0.8])),
}


QUICK = ("scale",)
LONG = ("lock", "attach", "payload", "named payload", "link", "merged link", "friction", "armature")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_compiled_and_differentiated(arm, name):
    """The compiled derivatives of each edit by all numbers equal differences of the edit in NumPy, also at a zero angle
    and with infinite limits."""
    edit, x = EDITS[name]
    edited = edit(arm, x)
    W = weights(edited)

    def total(out: Model, lib=np):
        """Sum all numbers with weights, without infinite limits."""
        terms = jax.tree.map(lambda w, y: lib.sum(w * lib.where(lib.isfinite(y), y, 0)), W, out)
        return sum(jax.tree.leaves(terms))

    traces = []

    @jax.jit
    def result_and_gradients(model, x):
        traces.append(name)

        def value(model, x):
            out = edit(model, x)
            return total(out, jnp), out

        (_, out), gradients = jax.value_and_grad(value, (0, 1), has_aux=True)(model, x)
        return out, gradients

    out, (by_model, by_x) = result_and_gradients(arm, x)
    assert_same(out, edited, atol=1e-13)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((by_model, by_x)))
    h = 1e-6
    for i in range(len(x)):
        up, down = (total(edit(arm, x + sign * h * np.eye(len(x))[i])) for sign in (1, -1))
        np.testing.assert_allclose(by_x[i], (up - down) / (2 * h), rtol=1e-5, atol=1e-6 * float(np.abs(by_x).max() + 1))
    # The derivative along a direction in all leaves of the model.
    rng = np.random.default_rng(1)
    step = jax.tree.map(lambda y: rng.normal(size=y.shape) * np.isfinite(y), arm)
    shifted = [jax.tree.map(lambda y, d, s=s: np.asarray(y) + s * h * d, arm, step) for s in (1, -1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PhysicalityWarning)
        slope = (total(edit(shifted[0], x)) - total(edit(shifted[1], x))) / (2 * h)
    along = sum(
        np.sum(np.asarray(a) * b) for a, b in zip(jax.tree.leaves(by_model), jax.tree.leaves(step), strict=True)
    )
    np.testing.assert_allclose(along, slope, rtol=1e-5, atol=1e-6)
    result_and_gradients(shifted[0], 1.01 * x)
    assert len(traces) == 1


@pytest.mark.parametrize("name", EDITS)
def test_batches(arm, name):
    """For batches of numbers, of models, and of both, each element of the edit is the edit of the element."""
    edit, x = EDITS[name]
    if name == "lock":
        many = x + np.linspace(0, 1, 3)[:, None]
        edited = with_locked_joints(arm, {"rail": many, "wrist": many})
        single = [with_locked_joints(arm, {"rail": y, "wrist": y}) for y in many]
    elif name == "friction":
        many = x * np.array([1, 2, 3])[:, None]
        edited = with_joint_friction(arm, {"rail": many[:, :1]}, many)
        single = [with_joint_friction(arm, {"rail": y[0]}, y) for y in many]
    elif name == "scale":
        many = x * np.array([1, 2, 3])[:, None]
        edited, single = (
            scaled(arm, length=many[:, 0], mass=many[:, 1]),
            [scaled(arm, length=y[0], mass=y[1]) for y in many],
        )
    else:
        many = np.stack([x] * 3)
        if name != "attach":
            many = many * np.array([1, 2, 3])[:, None]
        edited, single = edit(arm, many), [edit(arm, y) for y in many]
    models = jax.tree.map(
        lambda *leaves: np.stack(leaves), arm, with_payload(arm, "hand", TOOL), scaled(arm, length=1.2)
    )
    of_models = edit(models, x)
    of_each = [edit(jax.tree.map(lambda leaf, k=k: leaf[k], models), x) for k in range(3)]
    for out, expected in ((edited, single), (of_models, of_each)):
        for k, model in enumerate(expected):
            assert out.topology == model.topology
            for field, described in LEAVES.items():
                leaf, values = getattr(out, field), getattr(model, field)
                if leaf is not None:
                    leaf = np.asarray(leaf)
                    np.testing.assert_allclose(
                        leaf[k] if leaf.ndim > described.axes else leaf, values, atol=1e-13, err_msg=field
                    )


def test_mapped_edits_are_batched_edits(arm):
    q = np.linspace(-1, 1, 4)
    mapped = jax.vmap(lambda x: with_locked_joints(arm, {"rail": x, "shoulder": 0.3}))(q)
    batched = with_locked_joints(arm, {"rail": q[:, None], "shoulder": 0.3})
    for field in ("joint_placement", "inertial_parameters", "frame_placement", "attached_parameters"):
        from_vmap, from_batch = getattr(mapped, field), getattr(batched, field)
        np.testing.assert_allclose(from_vmap, np.broadcast_to(from_batch, from_vmap.shape), atol=1e-14)
        assert from_vmap.shape[0] == 4


@pytest.mark.parametrize("name", EDITS)
def test_single_precision_stays(arm, name):
    edit, x = EDITS[name]
    model = edit(arm.astype(jnp.float32), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {np.dtype(np.float32)}


def test_all_joints_but_those_to_keep_are_locked():
    """`keep` names what still moves; other joints are locked where they are given, or at zero."""
    arm = samples.arm()
    first, *others = [x for x in arm.joint_names if x not in ("joint2", "joint3")]
    kept = arm.with_locked_joints({first: 0.3}, keep=["joint2", "joint3"])
    expected = arm.with_locked_joints({first: 0.3} | dict.fromkeys(others, 0.0))
    assert kept.topology == expected.topology
    np.testing.assert_array_equal(kept.inertial_parameters, expected.inertial_parameters)
    for joints, keep, words in (
        ({"joint2": 0.0}, ["joint2"], "to be locked, and to be kept"),
        (None, [], "all 7 joints would be locked"),
        (None, None, "give joints .* or keep"),
        (None, "joint2", r"such as \['joint2'\]"),
    ):
        with pytest.raises(ModelError, match=words):
            arm.with_locked_joints(joints, keep=keep)
    with pytest.raises(UnknownNameError, match="joint8"):
        arm.with_locked_joints(keep=["joint8"])


def test_joints_locked_in_degrees_are_warned_of():
    model = samples.cartpole()
    lower, upper = np.array([-1.0, -3.0]), np.array([1.0, 3.0])
    limited = dataclasses.replace(model, position_lower=lower, position_upper=upper)
    pole = model.joint_names[1]
    with pytest.warns(PhysicalityWarning, match=f"90.* beyond the limits of joint '{pole}', -3 to 3 rad"):
        limited.with_locked_joints({pole: 90})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        limited.with_locked_joints({pole: 3.0})
        model.with_locked_joints({pole: 90})
