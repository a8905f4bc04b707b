"""States of a quadruped that stands and trots, with the torques of its joints and without the forces on its feet."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn.sysid import Recording
from tests.robots import robot_path

FEET = ("FL_FOOT", "FR_FOOT", "HL_FOOT", "HR_FOOT")
PAIRS = (("FL_FOOT", "HR_FOOT"), ("FR_FOOT", "HL_FOOT"))
_STANCE = np.array([0.0, 0.8, -1.6, 0.0, 0.8, -1.6, 0.0, -0.8, 1.6, 0.0, -0.8, 1.6])


@functools.cache
def solo() -> jaxdyn.Model:
    return with_friction(jaxdyn.load_urdf(robot_path("solo12"), free_base=True), 0.05, 0.1)


def with_friction(model: jaxdyn.Model, viscous: float, coulomb: float) -> jaxdyn.Model:
    """Return the model with friction in the joints of the legs."""
    legs = np.arange(18) > 5
    return model.with_joint_friction(viscous * legs, coulomb * legs, 0.1)


@jax.jit
def _kinematics(model, q, v):
    J = jnp.stack([jaxdyn.frame_jacobian(model, q, x)[:, :3] for x in FEET], axis=1)
    bias = jnp.stack([jaxdyn.frame_bias_acceleration(model, q, v, x)[:, :3] for x in FEET], axis=1)
    return J, bias, jaxdyn.mass_matrix(model, q), jaxdyn.rnea(model, q, v, jnp.zeros_like(v))


def states(model: jaxdyn.Model, stance: tuple[str, ...], n: int, seed: int) -> Recording:
    """Return random states in which the feet `stance` stand and the others swing, with the joints' torques."""
    rng = np.random.default_rng(seed)
    base = np.concatenate([rng.uniform(-0.1, 0.1, (n, 3)), rng.normal(0, 0.15, (n, 4)) + [1.0, 0, 0, 0]], axis=1)
    base[:, 3:] /= np.linalg.norm(base[:, 3:], axis=1, keepdims=True)
    q = np.concatenate([base, _STANCE + rng.uniform(-0.3, 0.3, (n, 12))], axis=1)
    chosen = [FEET.index(x) for x in stance]
    J = np.asarray(_kinematics(model, q, np.zeros((n, 18)))[0])[:, chosen].reshape(n, -1, 18)
    hold = np.linalg.pinv(J)
    free = np.eye(18) - hold @ J
    v = np.einsum("nij,nj->ni", free, rng.normal(0, 0.6, (n, 18)))
    _, bias, M, h = (np.asarray(x) for x in _kinematics(model, q, v))
    bias = bias[:, chosen].reshape(n, -1)
    a = np.einsum("nij,nj->ni", free, rng.normal(0, 3.0, (n, 18))) - np.einsum("nij,nj->ni", hold, bias)
    # Forces of two feet do not turn the base about the line between them: the motion is what gravity makes of it.
    U, size, _ = np.linalg.svd(J[:, :, :6].swapaxes(1, 2))
    idle = U * (np.arange(6) >= np.sum(size > 1e-9, axis=1)[:, None])[:, None]
    rows = np.einsum("nji,njk->nik", idle, (M @ free)[:, :6])
    left = np.einsum("nji,nj->ni", idle, (np.einsum("nij,nj->ni", M, a) + h)[:, :6])
    a = a - np.einsum("nij,njk,nk->ni", free, np.linalg.pinv(rows, rcond=1e-9), left)
    tau = np.einsum("nij,nj->ni", M, a) + h
    force = np.linalg.pinv(J[:, :, :6].swapaxes(1, 2), rcond=1e-9) @ tau[:, :6, None]
    tau = tau - (J.swapaxes(1, 2) @ force)[..., 0]
    np.testing.assert_allclose(tau[:, :6], 0, atol=1e-9)
    tau[:, :6] = 0
    contacts = {x: np.full(n, x in stance) for x in FEET}
    return Recording(np.arange(n) / 100, q, v, a, tau, contacts=contacts)


def noisy(recording: Recording, sigma: float, seed: int) -> Recording:
    """Return the recording with white noise of the joints' torques, and of the base's motion, as of gusts: in its
    equations, 4 times as much in N and half as much in N m."""
    noise = sigma * np.random.default_rng(seed).normal(size=recording.require("tau")[0].shape)
    noise[:, :3] *= 4.0
    noise[:, 3:6] *= 0.5
    return dataclasses.replace(recording, tau=recording.require("tau")[0] + noise)


def center(model: jaxdyn.Model, axis: int):
    """The center of mass in the stance, m."""
    q = jnp.concatenate([jnp.zeros(3), jnp.array([1.0, 0, 0, 0]), jnp.asarray(_STANCE)])
    return jaxdyn.center_of_mass(model, q)[axis]


QUANTITIES = {"mass": lambda m: m.mass.sum()} | {
    f"center {x}": functools.partial(center, axis=k) for k, x in enumerate("xyz")
}
