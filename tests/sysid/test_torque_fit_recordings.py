"""Fits to recordings of real robots, and of a robot that another engine simulates, reach the required accuracy."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest

from jaxdyn import Model
from jaxdyn._status import Status
from jaxdyn.cli import Simulation, simulate_recording
from jaxdyn.io import load_urdf
from jaxdyn.sysid import (
    JointEffects,
    JointEffectValues,
    Recording,
    fit_inverse_dynamics,
    load_npz,
    ordinary_least_squares,
)
from jaxdyn.sysid.torques._physical_fit import minimize, start_at
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples
from tests.robots import robot_path
from tests.sysid.convex_optimum import convex_optimum

DATA = os.environ.get("JAXDYN_DATA")
recorded = pytest.mark.skipif(not DATA, reason="JAXDYN_DATA does not name the recorded data")
# Velocity over which the baseline's friction changes its sign, rad/s. Among 0.01, 0.02, 0.05 and 0.1 this value has
# the smallest residual on the fitted part.
FRICTION_VELOCITY = 0.05


def prepare(recording: Recording, cutoff: float) -> tuple[Recording, Recording]:
    """Return the recording after resampling, filtering and differentiation, and the same with unfiltered torques."""
    uniform = recording.resampled(200.0)
    data = uniform.filtered(cutoff).differentiated()
    assert uniform.tau is not None
    first = int(np.argmin(np.abs(uniform.t - data.t[0])))
    return data, dataclasses.replace(data, tau=uniform.tau[first : first + len(data)])


def kuka() -> tuple[Model, list[Recording]]:
    folder = Path(str(DATA)) / "kuka_lwr4"
    # The file gives one fixed joint two placements; both give the arm's axes the same directions relative to gravity.
    text = (folder / "kuka_lwr4.urdf").read_text().replace('<origin rpy="0 0 0" xyz="-0.25 0 1"/>', "")
    with pytest.warns(UserWarning, match="rotor_inertia"):
        model = load_urdf(text)
    runs = [prepare(load_npz(folder / f"run_{k}.npz"), 8.0)[0] for k in (1, 2)]
    # At first the robot leaves rest and catches up with the trajectory.
    return model, [x.trimmed(1.5) for x in runs]


@recorded
@pytest.mark.slow
def test_panda_physical_and_no_worse_than_least_squares():
    """The fit is physical and predicts as well as least squares. The joint effects were chosen on the first 10 s: after
    a fit to 7 s, friction that lags the velocity improves the prediction of 3 s, and the Stribeck effect does not."""
    folder = Path(str(DATA)) / "panda_exciting"
    model = load_urdf(folder / "panda_no_gripper.urdf")
    whole = load_npz(folder / "first_14s.npz")
    train, _ = prepare(whole.between(0, 10), 10.0)
    filtered, raw = prepare(whole.between(10, 14), 10.0)
    linear = ordinary_least_squares(model, train, friction_velocity=FRICTION_VELOCITY)
    effects = JointEffects(friction_velocity=True, friction_delay=True)
    fit = fit_inverse_dynamics(model, train, joint_effects=effects, friction_velocity=FRICTION_VELOCITY)
    assert fit.physical.all()
    assert fit.converged
    assert fit.iterations < 100
    assert not linear.physical.any()
    assert fit.evaluate(raw).total_rms <= linear.evaluate(raw).total_rms
    assert fit.evaluate(filtered).total_rms <= linear.evaluate(filtered).total_rms
    assert fit.evaluate(filtered).total_rms < 0.1465


@recorded
@pytest.mark.slow
def test_panda_fit_is_the_optimum_of_the_semidefinite_program():
    """The optimum agrees for the weights of the last round and the default prior weight of `fit_inverse_dynamics`."""
    folder = Path(str(DATA)) / "panda_exciting"
    model = load_urdf(folder / "panda_no_gripper.urdf")
    train, _ = prepare(load_npz(folder / "first_14s.npz").between(0, 10), 10.0)
    samples = Samples(model, train, JointEffects(), EffectShape.default(np.full(model.nv, FRICTION_VELOCITY)))
    (data,) = samples.compressed()
    start = start_at(model, samples, 0.1, 0.1)
    first = minimize(start.with_data(data, samples.torque_scale, samples.layout), start.prior, 200)
    problem = start.with_data(data, data.residual_rms(first.point.parameters()), samples.layout)
    optimum = minimize(problem, start.prior, 200)
    assert optimum.status == Status.CONVERGED
    assert optimum.steps < 100
    assert optimum.cost == pytest.approx(convex_optimum(problem), rel=1e-6)


@recorded
@pytest.mark.slow
def test_kuka_second_run_from_the_first():
    model, (train, test) = kuka()
    effects = JointEffects(spring=True, stribeck=True, friction_velocity=True, friction_delay=True)
    fit = fit_inverse_dynamics(
        model, train, joint_effects=effects, friction_velocity=FRICTION_VELOCITY, prior_weight=10.0
    )
    assert fit.physical.all()
    assert fit.converged
    assert fit.iterations < 100
    linear = ordinary_least_squares(model, train, friction_velocity=FRICTION_VELOCITY)
    assert fit.evaluate(test).relative <= 0.017
    assert fit.evaluate(test).relative < 0.95 * linear.evaluate(test).relative


@recorded
@pytest.mark.slow
def test_kuka_fast_seconds_from_slow_ones():
    model, (run, _) = kuka()
    assert run.v is not None
    seconds = [run.between(run.t[0] + k, run.t[0] + k + 1) for k in range(int(run.duration))]
    speed = np.array([np.sqrt(np.mean(x.v**2)) for x in seconds if x.v is not None])
    slow = [x for x, s in zip(seconds, speed, strict=True) if s <= np.median(speed)]
    fast = [x for x, s in zip(seconds, speed, strict=True) if s > np.median(speed)]
    linear = ordinary_least_squares(model, slow, friction_velocity=FRICTION_VELOCITY)
    fit = fit_inverse_dynamics(
        model, slow, joint_effects=JointEffects(spring=True), friction_velocity=FRICTION_VELOCITY
    )
    assert fit.physical.all()
    assert fit.evaluate(fast).relative <= 0.7 * linear.evaluate(fast).relative


@pytest.mark.slow
def test_parameters_of_an_arm_simulated_by_another_engine_come_back():
    pytest.importorskip("mujoco")
    nominal = load_urdf(robot_path("ur5"))
    config = Simulation(duration=20.0, timestep=0.001, engine="mujoco", seed=1)
    made = simulate_recording(nominal, config, FRICTION_VELOCITY)
    exact = made.exact
    assert exact.tau is not None
    # Simulate another motion, which no fit uses.
    unseen = simulate_recording(nominal, dataclasses.replace(config, seed=2), FRICTION_VELOCITY).exact
    values = dataclasses.replace(JointEffectValues.none(made.truth), offset=made.offset)
    unseen = dataclasses.replace(unseen, tau=values.torque(made.truth, unseen.t, unseen.q, unseen.v, unseen.a))
    rng = np.random.default_rng(3)
    size = np.sqrt(np.mean(exact.tau**2, axis=0))
    for part, limit in ((0.01, 0.0045), (0.05, 0.021)):
        noisy = dataclasses.replace(exact, tau=exact.tau + part * size * rng.normal(size=exact.tau.shape))
        fit = fit_inverse_dynamics(nominal, noisy, friction_velocity=FRICTION_VELOCITY)
        error = fit.evaluate(exact).total_rms
        assert fit.converged
        assert fit.physical.all()
        assert error <= limit
        assert fit.evaluate(unseen).total_rms <= 2 * error
        # Derivatives estimated from positions with 1e-5 rad of noise increase the error by at most a factor of 1.5.
        q = noisy.q + 1e-5 * rng.normal(size=noisy.q.shape)
        positions = dataclasses.replace(noisy, q=q, v=None, a=None).filtered(20.0).differentiated()
        fit = fit_inverse_dynamics(nominal, positions, friction_velocity=FRICTION_VELOCITY)
        assert fit.evaluate(exact).total_rms <= 1.5 * error
