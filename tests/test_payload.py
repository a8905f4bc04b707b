"""An arm's payload is recovered from simulated recordings with and without it."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from jaxdyn import BodyInertia, DataError, JaxdynError, Joint, ModelBuilder, ModelError, rnea
from jaxdyn.sysid import JointEffects, Recording, identify_payload

PAYLOAD = BodyInertia(1.3, (0.02, -0.01, 0.06), ((4e-3, 3e-4, -2e-4), (3e-4, 5e-3, 1e-4), (-2e-4, 1e-4, 2e-3)))


def arm():
    builder = ModelBuilder()
    builder.add_body("base", "world", Joint(axis=(0, 0, 1), name="turn"), (0, 0, 0.1), BodyInertia.sphere(2.0, 0.1))
    builder.add_body(
        "upper", "base", Joint(axis=(0, 1, 0), name="lift"), (0, 0, 0.2), BodyInertia.rod(1.5, (0, 0, 0), (0.3, 0, 0.1))
    )
    builder.add_body(
        "lower", "upper", Joint(axis=(1, 0, 0), name="twist"), (0.3, 0, 0.1), BodyInertia.sphere(0.8, 0.05, (0.1, 0, 0))
    )
    return builder.add_frame("tool", "lower", (0.15, 0.02, -0.03, 0.6, 0.0, 0.8, 0.0)).build()


def record(model, seed: int, noise: float = 0.0, n: int = 400, correlated: int = 1) -> Recording:
    """Return unrelated states and torques that have offsets and noise; `noise` is its share of each joint's torque, and
    `correlated` the number of consecutive samples that share it."""
    rng = np.random.default_rng(seed)
    q, v, a = rng.uniform(-2, 2, (n, 3)), rng.normal(0, 1, (n, 3)), rng.normal(0, 5, (n, 3))
    tau = np.asarray(rnea(model, *(jnp.asarray(x) for x in (q, v, a))))
    tau = tau + 0.2 * v + 0.3 * np.tanh(v / 0.05) + [0.1, -0.2, 0.05]
    white = np.repeat(rng.standard_normal((n // correlated, 3)), correlated, axis=0)
    return Recording(np.arange(n) / 100, q, v, a, tau + noise * tau.std(axis=0) * white)


def flatten(payload: BodyInertia) -> np.ndarray:
    I = np.asarray(payload.rotational)
    upper = I[[0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]]
    return np.concatenate([[payload.mass], np.asarray(payload.center_of_mass), upper])


def pair(noise: float, seed: int = 0, **options):
    bare = arm()
    # The inertias of the nominal robot are wrong, because only its kinematics count.
    believed = dataclasses.replace(bare, inertial_parameters=1.5 * bare.inertial_parameters)
    recordings = record(bare, seed, noise), record(bare.with_payload("tool", PAYLOAD), seed + 1, noise)
    return identify_payload(believed, *recordings, frame="tool", friction_velocity=0.05, **options), recordings


def test_exact_torques_give_the_payload():
    fit, _ = pair(0.0)
    assert fit.converged
    np.testing.assert_allclose(fit.parameters, PAYLOAD.parameters(), atol=2e-5)
    np.testing.assert_allclose(fit.unconstrained, PAYLOAD.parameters(), atol=1e-7)
    assert fit.mass == pytest.approx(1.3, abs=1e-5)
    np.testing.assert_allclose(fit.center_of_mass, PAYLOAD.center_of_mass, atol=1e-5)
    np.testing.assert_allclose(fit.inertia, PAYLOAD.rotational, atol=2e-5)
    assert np.all(fit.rms_error[1] < 1e-3 * fit.rms_unexplained)
    # The fitted model carries the payload.
    link = fit.model.inertial_parameters - arm().inertial_parameters * 1.5
    expected = arm().with_payload("tool", PAYLOAD).inertial_parameters - arm().inertial_parameters
    np.testing.assert_allclose(link, expected, atol=1e-4)


@pytest.mark.slow
def test_noisy_torques_give_it_within_its_intervals():
    covered, width = [], []
    for seed in range(0, 24, 2):
        fit, _ = pair(0.02, seed)
        covered.append((fit.intervals.lower <= flatten(PAYLOAD)) & (flatten(PAYLOAD) <= fit.intervals.upper))
        width.append(fit.intervals.standard_error)
    # 12 repetitions of 10 parameters give 120 intervals of 95 %; the number of them that cover lies between the bounds
    # in 99.9 % of such tests. The standard errors below show that the intervals are not too wide.
    low, high = binom.interval(0.999, 120, 0.95)
    assert low <= np.sum(covered) <= high
    assert np.mean(width, axis=0)[0] < 0.02
    assert np.all(np.mean(width, axis=0)[1:4] < 4e-3)


def test_residuals_that_are_alike_widen_the_intervals():
    bare, carrying = arm(), arm().with_payload("tool", PAYLOAD)
    errors = []
    for correlated in (1, 8):
        runs = [record(m, k, 0.02, correlated=correlated) for k, m in enumerate((bare, carrying))]
        fit = identify_payload(bare, *runs, frame="tool", friction_velocity=0.05)
        errors.append(fit.intervals.standard_error[0])
        assert np.all(fit.correlation < 1.5 * correlated)
    assert errors[1] > 1.8 * errors[0]


def test_what_a_motion_does_not_excite_the_prior_decides():
    bare, carrying = arm(), arm().with_payload("tool", PAYLOAD)
    resting = []
    for seed, model in enumerate((bare, carrying)):
        r = record(model, seed)
        q, zero = jnp.asarray(r.q), np.zeros_like(r.q)
        resting.append(dataclasses.replace(r, v=zero, a=zero, tau=np.asarray(rnea(model, q, zero, zero))))
    effects = JointEffects(armature=False, viscous=False, coulomb=False, offset=False)
    fit = identify_payload(bare, *resting, frame="tool", joint_effects=effects)
    assert fit.mass == pytest.approx(1.3, rel=1e-3)
    np.testing.assert_allclose(fit.center_of_mass, PAYLOAD.center_of_mass, atol=1e-3)
    # A robot at rest reveals only the weight and the center of mass.
    assert np.all(fit.intervals.prior_share[4:] > 0.9)
    assert np.all(fit.intervals.prior_share[:4] < 0.1)
    assert fit.intervals.decided_by_prior() == ("Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")


def test_mistakes_are_named():
    bare = arm()
    post = ModelBuilder().add_fixed_body("post", "world", (0, 0, 0), PAYLOAD)
    on_a_post = post.add_body("x", "post", Joint(name="j"), (0, 0, 0), PAYLOAD).build()
    r = record(bare, 0, n=60)
    with pytest.raises(JaxdynError, match="no frame named 'tol': did you mean 'tool'"):
        identify_payload(bare, r, r, frame="tol")
    with pytest.raises(DataError, match="there are no accelerations"):
        identify_payload(bare, r, dataclasses.replace(r, a=None), frame="tool")
    with pytest.raises(DataError, match="without drive gains"):
        identify_payload(bare, r, r, frame="tool", joint_effects=JointEffects(gain=True))
    with pytest.raises(ModelError, match="the prior of the payload at 'tool' is not physical"):
        identify_payload(bare, r, r, frame="tool", prior=-PAYLOAD.parameters())
    with pytest.raises(DataError, match="prior_weight is 0"):
        identify_payload(bare, r, r, frame="tool", prior_weight=0)
    with pytest.raises(ModelError, match="fixed in the world"):
        identify_payload(on_a_post, r, r, frame="post")
