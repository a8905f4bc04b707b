"""A walking robot is identified from the torques of its joints, without the forces on its feet."""

import dataclasses

import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, ModelError, UnknownNameError
from jaxdyn.sysid import (
    JointEffects,
    Recording,
    check_recording,
    fit_inverse_dynamics,
    ordinary_least_squares,
    unchecked_torques,
)
from tests.sysid.legged import FEET, PAIRS, QUANTITIES, noisy, solo, states, with_friction

SIGMA = 0.05
"""Noise of the joints' torques, N m: a tenth of what they carry when the robot stands."""


def exact() -> list[Recording]:
    """Four feet that stand, and then two in turns."""
    truth = solo()
    return [states(truth, FEET, 150, 0), states(truth, PAIRS[0], 75, 1), states(truth, PAIRS[1], 75, 2)]


def start() -> jaxdyn.Model:
    return with_friction(solo().scaled(mass=0.8), 0.02, 0.05)


def values() -> np.ndarray:
    return np.array([float(f(solo())) for f in QUANTITIES.values()])


def test_mass_and_center_of_a_quadruped_without_forces_on_its_feet():
    data = exact()
    measured = [noisy(x, SIGMA, k) for k, x in enumerate(data)]
    fit = ordinary_least_squares(start(), measured)
    assert fit.converged, fit.message
    np.testing.assert_allclose(fit.sigma[6:], SIGMA, rtol=0.3)
    found = fit.intervals(QUANTITIES)
    np.testing.assert_array_equal(found.names, list(QUANTITIES))
    assert np.all(np.abs(found.value - values()) < 4 * found.standard_error)
    # 1 % of the mass, and 1 mm.
    assert np.all(found.standard_error < [0.025, 1e-3, 1e-3, 2e-3])
    # Forces on the feet and all that the base's own joint would add are not among the parameters.
    assert not any("root_joint" in name for name in fit.names)
    assert fit.evaluate(data).total_rms < 0.5 * SIGMA
    physical = fit_inverse_dynamics(start(), measured)
    assert physical.physical.all()
    near = physical.intervals(QUANTITIES)
    assert np.all(np.abs(near.value - values()) < 5 * near.standard_error)


def test_what_stands_on_four_feet_without_the_base_says_nothing():
    """Twelve forces explain twelve torques, whatever the inertias are, unless the base is known to be free; and what a
    foot that always stands weighs goes into the ground."""
    recording = exact()[0]
    with pytest.raises(ModelError, match="do not determine mass"):
        ordinary_least_squares(start(), recording).intervals(QUANTITIES)
    unknown = dataclasses.replace(recording, measured=np.arange(18) > 5)
    with pytest.raises(DataError, match="excites nothing"):
        ordinary_least_squares(start(), unknown)


def test_a_joint_without_a_sensor_is_left_out():
    arm = jaxdyn.samples.arm()
    rng = np.random.default_rng(0)
    q, v, a = rng.uniform(-1, 1, (3, 200, arm.nv))
    tau = np.array(jaxdyn.rnea(arm, q, v, a))
    sensors = np.ones(tau.shape, bool)
    sensors[:, 2], sensors[50:90] = False, False
    broken = np.where(sensors, tau, np.nan)
    recording = Recording(np.arange(200.0), q, v, a, broken, measured=sensors)
    fit = ordinary_least_squares(arm.scaled(mass=0.7), recording)
    assert fit.evaluate(recording).relative < 1e-8
    assert fit.evaluate(recording).rms_torque[2] == 0
    assert recording.between(0, 50).measured.shape == (50, arm.nv)
    for measured, message in ((np.ones(3, bool), r"measured has shape \(3,\)"), (None, "not finite")):
        with pytest.raises(DataError, match=message):
            dataclasses.replace(recording, tau=broken, measured=measured)


def test_contacts_and_effects_that_do_not_go_together_are_refused():
    recording = exact()[0]
    ones = np.ones(len(recording), bool)
    for change, error, message in (
        ({"contacts": {"FOOT": ones}}, UnknownNameError, "FOOT"),
        ({"contacts": np.ones((150, 2)), "contact_frames": ("FL_FOOT",)}, DataError, "give a mapping"),
        ({"contacts": None}, DataError, "contact_frames is given without contacts"),
    ):
        with pytest.raises(error, match=message):
            ordinary_least_squares(start(), dataclasses.replace(recording, **change))
    for effects, message in (
        (JointEffects(gain=True), "gain, in recordings with contacts"),
        (JointEffects(length=["FL_KFE"]), "length, in recordings with contacts"),
        (JointEffects(friction_delay=True), "friction_delay are searched for"),
    ):
        with pytest.raises(DataError, match=message):
            fit_inverse_dynamics(start(), recording, joint_effects=effects)
    assert "contacts at" in str(recording)
    assert {x.kind for x in check_recording(recording, start(), warn=False)} <= {"rates"}
    assert "unknown forces of contacts" in unchecked_torques(recording, start())[0]


@pytest.mark.slow
def test_intervals_of_mass_and_center_have_the_truth():
    """At least 90 % of 120 intervals of 95 % (four numbers, 30 recordings) have the truth. They are the larger ones of
    two estimates, each of few equations here: 103 of the first 104 had it."""
    data, truth, inside = exact(), values(), []
    for seed in range(30):
        fit = ordinary_least_squares(start(), [noisy(x, SIGMA, 10 * seed + k) for k, x in enumerate(data)])
        found = fit.intervals(QUANTITIES)
        inside.append((found.lower <= truth) & (truth <= found.upper))
    assert np.mean(inside) >= 0.9, np.sum(inside, axis=0)
    # Wide intervals would have it, too: one percent of the mass.
    assert found.standard_error[0] < 0.01 * truth[0]
