"""Assertion that two models have the same structure and the same physical arrays."""

import dataclasses

import numpy as np

from jaxdyn import Model


def assert_same(model: Model, other: Model, tolerance: float = 1e-12) -> None:
    """Assert that two models agree. The tolerance is relative to the largest number of each row; axes are compared by
    their directions, quaternions of placements by their rotations."""
    assert model.topology == other.topology
    assert model.dtype == other.dtype
    for field in dataclasses.fields(model):
        if field.name == "topology":
            continue
        values = [getattr(m, field.name) for m in (model, other)]
        assert (values[0] is None) == (values[1] is None), field.name
        if values[0] is None:
            continue
        a, b = (comparable(np.asarray(x, np.float64), field.name) for x in values)
        assert a.shape == b.shape, field.name
        assert (np.isinf(a) == np.isinf(b)).all(), field.name
        assert (a[np.isinf(a)] == b[np.isinf(b)]).all(), field.name
        a, b = (np.nan_to_num(np.atleast_2d(x), posinf=0.0, neginf=0.0) for x in (a, b))
        scale = np.abs(a).max(axis=1, initial=0.0, keepdims=True) if field.name.endswith("parameters") else 1.0
        assert (np.abs(a - b) <= tolerance * np.maximum(scale, 1e-12)).all(), f"{field.name}: {a} and {b}"


def comparable(values: np.ndarray, name: str) -> np.ndarray:
    if name == "joint_axis":
        return values / np.linalg.norm(values, axis=-1, keepdims=True)
    if name.endswith("placement"):
        return np.concatenate([values[:, :3], *(rotation(q).reshape(1, 9) for q in values[:, 3:])], axis=None)
    return values


def rotation(quaternion: np.ndarray) -> np.ndarray:
    """The rotation matrix `[3, 3]` of the normalized quaternion `w x y z`."""
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    v, skew = np.array([x, y, z]), np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return (w * w - v @ v) * np.eye(3) + 2 * np.outer(v, v) + 2 * w * skew
