"""Inverse kinematics: targets that are and are not reached, the status, and derivatives of the solution."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, ShapeError, Status, UnknownNameError
from jaxdyn.algorithms import FrameTarget, inverse_kinematics
from jaxdyn.io import load_urdf
from jaxdyn.spatial import SE3
from tests.robots import robot_path
from tests.small_robots import robot

BATCH = 12


@functools.partial(jax.jit, static_argnames="frame")
def differences(model, q, frame: str, pose: SE3):
    actual = jaxdyn.frame_pose(model, q, frame)
    turn = (SE3(jnp.swapaxes(pose.rotation, -1, -2), jnp.zeros(3)) @ actual).log()
    return actual.translation - pose.translation, turn[..., 3:]


def errors(model, q, frame, pose: SE3):
    """The distance and the angle between a frame and its target."""
    return tuple(np.linalg.norm(x, axis=-1) for x in differences(model, q, frame, pose))


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
    solution = inverse_kinematics(model, FrameTarget.of_pose("flange", pose), start, restarts=restarts)
    assert solution.reached.all()
    assert (solution.status == Status.CONVERGED).all()
    for error in errors(model, solution.q, "flange", pose):
        assert error.max() < 1.1e-8
    assert float(solution.error.max()) <= 1e-8
    assert within_limits(model, solution.q)
    # In the next batch one target is out of reach, one is NaN, and all others but one are reached from the beginning.
    far = pose.translation.at[0].set(5.0).at[1].set(jnp.nan)
    start = solution.q.at[2].set(start[2])
    mixed = inverse_kinematics(model, FrameTarget.of_pose("flange", SE3(pose.rotation, far)), start, restarts=restarts)
    assert mixed.status[0] in (Status.STALLED, Status.OUT_OF_ITERATIONS)
    assert mixed.status[1] == Status.DIVERGED
    assert (mixed.status[2:] == Status.CONVERGED).all()
    assert (mixed.steps[3:] == 1).all()
    np.testing.assert_array_equal(mixed.q[3:], solution.q[3:])
    np.testing.assert_array_equal(mixed.q[2], solution.q[2])
    assert np.isfinite(mixed.q).all()
    assert within_limits(model, mixed.q)
    # The arm stretches toward a target that is out of reach.
    assert float(mixed.error[0]) == pytest.approx(
        float(errors(model, mixed.q, "flange", SE3(pose.rotation, far))[0][0])
    )


@pytest.mark.slow
def test_several_targets_a_posture_and_joints_that_mimic():
    model, q, v = robot()
    goal = model.integrate(q, 0.1 * v)
    base, hand = (jaxdyn.frame_pose(model, goal, name) for name in ("base", "hand"))
    targets = (FrameTarget.of_pose("base", base), FrameTarget("hand", position=hand.translation, position_weight=3.0))
    # The batch has no posture, a posture in which the targets are reached, and one in which they are not.
    weights = jnp.array([0.0, 10.0, 10.0])
    postures = model.integrate(jnp.stack([goal] * 3), jnp.array([0.0, 0.0, 0.3])[:, None] * jnp.ones(model.nv))
    solution = inverse_kinematics(model, targets, q, posture=postures, regularization=weights)
    np.testing.assert_array_equal(solution.status, [Status.CONVERGED, Status.CONVERGED, Status.STALLED])
    assert max(x[:2].max() for x in errors(model, solution.q, "base", base)) < 1.1e-8
    assert errors(model, solution.q, "hand", hand)[0][:2].max() < 1.1e-8
    # The ball joint moves none of the frames, so it stays where it was.
    ball = model.q_index("ball_joint")
    np.testing.assert_allclose(solution.q[0, ball], q[ball], atol=1e-12)
    np.testing.assert_allclose(model.difference(solution.q[1], goal), 0, atol=1e-7)

    def cost(q):
        (distance, angle), (off, _) = errors(model, q, "base", base), errors(model, q, "hand", hand)
        astray = model.difference(postures[2], q)
        return 0.5 * (distance**2 + angle**2 + 9.0 * off**2 + 10.0 * (astray**2).sum(axis=-1))

    # The compromise minimizes the cost.
    n, h = model.nv, 1e-5
    around = jnp.concatenate([h * jnp.eye(n), -h * jnp.eye(n), jnp.zeros((1, n))])
    costs = cost(model.integrate(jnp.stack([solution.q[2]] * (2 * n + 1)), around))
    assert float(solution.cost[2]) == pytest.approx(float(costs[-1]), rel=1e-9)
    np.testing.assert_allclose((costs[:n] - costs[n:-1]) / (2 * h), 0, atol=1e-5)


def test_derivatives_of_the_solution():
    """Derivatives by the target and by the robot's geometry equal central differences of solutions."""
    model, pose, start, restarts = arm()
    target = FrameTarget.of_pose("flange", pose)
    first = inverse_kinematics(model, target, start, restarts=restarts).q[4]

    def solution(position, placement):
        changed = dataclasses.replace(model, joint_placement=placement)
        target = FrameTarget("flange", position, pose.rotation[4])
        return inverse_kinematics(changed, target, first, tolerance=1e-12).q

    keys = jax.random.split(jax.random.key(3), 3)
    shift = jax.random.normal(keys[0], (3,))
    stretch = jnp.zeros_like(model.joint_placement).at[:, :3].set(0.1 * jax.random.normal(keys[1], (7, 3)))
    weights = jax.random.normal(keys[2], (7,))
    arguments, direction, step = (pose.translation[4], model.joint_placement), (shift, stretch), 1e-6
    value_and_gradient = jax.jit(jax.value_and_grad(lambda *x: jnp.vdot(weights, solution(*x)), (0, 1)))
    along = sum(jnp.vdot(g, d) for g, d in zip(value_and_gradient(*arguments)[1], direction, strict=True))
    up, down = (
        value_and_gradient(*(x + s * d for x, d in zip(arguments, direction, strict=True)))[0] for s in (step, -step)
    )
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
    # All descents start from one random configuration, in which no joint is stretched.
    start = jnp.broadcast_to(model.random_configuration(jax.random.key(4)), goal.shape)
    target = FrameTarget.of_pose(frame, pose)
    restarts = model.random_configuration(jax.random.key(7), (30, 1000))
    solution = inverse_kinematics(model, target, start, restarts=restarts)
    # Descents are local: for one target of the UR5 all 31 starts end at stationary points elsewhere.
    reached = np.asarray(solution.reached)
    assert (~reached).sum() <= missed
    assert (np.asarray(solution.status)[~reached] == Status.STALLED).all()
    assert max(error[reached].max() for error in errors(model, solution.q, frame, pose)) < 1.1e-8
    assert within_limits(model, solution.q)
    # A start close to the solution needs no restarts.
    near = jnp.clip(goal + 0.05, model.position_lower, model.position_upper)
    closer = inverse_kinematics(model, target, near, max_iterations=30)
    # At most one target of each robot needs more steps; its status reports that.
    assert (closer.status == Status.CONVERGED).sum() >= 999
    assert (closer.status[~closer.reached] == Status.OUT_OF_ITERATIONS).all()
    few = inverse_kinematics(model, target, start, max_iterations=3)
    assert (few.status == Status.OUT_OF_ITERATIONS).sum() > 500
