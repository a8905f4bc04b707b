"""Random numbers for tests, drawn by NumPy: JAX compiles a program for each shape that it draws."""

import numpy as np


def normal(seed: int, *shape: int) -> np.ndarray:
    """Normal numbers of a shape."""
    return np.random.default_rng(seed).normal(size=shape)


def states(model, seed: int, *shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Configurations, velocities, accelerations or torques, and wrenches on the bodies of a model, with batch axes.

    Rotations are uniform over the sphere of quaternions, other coordinates are uniform within finite limits and
    between -1 and 1 otherwise.
    """
    rng = np.random.default_rng(seed)
    lower, upper = (np.asarray(x, float) for x in (model.position_lower, model.position_upper))
    bounded = np.isfinite(lower) & np.isfinite(upper)
    q = rng.uniform(np.where(bounded, lower, -1.0), np.where(bounded, upper, 1.0), (*shape, model.nq))
    for start in model.topology.quaternion_starts:
        quaternion = rng.normal(size=(*shape, 4))
        q[..., start : start + 4] = quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True)
    v, x = rng.normal(size=(2, *shape, model.nv))
    return q, v, x, rng.normal(size=(*shape, model.nb, 6))
