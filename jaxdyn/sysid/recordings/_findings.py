"""The findings of checks of recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class RecordingWarning(UserWarning):
    """A recording that can be used, but likely has a mistake; see `check_recording`."""


class Finding(NamedTuple):
    """A likely mistake in a recording."""

    kind: str
    """`"gap"`, `"clock"`, `"degrees"`, `"limits"`, `"wrapped"`, `"rates"`, `"order"`, `"sign"`, `"scale"`,
    `"misfit"`, `"still"`, `"no torque"`, `"saturated"` or `"delay"`."""
    message: str
    joints: tuple[str, ...] = ()
    value: float | None = None
    """The longest gap, s; the factor between two rates, two clocks or two torques, the median of the joints; or the
    delay of the torque, s, negative if it is early."""
    grave: bool = False
    """Whether a fit to the recording would be wrong throughout, so that `require_plausible` refuses it."""


def of_joints(kind: str, joints: Sequence[str], message: str, *, grave: bool = False) -> list[Finding]:
    """Return a finding about joints, or none for no joints. `{}` in the message stands for their names."""
    return [Finding(kind, message.format(", ".join(joints)), tuple(joints), grave=grave)] if joints else []


def in_places(places: Mapping[str, str]) -> str:
    """Return the joints that stand in the places of others, by these, in words."""
    return ", ".join(f"{joint} in the place of {column}" for column, joint in places.items())
