"""Compare models from URDF with those that Pinocchio reads from the same text; names identify the joints."""

# pyright: reportAttributeAccessIssue=false
# (Pinocchio is a compiled module without type stubs.)

import jax
import numpy as np
import pinocchio as pin

from jaxdyn import Model

RELATIVE = 1e-12
ONE_AXIS = ("revolute", "continuous", "prismatic")


def close(got, expected) -> None:
    np.testing.assert_allclose(got, expected, rtol=RELATIVE, atol=RELATIVE * np.abs(expected).max(initial=1e-6))


def joint_pairs(model: Model, parsed: pin.Model) -> list[tuple[int, int]]:
    """Return the pairs of our index and Pinocchio's index of each joint."""
    return [(model.topology.joint(name), i) for i, name in enumerate(parsed.names) if i > 0]


def one_axis_pairs(model: Model, parsed: pin.Model) -> list[tuple[int, int]]:
    return [(i, j) for i, j in joint_pairs(model, parsed) if model.topology.joint_types[i] in ONE_AXIS]


def matrix(placement) -> np.ndarray:
    w, x, y, z = (float(c) for c in placement[3:])
    return pin.SE3(pin.Quaternion(w, x, y, z).matrix(), np.asarray(placement[:3])).homogeneous


def in_numpy(model: Model) -> Model:
    """The model with arrays of NumPy: JAX compiles a program for each shape from which it takes a row."""
    return jax.tree.map(np.asarray, model)


def check_joints(model: Model, parsed: pin.Model) -> None:
    model = in_numpy(model)
    assert sorted(model.joint_names) == sorted(parsed.names[1:])
    parents = {i: "world" if p < 0 else model.joint_names[p] for i, p in enumerate(model.topology.parents)}
    kinds = {"JointModelPlanar": "planar", "JointModelFreeFlyer": "free"}
    for i, j in joint_pairs(model, parsed):
        assert parents[i] == ("world" if parsed.parents[j] == 0 else parsed.names[parsed.parents[j]])
        assert model.topology.joint_types[i] == kinds.get(parsed.joints[j].shortname(), model.topology.joint_types[i])
        close(matrix(model.joint_placement[i]), parsed.jointPlacements[j].homogeneous)
    rows = list(model.topology.axis_dofs)
    data = parsed.createData()
    for i, j in one_axis_pairs(model, parsed):
        subspace = np.asarray(data.joints[j].S)
        prismatic = model.topology.joint_types[i] == "prismatic"
        close(model.joint_axis[rows.index(model.topology.v_starts[i])], subspace[:3] if prismatic else subspace[3:])
        assert not np.any(subspace[3:] if prismatic else subspace[:3])


def check_limits_and_friction(model: Model, parsed: pin.Model) -> None:
    model = in_numpy(model)
    lower, upper = model.position_lower, model.position_upper
    for i, j in one_axis_pairs(model, parsed):
        v, w = model.topology.v_starts[i], parsed.idx_vs[j]
        for ours, theirs in (
            (model.damping, parsed.damping),
            (model.friction, parsed.upperDryFrictionLimit),
            (model.velocity_limit, parsed.upperVelocityLimit),
            (model.effort_limit, parsed.upperEffortLimit),
        ):
            np.testing.assert_allclose(ours[v], theirs[w], rtol=RELATIVE)
        q, r = model.topology.q_starts[i], parsed.idx_qs[j]
        if parsed.nqs[j] == 2:
            assert model.topology.joint_types[i] == "continuous"
            assert (lower[q], upper[q]) == (-np.inf, np.inf)
        else:
            expected = (parsed.lowerPositionLimit[r], parsed.upperPositionLimit[r])
            np.testing.assert_allclose((lower[q], upper[q]), expected, rtol=RELATIVE)


def check_inertias(model: Model, parsed: pin.Model) -> None:
    model = in_numpy(model)
    for i, j in joint_pairs(model, parsed):
        expected = parsed.inertias[j].toDynamicParameters()
        got = np.asarray(model.inertial_parameters[i])
        for part in (slice(0, 1), slice(1, 4), slice(4, 10)):
            close(got[part], expected[part])


def check_frames(model: Model, parsed: pin.Model) -> None:
    model = in_numpy(model)
    frames = model.frames
    links = {f.name for f in parsed.frames if f.type == pin.FrameType.BODY}
    compared = 0
    for frame in parsed.frames:
        is_fixed_joint = frame.type == pin.FrameType.FIXED_JOINT and frame.name not in ("universe", *links)
        if frame.name == "world" or (frame.type != pin.FrameType.BODY and not is_fixed_joint):
            continue
        ours = frames[frame.name]
        body = (
            "world"
            if frame.parentJoint == 0
            else model.body_names[model.joint_names.index(parsed.names[frame.parentJoint])]
        )
        assert ours.body == body, frame.name
        close(matrix(ours.placement), frame.placement.homogeneous)
        compared += 1
    assert compared == len(frames)
