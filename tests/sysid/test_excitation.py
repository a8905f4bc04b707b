"""Optimal excitation: its motions keep every limit and determine the parameters better than random motions."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, ModelError, rnea
from jaxdyn.sysid import JointTrajectory, MotionLimits, optimize_excitation, ordinary_least_squares
from tests.robots import robot_path


def limited(n: int = 2):
    chain = jaxdyn.samples.chain(n)
    ones = jnp.ones(n)
    return dataclasses.replace(
        chain, position_lower=-2.0 * ones, position_upper=2.5 * ones, velocity_limit=3 * ones, effort_limit=3 * ones
    )


def violations(model, trajectory, acceleration=np.inf) -> np.ndarray:
    """The largest excesses of positions (rad), and of speeds, accelerations and torques relative to their limits, on a
    fine grid."""
    q, v, a = trajectory(np.linspace(0, trajectory.duration, 3001))
    tau = np.asarray(rnea(model, *(jnp.asarray(x) for x in (q, v, a))))
    return np.array(
        [
            np.max(np.maximum(model.position_lower - q, q - model.position_upper)),
            np.max(np.abs(v) / np.asarray(model.velocity_limit)) - 1,
            np.max(np.abs(a)) / acceleration - 1,
            np.max(np.abs(tau) / np.asarray(model.effort_limit)) - 1,
        ]
    )


@pytest.mark.parametrize("kind", ["fourier", "spline"])
def test_trajectories_begin_at_rest_and_are_their_derivatives(kind):
    size, rows = (4, 7) if kind == "fourier" else (6, 7)
    c = np.random.default_rng(0).standard_normal((rows, 2))
    x = JointTrajectory(kind, 5.0, size, c)
    t = np.linspace(0, 5, 5001)
    q, v, a = x(t)
    np.testing.assert_allclose(v[0], 0, atol=1e-12)
    np.testing.assert_allclose(a[0], 0, atol=1e-11)
    np.testing.assert_allclose(np.gradient(q, t, axis=0)[1:-1], v[1:-1], atol=1e-4 * np.abs(a).max())
    np.testing.assert_allclose(np.gradient(v, t, axis=0)[1:-1], a[1:-1], atol=1e-3 * np.abs(a).max())
    if kind == "fourier":
        np.testing.assert_allclose(q[-1], q[0], atol=1e-12)
        assert len(x.sampled(100, periods=2)) == 1001
    else:
        np.testing.assert_allclose([v[-1], a[-1]], 0, atol=1e-9)
        with pytest.raises(DataError, match="lasts from 0 to 5 s"):
            x([5.1])
        with pytest.raises(DataError, match="only a Fourier series"):
            x.sampled(100, periods=2)


def error(model, trajectory) -> float:
    """The mean logarithm of the standard errors of the base parameters, from least squares with noisy torques."""
    r = trajectory.sampled(25)
    tau = np.asarray(rnea(model, *(jnp.asarray(x) for x in r.require("q", "v", "a"))))
    noisy = dataclasses.replace(r, tau=tau + 0.1 * np.random.default_rng(0).standard_normal(tau.shape))
    fit = ordinary_least_squares(model, noisy)
    return float(np.mean(np.log(fit.intervals(fit.base_parameters()).standard_error)))


@pytest.mark.parametrize(
    ("kind", "criterion", "size"),
    [("fourier", "log_det", 3), pytest.param("spline", "condition", 6, marks=pytest.mark.slow)],
)
def test_the_motion_is_better_than_random_ones_and_keeps_every_limit(kind, criterion, size):
    model, seen = limited(), []
    solution = optimize_excitation(
        model,
        duration=6.0,
        kind=kind,
        size=size,
        criterion=criterion,
        limits=MotionLimits(acceleration=15.0),
        starts=3,
        steps=120,
        report=lambda *x: seen.append(x),
    )
    assert len(solution.random) == 3
    assert seen[-1][0] == solution.steps == 120
    if criterion == "log_det":
        assert solution.after.log_det > max(x.log_det for x in solution.random) + 0.2
        # The information matrix is the inverse covariance, so the mean logarithm of the standard errors falls by half
        # the rise of log_det per parameter.
        assert error(model, solution.trajectory) < error(model, solution.start) - 0.1
    else:
        assert solution.after.condition < 0.5 * min(x.condition for x in solution.random)
    for trajectory in (solution.start, solution.trajectory):
        assert violations(model, trajectory, 15.0).max() < 1e-4
    assert set(solution.margins) == {"position", "velocity", "acceleration", "torque"}
    assert min(x.min() for x in solution.margins.values()) >= 0
    # The motion comes close to at least one limit.
    assert min(x.min() for x in solution.margins.values()) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["log_det", "condition"])
def test_a_six_joint_arm(criterion):
    model = jaxdyn.load_urdf(robot_path("ur5"))
    solution = optimize_excitation(model, criterion=criterion, limits=MotionLimits(acceleration=12.0))
    best_det, best_condition = max(x.log_det for x in solution.random), min(x.condition for x in solution.random)
    print(
        f"{criterion}: {solution.parameters} base parameters; log det {best_det:.3f} to {solution.after.log_det:.3f}, "
        f"condition {best_condition:.1f} to {solution.after.condition:.1f}; {solution.message}; "
        f"margins { {k: round(float(x.min()), 4) for k, x in solution.margins.items()} }"
    )
    assert violations(model, solution.trajectory, 12.0).max() < 1e-4
    if criterion == "log_det":
        assert solution.after.log_det > best_det + 0.5
    else:
        assert solution.after.condition < 0.5 * np.median([x.condition for x in solution.random])
        assert solution.after.condition < 0.6 * best_condition


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "steps"}, "kind is 'steps'"),
        ({"criterion": "e"}, "criterion is 'e'"),
        ({"size": 1}, "needs at least 2"),
        ({"steps": 0}, "steps is 0; a positive integer"),
        ({"limits": MotionLimits(position=(-np.inf, np.inf))}, r"joints joint0, joint1: no range of positions"),
        ({"limits": MotionLimits(velocity=[1.0, 2.0, 3.0])}, r"limits.velocity has shape \(3,\)"),
        ({"limits": MotionLimits(velocity=[1.0, 0.0])}, "joints joint1: a velocity limit that is not positive"),
        ({"torque_noise": -1.0}, "torque_noise is -1.0"),
        ({"limits": MotionLimits(torque=1e-3)}, "random postures at rest"),
        ({"limits": MotionLimits(velocity=np.inf, torque=np.inf)}, "no limit but of its positions"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(DataError, match=message):
        optimize_excitation(limited(), **({"duration": 6.0, "size": 3, "starts": 3} | change))


def test_a_floating_robot_is_refused():
    with pytest.raises(ModelError, match="free or ball joints"):
        optimize_excitation(jaxdyn.samples.quadruped())
