"""The torque model of identification, linear in its parameters, and its data compressed to triangular factors."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError
from jaxdyn.algorithms import spring_torque, torque_regressor
from jaxdyn.model import Model
from jaxdyn.sysid._recording import Recording

_CHUNK = 4096


class TorqueData(NamedTuple):
    """All that least squares needs to know of a recording."""

    factors: np.ndarray
    """`[nv, k, P + 1]`: triangular `R_j` with `R_j^T R_j = [Y_j, tau_j]^T [Y_j, tau_j]`, for each joint `j`."""
    samples: int
    torque_scale: np.ndarray
    """`[nv]`: root mean square of the measured torques."""
    velocity_scale: np.ndarray
    acceleration_scale: np.ndarray

    def weighted(self, sigma: np.ndarray) -> np.ndarray:
        """`[k, P + 1]`: one triangular factor for all joints, each weighted with `1 / sigma`."""
        stacked = self.factors / sigma[:, None, None]
        return np.linalg.qr(stacked.reshape(-1, stacked.shape[-1]), mode="r")

    def residual_rms(self, parameters: np.ndarray) -> np.ndarray:
        """`[nv]`: root mean square of `Y p - tau` over the samples, N m or N."""
        residual = self.factors @ np.append(parameters, -1.0)
        return np.sqrt(np.sum(residual**2, axis=-1) / self.samples)


@eqx.filter_jit
def _columns(model: Model, motion: tuple[jax.Array, jax.Array, jax.Array], friction_velocity):
    """`[*batch, nv, P]`: the torque's derivative by the parameters
    `[inertial (10 nb), armature, damping, friction, offset (nv each)]`, in which it is linear:

    `tau = Y(q, v, a) p + armature a + damping v + friction tanh(v / friction_velocity) + offset`.
    """
    q, v, a = motion
    eye = jnp.eye(model.nv, dtype=v.dtype)
    joint_terms = (a, v, jnp.tanh(v / friction_velocity), jnp.ones_like(v))
    return jnp.concatenate([torque_regressor(model, q, v, a), *(x[..., None] * eye for x in joint_terms)], axis=-1)


def compress(model: Model, recording: Recording, friction_velocity: np.ndarray) -> TorqueData:
    """The recording as triangular factors: the data part of the problem is linear, so that
    `|Y_j p - tau_j|^2 = |R_j [p, -1]|^2` exactly for every `p`, and no step of a fit touches the samples again.
    """
    q, v, a, tau = checked(model, recording)
    if model.stiffness is not None:
        # Known, as gravity is.
        tau = tau - np.asarray(spring_torque(model, jnp.asarray(q)), np.float64)
    n, size = len(recording), min(len(recording), _CHUNK)
    factors = np.zeros((model.nv, 0, 10 * model.nb + 4 * model.nv + 1))
    # Chunks bound the memory; the last is filled up with repeats, which are dropped, so that one program serves all.
    for start in range(0, n, size):
        rows = np.minimum(np.arange(start, start + size), n - 1)
        kept = slice(0, min(size, n - start))
        chunk = jnp.asarray(q[rows]), jnp.asarray(v[rows]), jnp.asarray(a[rows])
        Y = np.asarray(_columns(model, chunk, friction_velocity), np.float64)[kept]
        block = np.concatenate([Y, tau[rows][kept, :, None]], axis=-1).swapaxes(0, 1)
        factors = np.linalg.qr(np.concatenate([factors, block], axis=1), mode="r")
    scales = (np.sqrt(np.mean(x**2, axis=0)) for x in (tau, v, a))
    return TorqueData(factors, n, *scales)


def checked(model: Model, recording: Recording) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """`q, v, a, tau` of a recording that fits the model. **Raises** `DataError`, `ModelError`."""
    if model.inertial_parameters.ndim != 2:
        raise ModelError(f"the model has batch axes {model.inertial_parameters.shape[:-2]}: take one element first")
    if recording.v is None or recording.a is None:
        raise DataError("the recording has no velocities or accelerations: call recording.differentiated() first")
    for name, x, size in (("q", recording.q, model.nq), ("tau", recording.tau, model.nv)):
        if x.shape[1] != size:
            raise DataError(
                f"the recording's {name} has {x.shape[1]} columns, but the model needs {size}: joints "
                f"{', '.join(model.joint_names)}"
            )
    return recording.q, recording.v, recording.a, recording.tau


def with_parameters(model: Model, parameters, friction_velocity) -> Model:
    """The model with the leaves that a parameter vector `[P]` names; offsets have no place in it."""
    inertial, armature, damping, friction, _ = split(model, jnp.asarray(parameters, model.dtype))
    leaves = (inertial, armature, damping, friction, jnp.asarray(friction_velocity, model.dtype))
    return eqx.tree_at(
        lambda m: (m.inertial_parameters, m.armature, m.damping, m.friction, m.friction_velocity), model, leaves
    )


def split(model: Model, parameters):
    """`inertial [nb, 10], armature, damping, friction, offset` of a vector `[P]`."""
    n, nv = 10 * model.nb, model.nv
    return (parameters[:n].reshape(model.nb, 10), *(parameters[n + k * nv : n + (k + 1) * nv] for k in range(4)))
