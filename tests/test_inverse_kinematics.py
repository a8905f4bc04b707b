"""Inverse kinematics: targets that are reached, and said to be; targets that are not; derivatives of the solution."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from robots import robot_path
from small_robots import robot

import jaxdyn
from jaxdyn import ModelError, ShapeError, Status, UnknownNameError
from jaxdyn.algorithms import FrameTarget, inverse_kinematics
from jaxdyn.io import load_urdf
from jaxdyn.spatial import SE3

BATCH = 12


def errors(model, q, frame, pose: SE3):
    """The distance and the angle between a frame and its target."""
    at = jaxdyn.frame_pose(model, q, frame)
    turn = (SE3(jnp.swapaxes(pose.rotation, -1, -2), jnp.zeros(3)) @ at).log()
    return np.linalg.norm(at.translation - pose.translation, axis=-1), np.linalg.norm(turn[..., 3:], axis=-1)


@functools.cache
def arm():
    model = jaxdyn.samples.arm()
    goal = model.random_configuration(jax.random.key(1), (BATCH,))
    start = jnp.broadcast_to(0.5 * (model.position_lower + model.position_upper), goal.shape)
    restarts = model.random_configuration(jax.random.key(2), (10, BATCH))
    return model, jaxdyn.frame_pose(model, goal, "flange"), start, restarts


def within_limits(model, q) -> bool:
    return bool(((q >= model.position_lower) & (q <= model.position_upper)).all())


def test_reached_within_the_limits_and_each_by_itself():
    model, pose, start, restarts = arm()
    found = inverse_kinematics(model, FrameTarget.of_pose("flange", pose), start, restarts=restarts)
    assert found.reached.all()
    assert (found.status == Status.CONVERGED).all()
    for error in errors(model, found.q, "flange", pose):
        assert error.max() < 1.1e-8
    assert float(found.error.max()) <= 1e-8
    assert within_limits(model, found.q)
    # Of others in the batch: one out of reach, one that is no number, the rest at their targets from the beginning.
    far = pose.translation.at[0].set(5.0).at[1].set(jnp.nan)
    start = found.q.at[2].set(start[2])
    mixed = inverse_kinematics(model, FrameTarget.of_pose("flange", SE3(pose.rotation, far)), start, restarts=restarts)
    assert mixed.status[0] in (Status.STALLED, Status.OUT_OF_ITERATIONS)
    assert mixed.status[1] == Status.DIVERGED
    assert (mixed.status[2:] == Status.CONVERGED).all()
    assert (mixed.steps[3:] == 1).all()
    np.testing.assert_array_equal(mixed.q[3:], found.q[3:])
    np.testing.assert_array_equal(mixed.q[2], found.q[2])
    assert np.isfinite(mixed.q).all()
    assert within_limits(model, mixed.q)
    # Out of reach, the arm stretches toward the target.
    assert float(mixed.error[0]) == pytest.approx(
        float(errors(model, mixed.q, "flange", SE3(pose.rotation, far))[0][0])
    )


@pytest.mark.slow
def test_several_targets_a_posture_and_joints_that_mimic():
    model, q, v = robot()
    goal = model.integrate(q, 0.1 * v)
    base, hand = (jaxdyn.frame_pose(model, goal, name) for name in ("base", "hand"))
    targets = (FrameTarget.of_pose("base", base), FrameTarget("hand", position=hand.translation, position_weight=3.0))
    # Not held to a posture, held to one in which the targets are reached, and to one in which they are not.
    weights = jnp.array([0.0, 10.0, 10.0])
    postures = model.integrate(jnp.stack([goal] * 3), jnp.array([0.0, 0.0, 0.3])[:, None] * jnp.ones(model.nv))
    found = inverse_kinematics(model, targets, q, posture=postures, regularization=weights)
    np.testing.assert_array_equal(found.status, [Status.CONVERGED, Status.CONVERGED, Status.STALLED])
    assert max(x[:2].max() for x in errors(model, found.q, "base", base)) < 1.1e-8
    assert errors(model, found.q, "hand", hand)[0][:2].max() < 1.1e-8
    # The ball joint moves none of the frames: it stays where it was.
    ball = model.q_index("ball_joint")
    np.testing.assert_allclose(found.q[0, ball], q[ball], atol=1e-12)
    np.testing.assert_allclose(model.difference(found.q[1], goal), 0, atol=1e-7)

    def cost(q):
        (distance, angle), (off, _) = errors(model, q, "base", base), errors(model, q, "hand", hand)
        astray = model.difference(postures[2], q)
        return 0.5 * (distance**2 + angle**2 + 9.0 * off**2 + 10.0 * (astray**2).sum(axis=-1))

    # In a compromise the cost is least.
    n, h = model.nv, 1e-5
    around = jnp.concatenate([h * jnp.eye(n), -h * jnp.eye(n), jnp.zeros((1, n))])
    costs = cost(model.integrate(jnp.stack([found.q[2]] * (2 * n + 1)), around))
    assert float(found.cost[2]) == pytest.approx(float(costs[-1]), rel=1e-9)
    np.testing.assert_allclose((costs[:n] - costs[n:-1]) / (2 * h), 0, atol=1e-5)


def test_derivatives_of_the_solution():
    """By the target and by the robot's geometry, against solutions for displaced ones."""
    model, pose, start, restarts = arm()
    target = FrameTarget.of_pose("flange", pose)
    first = inverse_kinematics(model, target, start, restarts=restarts).q[4]

    def solution(position, placement):
        changed = dataclasses.replace(model, joint_placement=placement)
        target = FrameTarget("flange", position, pose.rotation[4])
        return inverse_kinematics(changed, target, first, tolerance=1e-12).q

    keys = jax.random.split(jax.random.key(3), 3)
    shift = jax.random.normal(keys[0], (3,))
    moved = jnp.zeros_like(model.joint_placement).at[:, :3].set(0.1 * jax.random.normal(keys[1], (7, 3)))
    weights = jax.random.normal(keys[2], (7,))
    at, direction, step = (pose.translation[4], model.joint_placement), (shift, moved), 1e-6
    both = jax.jit(jax.value_and_grad(lambda *x: jnp.vdot(weights, solution(*x)), (0, 1)))
    along = sum(jnp.vdot(g, d) for g, d in zip(both(*at)[1], direction, strict=True))
    up, down = (both(*(x + s * d for x, d in zip(at, direction, strict=True)))[0] for s in (step, -step))
    assert float(along) == pytest.approx(float(up - down) / (2 * step), rel=1e-4)


def test_errors():
    model, pose, start, _ = arm()
    target = FrameTarget.of_pose("flange", pose)
    with pytest.raises(UnknownNameError, match="flange"):
        inverse_kinematics(model, FrameTarget("flang", pose.translation), start)
    with pytest.raises(ModelError, match="neither position nor rotation"):
        inverse_kinematics(model, FrameTarget("flange"), start)
    with pytest.raises(ModelError, match="no targets"):
        inverse_kinematics(model, (), start)
    with pytest.raises(ModelError, match="tolerance"):
        inverse_kinematics(model, target, start, tolerance=0.0)
    with pytest.raises(ModelError, match="max_iterations"):
        inverse_kinematics(model, target, start, max_iterations=0)
    with pytest.raises(ShapeError, match="position of 'flange'"):
        inverse_kinematics(model, FrameTarget("flange", jnp.zeros(4)), start)
    with pytest.raises(ShapeError, match=r"do not broadcast.*position of 'flange'"):
        inverse_kinematics(model, target, start[:5])
    with pytest.raises(ShapeError, match="restarts"):
        inverse_kinematics(model, target, start, restarts=start[0])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "frame", "missed"), [("panda", "panda_hand", 0), ("ur5", "ee_link", 1)])
def test_a_thousand_reachable_targets(name, frame, missed):
    model = load_urdf(robot_path(name), mimic="independent")
    goal = model.random_configuration(jax.random.key(1), (1000,))
    pose = jaxdyn.frame_pose(model, goal, frame)
    # Somewhere in the middle, where no joint is stretched.
    start = jnp.broadcast_to(model.random_configuration(jax.random.key(4)), goal.shape)
    target = FrameTarget.of_pose(frame, pose)
    restarts = model.random_configuration(jax.random.key(7), (30, 1000))
    found = inverse_kinematics(model, target, start, restarts=restarts)
    # Descents are local: for one target of the UR5 all 31 starts end at stationary points elsewhere.
    reached = np.asarray(found.reached)
    assert (~reached).sum() <= missed
    assert (np.asarray(found.status)[~reached] == Status.STALLED).all()
    assert max(error[reached].max() for error in errors(model, found.q, frame, pose)) < 1.1e-8
    assert within_limits(model, found.q)
    # From a start nearby no other is needed.
    near = jnp.clip(goal + 0.05, model.position_lower, model.position_upper)
    closer = inverse_kinematics(model, target, near, max_iterations=30)
    # One of each robot's needs more steps than these, and says so.
    assert (closer.status == Status.CONVERGED).sum() >= 999
    assert (closer.status[~closer.reached] == Status.OUT_OF_ITERATIONS).all()
    few = inverse_kinematics(model, target, start, max_iterations=3)
    assert (few.status == Status.OUT_OF_ITERATIONS).sum() > 500
