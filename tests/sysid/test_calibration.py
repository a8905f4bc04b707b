"""Calibration of geometry: against Pinocchio, the truth of simulated measurements, and the words about them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder, sysid
from tests.robots import robot_path

FRAME = "tool0"


@functools.cache
def ur5() -> jaxdyn.Model:
    return jaxdyn.load_urdf(robot_path("ur5"))


@functools.cache
def errors() -> sysid.Parametrization:
    return sysid.Parametrization(ur5(), sysid.KinematicErrors(frames=[FRAME]))


def truth(seed: int = 0) -> jaxdyn.Model:
    """A robot whose geometry is wrong by millimeters and hundredths of a radian everywhere."""
    return errors().model(0.3 * np.random.default_rng(seed).normal(size=errors().size))


def postures(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2, 2, (count, 6))


def poses(model: jaxdyn.Model, q: np.ndarray, seed: int = 0, noise: float = 1e-4, frame: str = FRAME) -> np.ndarray:
    """Measured poses with noise in m and rad."""
    rng, X = np.random.default_rng(seed), jaxdyn.frame_pose(model, q, frame)
    turn = jaxdyn.SE3.exp(np.pad(noise * rng.normal(size=(len(q), 3)), ((0, 0), (3, 0))))
    out = np.array((X @ turn).to_vector())
    out[:, :3] += noise * rng.normal(size=(len(q), 3))
    return out


def distances(model: jaxdyn.Model, other: jaxdyn.Model, q: np.ndarray, frame: str = FRAME) -> np.ndarray:
    found, expected = (np.asarray(jaxdyn.frame_pose(x, q, frame).translation) for x in (model, other))
    return np.linalg.norm(found - expected, axis=-1)


def test_pinocchio_has_the_calibrated_robot_at_the_true_poses():
    q, new = postures(30, 1), postures(30, 2)
    found = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, poses(truth(), q)))
    model = pin.buildModelFromXML(jaxdyn.to_urdf(found.model))
    data, frame = model.createData(), model.getFrameId(FRAME)
    reached = []
    for x in new:
        pin.framesForwardKinematics(model, data, x)
        reached.append(data.oMf[frame].translation.copy())
    expected = np.asarray(jaxdyn.frame_pose(truth(), new, FRAME).translation)
    error = np.linalg.norm(np.array(reached) - expected, axis=-1)
    assert distances(ur5(), truth(), new).max() > 0.05
    assert error.max() < 2e-4
    np.testing.assert_allclose(found.position_error(new, FRAME).mean(), np.sqrt(np.mean(error**2)), rtol=0.5)
    assert len(found.intervals.names) == 4 * 6 + 6
    assert found.status == jaxdyn.Status.CONVERGED
    pairs = [x for x in found.verdict() if "only as a sum" in x]
    assert any("base rz and offset of shoulder_pan_joint" in x for x in pairs)
    # Parallel axes: an offset of the elbow and one before it are a shift of its axis.
    others = list(found.relations["axis of elbow_joint: shift along x"])
    assert set(others[:2]) == {"offset of elbow_joint", "offset of shoulder_lift_joint"}
    assert not found.outliers
    assert not any(x.evident for x in found.causes)


def test_intervals_have_the_truth():
    q, inside = postures(30, 1), []
    kept = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, poses(truth(), q))).intervals.names
    numbers = np.where([x in kept for x in errors().names], 0.3 * np.random.default_rng(0).normal(size=42), 0.0)
    true, units = errors().model(numbers), np.array([0.1] * 18 + [0.01] * 24)
    expected = (numbers * units)[[x in kept for x in errors().names]]
    for seed in range(40):
        found = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, poses(true, q, seed))).intervals
        assert found.names == kept
        inside.append((found.lower < expected) & (expected < found.upper))
    assert 0.9 < np.mean(inside) < 0.98


def test_a_wrong_measurement_is_named_and_its_row_may_be_left_out():
    q, new = postures(30, 1), postures(30, 2)
    wrong = poses(truth(), q)
    wrong[7, 0] += 0.002
    # A quaternion that is unit up to this change: the robot turns by 0.004 rad about an axis across it.
    wrong[11, 3:] += 0.002 * np.array([-wrong[11, 4], wrong[11, 3], wrong[11, 6], -wrong[11, 5]])
    found = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, wrong))
    assert {x.posture for x in found.outliers} == {7, 11}
    assert "posture 7" in str(found)
    assert next(x.distance for x in found.outliers if x.posture == 7) == pytest.approx(0.002, rel=0.3)
    wrong[[7, 11]] = np.nan
    again = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, wrong))
    assert not again.outliers
    assert np.isnan(again.residuals[0][7]).all()
    assert distances(again.model, truth(), new).max() < 2e-4


def test_single_precision():
    q, model = postures(30, 1), ur5().astype(jnp.float32)
    measured = poses(truth(), q)
    found = sysid.calibrate(model, q, sysid.MeasuredPoses(FRAME, measured))
    assert found.model.dtype == jnp.float32
    double = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, measured))
    assert found.intervals.names == double.intervals.names
    error = np.abs(found.intervals.value - double.intervals.value) / double.intervals.standard_error
    assert error.max() < 0.2


def test_a_far_mounting_and_a_turned_tool():
    q = postures(30, 1)
    mount = jaxdyn.SE3.exp(np.array([1.0, -2.0, 0.5, 0.3, -2.0, 1.5]))
    turned = jaxdyn.SE3.exp(np.array([0.05, 0.0, 0.1, 1.5, 1.0, -2.0]))
    X = jaxdyn.SE3.from_vector(poses(truth(), q))
    found = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, mount @ X @ turned))
    assert found.status == jaxdyn.Status.CONVERGED
    assert max(found.noise.values()) < 1.3e-4


def test_effects_that_the_model_lacks():
    q, compliance = postures(30, 1), np.array([0, 0, 2e-5, 0, 0, 0])
    load = np.asarray(jaxdyn.generalized_gravity(truth(), q))
    bent = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, poses(truth(), q - compliance * load)))
    assert bent.causes[0].name == "flexible joints"
    assert bent.causes[0].joints[0] == "elbow_joint"
    assert bent.causes[0].parameters["elbow_joint"] == pytest.approx(2e-5, rel=0.3)
    assert "bend under gravity" in str(bent)
    stretched = q * (1 + 3e-4 * (np.arange(6) == 1))
    found = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, poses(truth(), stretched)))
    assert found.causes[0].name == "gear ratios"
    assert found.causes[0].parameters["shoulder_lift_joint"] == pytest.approx(3e-4, rel=0.3)
    stated = sysid.MeasuredPoses(FRAME, poses(truth(), q), position_noise=2e-5, rotation_noise=1e-4)
    assert "times the noise that was stated" in str(sysid.calibrate(ur5(), q, stated))


@functools.cache
def small_arm() -> jaxdyn.Model:
    """A turning column, an upper arm, a slider, and a tool with two frames."""
    builder, box = ModelBuilder(), BodyInertia.box(1.0, (0.1, 0.1, 0.3))
    builder.add_body("column", joint=Joint(name="turn", axis=(0, 0, 1)), inertia=box)
    builder.add_body("upper", "column", Joint(name="lift", axis=(0, 1, 0)), (0.1, 0, 0.3), box)
    builder.add_body("sled", "upper", Joint(name="reach", type="prismatic", axis=(1, 0, 0)), (0.3, 0, 0), box)
    builder.add_body("hand", "sled", Joint(name="roll", axis=(1, 2, 0)), (0.1, 0, 0), box)
    return builder.add_frame("tip", "hand", (0.1, 0, 0.05)).build()


def arm_postures(count: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    return rng.uniform([-2, -1, -0.2, -2], [2, 1, 0.2, 2], (count, 4))


def test_markers_at_unknown_points():
    model, q = small_arm(), arm_postures(40)
    p = sysid.Parametrization(model, sysid.KinematicErrors())
    true = p.model(0.2 * np.random.default_rng(1).normal(size=p.size))
    points = np.array([[0.1, 0, 0], [0, 0.12, 0.05], [-0.05, 0, 0.1]])
    hand = jaxdyn.frame_pose(true, q, "hand")
    seen = np.asarray(hand.translation)[:, None] + np.einsum("nij,mj->nmi", hand.rotation, points)
    seen = seen + 1e-4 * np.random.default_rng(2).normal(size=seen.shape)
    seen[3, 1] = np.nan
    found = sysid.calibrate(model, q, sysid.MeasuredPositions("hand", seen))
    assert found.status == jaxdyn.Status.CONVERGED
    assert found.noise["positions of markers on hand"] == pytest.approx(1e-4, rel=0.2)
    assert sum("marker" in x for x in found.intervals.names) == 9
    # Three lines of axes, the direction of the slider, and the markers; the mounting among them is the first line.
    assert len(found.intervals.names) == 3 * 4 + 2 + 6 + 3


def test_a_fixed_point_and_gravity():
    """The tip touches one point, an accelerometer is on the hand: the lengths count only together."""
    model = small_arm()
    p = sysid.Parametrization(model, sysid.KinematicErrors(base=False))
    true = p.model(0.1 * np.random.default_rng(1).normal(size=p.size))
    goal = np.array(jaxdyn.frame_pose(true, np.array([0.3, 0.4, 0.1, 0.2]), "tip").translation)
    q = []
    for start in arm_postures(120):
        x = start
        for _ in range(8):
            J = np.asarray(jaxdyn.frame_jacobian(true, x, "tip"))[:3]
            x = x + np.linalg.pinv(J) @ (goal - np.asarray(jaxdyn.frame_pose(true, x, "tip").translation))
        if np.linalg.norm(np.asarray(jaxdyn.frame_pose(true, x, "tip").translation) - goal) < 1e-9:
            q.append(x)
    q = np.array(q)
    assert len(q) > 20
    up = np.asarray(jaxdyn.frame_pose(true, q, "hand").rotation)[:, 2]
    rng = np.random.default_rng(3)
    touched = q + 1e-5 * rng.normal(size=q.shape)
    touches = [sysid.FixedPoint("tip", range(k, len(q), 2)) for k in range(2)]
    measured = [*touches, sysid.MeasuredGravity("hand", 9.81 * up + 1e-3 * rng.normal(size=up.shape))]
    choice = sysid.KinematicErrors(base=False, axes=False, frames=["tip"])
    found = sysid.calibrate(model, touched, measured, free=choice)
    assert found.status == jaxdyn.Status.CONVERGED
    assert {"fixed point of tip: x (1)", "fixed point of tip: x (2)"} < set(found.intervals.names)
    assert "offset of lift" in found.intervals.names
    assert found.relations["tip: rx"] == {}
    # A turn about the vertical moves the unknown point along, and gravity does not show it.
    assert "offset of turn" in found.relations


def test_closed_loops():
    builder, box = ModelBuilder(), BodyInertia.box(1.0, (0.3, 0.04, 0.04), (0.15, 0, 0))
    for side, x in (("left", 0.0), ("right", 0.4)):
        builder.add_body(f"{side} crank", "world", Joint(name=side, axis=(0, 1, 0)), (x, 0, 0), box)
        builder.add_body(f"{side} bar", f"{side} crank", Joint(name=f"{side} elbow", axis=(0, 1, 0)), (0.3, 0, 0), box)
    model = builder.add_loop("pin", "connect", "left bar", "right bar", (0.5, 0, 0), (0.5, 0, 0)).build()
    true = sysid.Parametrization(model, sysid.LinkLength(["left elbow", "right"])).model(np.array([0.02, -0.01]))
    starts = np.array([-2.0, 0.9, -1.1, -0.9]) + 0.3 * np.random.default_rng(0).normal(size=(30, 4))
    q = np.asarray(jax.vmap(lambda x: jaxdyn.project_configuration(true, x).q)(starts))
    offset = np.array([0.0, 0.01, 0.0, 0.0])
    rng = np.random.default_rng(0)
    read = q - offset + 1e-5 * rng.normal(size=q.shape)
    choices = sysid.KinematicErrors(base=False, axes=False), sysid.LinkLength(["left elbow"])
    # The distance of the drives sets the scale.
    start = sysid.Parametrization(model, sysid.LinkLength(["right"])).model(np.array([-0.01]))
    found = sysid.calibrate(start, read, sysid.ClosedLoops(), free=choices)
    got = dict(zip(found.intervals.names, found.intervals.value, strict=True))
    assert got["log length to left elbow"] == pytest.approx(0.02, abs=1e-4)
    assert got["offset of left elbow"] == pytest.approx(0.01, abs=2e-4)


def test_chosen_postures_determine_more_than_random_ones():
    def measure(model, q):
        return sysid.MeasuredPoses(FRAME, jaxdyn.frame_pose(model, q, FRAME), position_noise=1e-4, rotation_noise=1e-4)

    candidates = postures(30, 1)
    chosen = sysid.select_postures(ur5(), 8, measure, candidates)
    assert len(set(chosen.rows.tolist())) == 8
    np.testing.assert_array_equal(chosen.q, candidates[chosen.rows])
    assert (np.diff(chosen.shares) <= 0).all()
    sizes = []
    for rows in (chosen.rows, range(8)):
        measured = np.full((30, 7), np.nan)
        measured[rows] = poses(truth(), candidates)[rows]
        found = sysid.calibrate(
            ur5(), candidates, sysid.MeasuredPoses(FRAME, measured, position_noise=1e-4, rotation_noise=1e-4)
        )
        sizes.append(0.5 * np.linalg.slogdet(found.covariance)[1])
    assert sizes[0] < sizes[1] - 2
    assert chosen.log_det > chosen.random_log_det + 2


def test_what_does_not_fit_is_refused():
    q, exact = postures(4, 1), poses(truth(), postures(30, 1))[:4]
    few = np.full((30, 7), np.nan)
    few[:4] = exact
    with pytest.raises(jaxdyn.DataError, match="leave nothing to estimate"):
        sysid.calibrate(ur5(), postures(30, 1), sysid.MeasuredPoses(FRAME, few))
    with pytest.raises(jaxdyn.DataError, match="has 4 rows, but there are 3"):
        sysid.calibrate(ur5(), q[:3], sysid.MeasuredPoses(FRAME, exact))
    with pytest.raises(jaxdyn.DataError, match="must be unit, w first"):
        sysid.MeasuredPoses(FRAME, 2 * exact)
    with pytest.raises(jaxdyn.UnknownNameError, match="tool0"):
        sysid.calibrate(ur5(), q, sysid.MeasuredPoses("tool", exact))
    with pytest.raises(jaxdyn.DataError, match="no loops"):
        sysid.calibrate(ur5(), q, sysid.ClosedLoops())
    with pytest.raises(jaxdyn.ModelError, match="which only its joint places"):
        sysid.Parametrization(ur5(), sysid.KinematicErrors(frames=["wrist_3_link"]))


def test_numbers_of_errors_are_a_bijection_where_they_are_minimal():
    q = postures(30, 1)
    found = sysid.calibrate(ur5(), q, sysid.MeasuredPoses(FRAME, poses(truth(), q)))
    minimal = sysid.Parametrization(ur5(), sysid.KinematicErrors(frames=[FRAME], held=list(found.relations)))
    x = 0.3 * np.random.default_rng(4).normal(size=minimal.size)
    np.testing.assert_allclose(minimal.free(minimal.model(x)), x, atol=1e-9)
