"""Configurations that cannot be meant: quaternions of zeros, and angles in degrees."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, PhysicalityWarning, warn
from jaxdyn.model._fields import ModelFields

TURN = 2 * np.pi
"""Motions without stops pass limits by some turns of a joint (rad), and angles in degrees by far more: within one turn
of its limits nothing is said about a joint."""


def require_plausible(model: ModelFields, q: Any, what: str = "q") -> None:
    """Raise `ModelError` for configurations `[*batch, nq]` with a quaternion of zeros, and warn of angles that are more
    than a turn beyond the limits of their joint, as those in degrees are.

    Nothing is said about what is traced, on an accelerator, or still being computed: the check waits for nothing."""
    if (numbers := _on_host(q)) is None:
        return
    starts = model.topology.quaternion_starts
    if numbers.ndim == 1:
        # Each call of a user comes here. For a few numbers, Python takes a third of the time of NumPy, and most
        # quaternions have a real part.
        values = numbers.tolist()
        if values and max(values) <= TURN and min(values) >= -TURN and all(values[i : i + 1] != [0.0] for i in starts):
            return
    topology = model.topology
    if numbers.shape[-1:] != (topology.nq,) or not numbers.size:
        return
    for start in starts.tolist():
        if not numbers[..., start].all() and not numbers[..., start : start + 4].any(axis=-1).all():
            joint = _joint_of(model, start)
            raise ModelError(
                f"{what}: the quaternion of joint {joint!r}, {what}[{start}:{start + 4}], is zero, which is not a "
                "rotation; the identity is (1, 0, 0, 0), and model.neutral() has it"
            )
    if np.abs(numbers).max() > TURN:
        coordinates = np.flatnonzero(topology.coordinate_units == "rad")
        warn_beyond_limits(model, numbers[..., coordinates], coordinates, TURN, what)


def warn_beyond_limits(
    model: ModelFields, numbers: np.ndarray, coordinates: np.ndarray, margin: float, what: str
) -> None:
    """Warn of the first of some coordinates whose values `[*batch, n]` are further beyond its limits than a margin."""
    lower, upper = _on_host(model.position_lower), _on_host(model.position_upper)
    if lower is None or upper is None:
        return
    # The widest limits stand for those of a batch of models.
    least, most = (x.reshape(-1, x.shape[-1])[:, coordinates] for x in (lower, upper))
    least, most = least.min(axis=0), most.max(axis=0)
    beyond = ((numbers < least - margin) | (numbers > most + margin)).reshape(-1, len(coordinates)).any(axis=0)
    for k in np.flatnonzero(beyond)[:1].tolist():
        far, unit = (" more than a turn" if margin == TURN else ""), model.topology.coordinate_units[coordinates[k]]
        advice = "; angles are in rad, not in degrees" if unit == "rad" else ""
        advice += " (motions pass limits that no contact holds)" if margin == TURN else ""
        limits = f"limits of joint {_joint_of(model, int(coordinates[k]))!r}, {least[k]:.4g} to {most[k]:.4g} {unit}"
        # Without the value: Python shows a text once for a line, and a motion has another value in each step.
        warn(f"{what} is{far} beyond the {limits}{advice}", PhysicalityWarning)


def _joint_of(model: ModelFields, coordinate: int) -> str:
    return model.joint_names[int(np.searchsorted(model.topology.q_starts, coordinate, side="right")) - 1]


def _on_host(x: Any) -> np.ndarray | None:
    """Return the values of an array of real numbers if they are known here, without waiting."""
    if isinstance(x, jax.Array):
        if isinstance(x, Tracer) or not x.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
            return None
        if not _only_processor() and (
            not x.is_fully_addressable or any(device.platform != "cpu" for device in x.devices())
        ):
            return None
        x = np.asarray(x)
    return x if isinstance(x, np.ndarray) and x.dtype.kind in "fiu" else None


@functools.cache
def _only_processor() -> bool:
    """Return whether all arrays are on the CPU of this process."""
    return jax.process_count() == 1 and all(device.platform == "cpu" for device in jax.devices())
