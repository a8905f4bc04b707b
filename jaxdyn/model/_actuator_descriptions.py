"""`Actuator`: what drives a joint or a link, as a description."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxdyn._errors import ModelError, require_choice
from jaxdyn.model._edit_arguments import Placement

_GAINS = {
    "motor": (),
    "position": ("kp", "kv"),
    "velocity": ("kv",),
    "intvelocity": ("kp", "kv"),
    "damper": ("kv",),
    "general": ("gain", "bias", "dynamics"),
}
"""The kinds of actuators, and the numbers that each has besides those that all have."""
_DYNAMICS = ("none", "integrator", "filter", "filterexact")


@dataclasses.dataclass(frozen=True)
class Actuator:
    """An actuator on a joint, or on a place of a link, after MuJoCo's general actuator.

    With the control `u`, cut to `control_range`, the length `l = gear . q` (of a ball joint: of its rotation vector)
    and the velocity `s = gear . v`, the actuator adds to the torque of its joint

        gear clip((gain_0 + gain_1 l + gain_2 s) w + bias_0 + bias_1 l + bias_2 s, force_range)

    (MuJoCo's manual, chapter Computation, Actuation model), where `w = u` unless the actuator has a state: the integral
    of `u`, cut to `activation_range`, or `u` through a low-pass filter. Blocks, such as `jaxdyn.simulate.Delay` and
    `DCMotorLimits`, may stand on the way of the control, and on that of the force to its limits.

    | kind | gain | bias | state |
    |---|---|---|---|
    | `"motor"` | 1 | | |
    | `"position"` | `kp` | `-kp l - kv s` | with a `time_constant`, a filter |
    | `"velocity"` | `kv` | `-kv s` | the same |
    | `"intvelocity"` | `kp` | `-kp l - kv s` | the integral |
    | `"damper"` | `-kv s` | | |
    | `"general"` | `gain` | `bias` | `dynamics` |

    All numbers may be traced, so that gradients reach them. Units are SI, angles in rad.

    **Raises** `ModelError` for an unknown kind, for numbers that the kind does not have, and unless it has one of
    `joint` and `link`.
    """

    joint: str | Sequence[str] | None = None
    """The joint that it drives; or up to six joints with one axis each, such as those of a differential, with a gear
    for each."""
    kind: str = "motor"
    kp: Any = None
    """The stiffness of a servo; 1 by default."""
    kv: Any = None
    """The damping of a servo or a damper; 1 by default, but 0 for servos with `kp`."""
    gear: Any = 1.0
    """A number, or one for each velocity of the joints; six for a link: a force and a moment along the axes of the
    place."""
    control_range: Any = None
    """The lower and the upper limit; None without, as for the other ranges."""
    force_range: Any = None
    activation_range: Any = None
    time_constant: Any = None
    """s. The time constant of the filter."""
    name: str = ""
    """The name; by default that of the joint or link."""
    gain: Any = None
    """The factors of `w`: a constant, of the length, and of its rate; 1 by default, and one number is the constant."""
    bias: Any = None
    """The terms without a control: a constant, of the length, and of its rate; zero by default."""
    dynamics: str | None = None
    """`"none"`, `"integrator"`, `"filter"` or `"filterexact"`, whose discrete step is exact."""
    link: str | None = None
    """The body, link or frame on which it pushes, in place of a joint."""
    placement: Placement = None
    """The pose in the link of the place on which it pushes."""
    control_path: Sequence[Any] = ()
    """Blocks (`jaxdyn.simulate.AbstractDriveBlock`) through which the control passes, one after the other, behind
    `control_range`."""
    force_path: Sequence[Any] = ()
    """Blocks through which the force passes in front of `force_range`; joint effects among them add to it behind all
    limits."""

    def __post_init__(self) -> None:
        require_choice(self.kind, _GAINS, f"the kind of actuator {self.title!r}")
        for name in ("kp", "kv", "gain", "bias", "dynamics"):
            if getattr(self, name) is not None and name not in _GAINS[self.kind]:
                has = ", ".join(_GAINS[self.kind]) or "none"
                raise ModelError(f"actuator {self.title!r}: {name} is given, but a {self.kind!r} has {has} of them")
        if (self.joint is None) == (self.link is None):
            raise ModelError(f"actuator {self.title!r} needs a joint or a link, and not both")
        if self.dynamics is not None:
            require_choice(self.dynamics, _DYNAMICS, f"the dynamics of actuator {self.title!r}")
        if self.time_constant is not None and self.dynamics_type not in ("filter", "filterexact"):
            raise ModelError(f"actuator {self.title!r}: time_constant is given, but it has no filter")

    @property
    def title(self) -> str:
        """The name, or by default that of the joint or link."""
        return self.name or " and ".join(self.joints) or self.link or "without a name"

    @property
    def joints(self) -> tuple[str, ...]:
        """The names of the joints that it drives."""
        return () if self.joint is None else (self.joint,) if isinstance(self.joint, str) else tuple(self.joint)

    @property
    def dynamics_type(self) -> str:
        """The kind of its state, one of `dynamics`."""
        if self.kind == "intvelocity":
            return "integrator"
        if self.dynamics is not None or self.kind == "general":
            return self.dynamics or "none"
        return "none" if self.time_constant is None or self.kind in ("motor", "damper") else "filterexact"

    @property
    def terms(self) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
        """The three numbers of the gain, and those of the bias."""
        kp = 1.0 if self.kp is None else self.kp
        kv = self.kv if self.kv is not None else 0.0 if "kp" in _GAINS[self.kind] else 1.0
        match self.kind:
            case "motor":
                return (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)
            case "position" | "intvelocity":
                return (kp, 0.0, 0.0), (0.0, -kp, -kv)
            case "velocity":
                return (kv, 0.0, 0.0), (0.0, 0.0, -kv)
            case "damper":
                return (0.0, 0.0, -kv), (0.0, 0.0, 0.0)
        return self._three("gain", 1.0), self._three("bias", 0.0)

    def _three(self, name: str, default: float) -> tuple[Any, Any, Any]:
        value: Any = default if getattr(self, name) is None else getattr(self, name)
        numbers = tuple(value) if hasattr(value, "__len__") else (value,)
        if len(numbers) > 3:
            raise ModelError(f"actuator {self.title!r}: {name} has {len(numbers)} numbers, and at most 3 are needed")
        first, second, third = (*numbers, *(0.0,) * (3 - len(numbers)))
        return first, second, third
