"""Models from URDF against those that Pinocchio reads from the same text, array by array; joints are found by name."""

# pyright: reportAttributeAccessIssue=false
# (Pinocchio is a compiled module without type stubs.)

import numpy as np
import pinocchio as pin

from jaxdyn import Model

RELATIVE = 1e-12
ONE_AXIS = ("revolute", "continuous", "prismatic")


def close(got, expected) -> None:
    np.testing.assert_allclose(got, expected, rtol=RELATIVE, atol=RELATIVE * np.abs(expected).max(initial=1e-6))


def joint_pairs(model: Model, other: pin.Model) -> list[tuple[int, int]]:
    """Our index and Pinocchio's of each joint."""
    return [(model.topology.joint(name), i) for i, name in enumerate(other.names) if i > 0]


def one_axis_pairs(model: Model, other: pin.Model) -> list[tuple[int, int]]:
    return [(i, j) for i, j in joint_pairs(model, other) if model.topology.joint_types[i] in ONE_AXIS]


def matrix(placement) -> np.ndarray:
    w, x, y, z = (float(c) for c in placement[3:])
    return pin.SE3(pin.Quaternion(w, x, y, z).matrix(), np.asarray(placement[:3])).homogeneous


def check_joints(model: Model, other: pin.Model) -> None:
    assert sorted(model.joint_names) == sorted(other.names[1:])
    parents = {i: "world" if p < 0 else model.joint_names[p] for i, p in enumerate(model.topology.parents)}
    kinds = {"JointModelPlanar": "planar", "JointModelFreeFlyer": "free"}
    for i, j in joint_pairs(model, other):
        assert parents[i] == ("world" if other.parents[j] == 0 else other.names[other.parents[j]])
        assert model.topology.joint_types[i] == kinds.get(other.joints[j].shortname(), model.topology.joint_types[i])
        close(matrix(model.joint_placement[i]), other.jointPlacements[j].homogeneous)
    rows = list(model.topology.axis_dofs)
    data = other.createData()
    for i, j in one_axis_pairs(model, other):
        subspace = np.asarray(data.joints[j].S)
        prismatic = model.topology.joint_types[i] == "prismatic"
        close(model.joint_axis[rows.index(model.topology.v_starts[i])], subspace[:3] if prismatic else subspace[3:])
        assert not np.any(subspace[3:] if prismatic else subspace[:3])


def check_limits_and_friction(model: Model, other: pin.Model) -> None:
    lower, upper = np.asarray(model.position_lower), np.asarray(model.position_upper)
    for i, j in one_axis_pairs(model, other):
        v, w = model.topology.v_starts[i], other.idx_vs[j]
        for ours, theirs in (
            (model.damping, other.damping),
            (model.friction, other.upperDryFrictionLimit),
            (model.velocity_limit, other.upperVelocityLimit),
            (model.effort_limit, other.upperEffortLimit),
        ):
            np.testing.assert_allclose(ours[v], theirs[w], rtol=RELATIVE)
        q, r = model.topology.q_starts[i], other.idx_qs[j]
        if other.nqs[j] == 2:
            assert model.topology.joint_types[i] == "continuous"
            assert (lower[q], upper[q]) == (-np.inf, np.inf)
        else:
            expected = (other.lowerPositionLimit[r], other.upperPositionLimit[r])
            np.testing.assert_allclose((lower[q], upper[q]), expected, rtol=RELATIVE)


def check_inertias(model: Model, other: pin.Model) -> None:
    for i, j in joint_pairs(model, other):
        expected = other.inertias[j].toDynamicParameters()
        got = np.asarray(model.inertial_parameters[i])
        for part in (slice(0, 1), slice(1, 4), slice(4, 10)):
            close(got[part], expected[part])


def check_frames(model: Model, other: pin.Model) -> None:
    frames = model.frames
    links = {f.name for f in other.frames if f.type == pin.FrameType.BODY}
    compared = 0
    for frame in other.frames:
        is_fixed_joint = frame.type == pin.FrameType.FIXED_JOINT and frame.name not in ("universe", *links)
        if frame.name == "world" or (frame.type != pin.FrameType.BODY and not is_fixed_joint):
            continue
        ours = frames[frame.name]
        body = (
            "world"
            if frame.parentJoint == 0
            else model.body_names[model.joint_names.index(other.names[frame.parentJoint])]
        )
        assert ours.body == body, frame.name
        close(matrix(ours.placement), frame.placement.homogeneous)
        compared += 1
    assert compared == len(frames)
