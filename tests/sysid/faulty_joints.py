"""Recordings of a simulated arm whose joints have an effect that the model lacks, and the cause that is right."""

import dataclasses

import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn.sysid import JointEffectValues, Recording

ONE, ALL = np.array([0.0, 1.0, 0.0]), np.ones(3)
STRIBECK, SOME = {"stribeck_velocity": 0.15 * ALL, "static": 0.9 * ALL}, np.array([1.0, -0.7, 0.8])
FAULTS = {
    "asymmetric friction": [{"viscous_asymmetry": 0.2 * SOME}, {"viscous_asymmetry": 0.25 * ONE}],
    "position-dependent friction": [
        {"harmonics": (1.0,), "cosine": 0.25 * SOME[None], "sine": 0.15 * ALL[None]},
        {"harmonics": (2.0,), "cosine": 0.2 * ALL[None], "sine": 0.2 * SOME[None]},
        {"harmonics": (1.0,), "cosine": 0 * ONE[None], "sine": 0.4 * ONE[None]},
    ],
    "presliding friction": [{"presliding": d * ALL} for d in (0.02, 0.05, 0.1)],
    "flexibility": [{"compliance": ALL / k, "deflection_cutoff": np.inf} for k in (800.0, 1500.0)],
    "warm-up": [
        {"warm_up": T * ALL, "warm_up_viscous": 0.2 * ALL, "warm_up_coulomb": 0.3 * ALL} for T in (3.0, 6.0, 20.0)
    ],
    "Stribeck friction": [STRIBECK, STRIBECK | {"stribeck_velocity": 0.3 * ALL}],
    "gain": [{"gain": 1 / np.array([0.8, 1.2, 1.35])}, {"gain": 1 / np.array([1.0, 1.0, 1.3])}],
    "none": [{}, {"offset": np.array([0.5, -1.0, 0.3])}, {"friction_velocity": 0.02}],
}
"""Twenty changes of `JointEffectValues`, by the cause that the residuals of a fit without effects should point to."""


def recording_with(change: dict, seed: int, rate: float = 250.0, *, exact: bool = False):
    """Return a start with wrong inertias, the truth, its values, and a recording with noise of the torques and, unless
    the motion is `exact`, of the encoders."""
    rng, width = np.random.default_rng(seed), change.get("friction_velocity", 0.02)
    change = {name: x for name, x in change.items() if name != "friction_velocity"}
    arm = jaxdyn.samples.arm().with_locked_joints({f"joint{i}": 0.0 for i in (4, 5, 6, 7)})
    truth = arm.with_joint_friction(0.5, 0.4, width).with_armature(0.1)
    t, w = np.arange(0.0, 12.0, 1 / rate), np.arange(1, 6) * np.pi / 3
    sizes = 0.4 * rng.normal(size=(2, 5, 3)) / np.arange(1, 6)[:, None] ** 0.7
    s, c = np.sin(np.outer(t, w)), np.cos(np.outer(t, w))
    q, v, a = (x @ sizes[0] + y @ sizes[1] for x, y in ((s, c), (c * w, -s * w), (-s * w**2, -c * w**2)))
    q = q + np.array([0.0, 0.5, 0.2])
    values = dataclasses.replace(JointEffectValues.none(truth), **change)
    tau = values.torque(truth, t, q, v, a)
    tau = tau + 0.015 * np.maximum(tau.std(axis=0), 0.3) * rng.normal(size=tau.shape)
    factors = jnp.asarray(rng.uniform(0.7, 1.4, 3))[:, None]
    start = dataclasses.replace(truth, inertial_parameters=truth.inertial_parameters * factors)
    start = start.with_joint_friction(0.1, 0.1, 0.02).with_armature(1e-3)
    if exact:
        return start, truth, values, Recording(t, q, v, a, tau)
    return start, truth, values, Recording(t, q + 5e-5 * rng.normal(size=q.shape), tau=tau)
