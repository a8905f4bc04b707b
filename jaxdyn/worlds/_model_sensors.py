"""The sensors of a world that is made of a model, from their descriptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError, look_up, require_choice
from jaxdyn._types import float_leaf
from jaxdyn.geometry import AbstractShape
from jaxdyn.model import Model, Placement, pose_in_body
from jaxdyn.worlds._actuators import Actuators
from jaxdyn.worlds._model_actuators import joint_start, require_different
from jaxdyn.worlds._parts import Places, stacked
from jaxdyn.worlds._sensors import Sensors
from jaxdyn.worlds._turns import Turns
from jaxdyn.worlds._zones import ZONES

_OF_JOINTS = {"jointpos": 1, "jointvel": 1, "jointactuatorfrc": 1, "ballquat": 4, "ballangvel": 3}
_OF_ACTUATORS = {"actuatorpos": 1, "actuatorvel": 1, "actuatorfrc": 1}
_OF_LINKS = {"framepos": 3, "framequat": 4, "framexaxis": 3, "frameyaxis": 3, "framezaxis": 3, "framelinvel": 3}
_OF_LINKS |= {"frameangvel": 3, "framelinacc": 3, "frameangacc": 3, "accelerometer": 3, "velocimeter": 3, "gyro": 3}
_OF_LINKS |= {"force": 3, "torque": 3, "touch": 1, "subtreecom": 3, "subtreelinvel": 3, "subtreeangmom": 3}
_SIZES = _OF_JOINTS | _OF_ACTUATORS | _OF_LINKS | {"clock": 1}
"""The kinds of sensors and the numbers that each returns."""
_IN_FRAMES = ("framepos", "framequat", "framexaxis", "frameyaxis", "framezaxis", "framelinvel", "frameangvel")
"""The kinds that may measure in the frame of another link."""

_UNCUT = ("quat", "axis")
"""The ends of the names of kinds with unit vectors and quaternions."""


@dataclasses.dataclass(frozen=True)
class Sensor:
    """A sensor of a `World`, of a kind of MuJoCo's (manual, chapter XML reference, section sensor).

    | what it reads | kinds |
    |---|---|
    | a joint | `jointpos`, `jointvel`, `jointactuatorfrc`; of a ball joint `ballquat`, `ballangvel` |
    | an actuator | `actuatorpos`, `actuatorvel`, `actuatorfrc` |
    | a place of a link, along its axes | `accelerometer`, `gyro`, `velocimeter`; `force` and `torque`, with which the \
joint moves the body of the link; `touch`, the sum of the normal forces of contacts in `shape` |
    | the frame of a link, along axes of the world or of `reference` | `framepos`, `framequat`, `framexaxis`, \
`frameyaxis`, `framezaxis`, `framelinvel`, `frameangvel`; of the world, `framelinacc`, `frameangacc` |
    | the bodies behind a link | `subtreecom`, `subtreelinvel`, `subtreeangmom` |
    | time | `clock` |

    **Raises** `ModelError` for an unknown kind, and where what it reads is not given, or something else is.
    """

    kind: str
    link: str | None = None
    """A body, a merged link, a frame, or `"world"`."""
    joint: str | None = None
    actuator: str | None = None
    placement: Placement = None
    """The pose of the place in the link."""
    reference: str | None = None
    """The link in whose frame it measures; None for the world."""
    shape: AbstractShape | None = None
    """The volume of a sensor of touch: a sphere, capsule, ellipsoid, cylinder or box."""
    cutoff: float = 0.0
    """Values are cut to this size, if it is positive."""
    name: str = ""
    """The name; by default the kind and what it reads, as in `gyro_trunk`."""

    def __post_init__(self) -> None:
        require_choice(self.kind, _SIZES, "the kind of a sensor")
        of = (("joint", _OF_JOINTS), ("actuator", _OF_ACTUATORS), ("link", _OF_LINKS))
        for field, kinds in of:
            if (getattr(self, field) is not None) != (self.kind in kinds):
                needs = "needs the name of" if self.kind in kinds else "does not read"
                raise ModelError(f"sensor {self.title!r} {needs} {'an' if field == 'actuator' else 'a'} {field}")
        if (self.shape is not None) != (self.kind == "touch"):
            raise ModelError(f"sensor {self.title!r}: sensors of touch, and no others, need a `shape`")
        if self.shape is not None and type(self.shape).__name__.lower() not in ZONES:
            raise ModelError(
                f"sensor {self.title!r}: its shape is a {type(self.shape).__name__}; give {', '.join(ZONES)}"
            )
        if self.reference is not None and self.kind not in _IN_FRAMES:
            raise ModelError(f"sensor {self.title!r} measures in no other frame; leave out `reference`")

    @property
    def title(self) -> str:
        """The name, or by default the kind and what it reads."""
        of = self.joint or self.actuator or self.link
        return self.name or (f"{self.kind}_{of}" if of else self.kind)


def sensors_of(model: Model, given: Sequence[Sensor], actuators: Actuators) -> Sensors:
    """Return the sensors of a model. **Raises** `UnknownNameError` for a link, joint or actuator; `ModelError` for a
    name given twice, and a joint that the kind does not read."""
    joints: dict[str, int] = {}
    objects = []
    for each in given:
        number = -1
        if each.joint is not None:
            number = joints.setdefault(each.joint, len(joints))
        elif each.actuator is not None:
            number = look_up(each.actuator, actuators.names, "actuator")
        objects.append(number)
    return Sensors.without(
        names=require_different([each.title for each in given], "sensor"),
        types=tuple("jointactfrc" if x.kind == "jointactuatorfrc" else x.kind for x in given),
        objects=tuple(objects),
        sizes=tuple(_SIZES[each.kind] for each in given),
        # A touch is not negative; quaternions and axes are not cut (mjtDataType of MuJoCo).
        cut=tuple((x.cutoff > 0) * (1 if x.kind == "touch" else 2 * (x.kind[-4:] not in _UNCUT)) for x in given),
        cutoff=float_leaf(np.array([each.cutoff for each in given], float)),
        joints=_joints(model, given, joints),
        **_frames(model, given),
        **_members(model, given),
    )


def _joints(model: Model, given: Sequence[Sensor], joints: dict[str, int]) -> tuple[tuple[str, int, int], ...]:
    """Return the joints that sensors read (`Sensors.joints`)."""
    found = {name: joint_start(model, name, "sensors") for name in joints}
    topology = model.topology
    for each in given:
        if each.joint is not None:
            number, _, v = found[each.joint]
            count, kind = topology.spanning.v_starts[number + 1] - v, topology.joint_types[number]
            if (kind != "ball") if each.kind.startswith("ball") else (count != 1):
                raise ModelError(
                    f"sensor {each.title!r}: {each.kind!r} does not read joint {each.joint!r}, a {kind} joint"
                )
    return tuple((topology.joint_types[number], q, v) for number, q, v in found.values())


def _frames(model: Model, given: Sequence[Sensor]) -> dict[str, Any]:
    """Return the fields of `Sensors` that say where they are."""
    places: list[tuple[str, Placement]] = []
    rows, references, zones = [], [], []
    for each in given:
        own, other = -1, -1
        if each.link is not None:
            own = len(places)
            places.append((each.link, each.placement))
            zones.append(each.shape)
        if each.reference is not None:
            other = len(places)
            places.append((each.reference, None))
            zones.append(None)
        rows.append(own)
        references.append(other)
    found = [pose_in_body(model, link, pose, f"the placement on {link!r}") for link, pose in places]
    pairs = zip(rows, references, given, strict=True)
    turned = sorted({x for *ends, each in pairs if each.kind == "framequat" for x in ends if x >= 0})
    sizes = [np.ones(3) if zone is None else np.append(zone.sizes, (0.0, 0.0))[:3] for zone in zones]
    return {
        "places": tuple(rows),
        "references": tuple(references),
        "frames": Places.on(model, places),
        "carriers": tuple(body + 1 for body, _ in found),
        "zones": tuple("" if zone is None else type(zone).__name__.lower() for zone in zones),
        "zone_sizes": stacked(sizes, (3,)),
        "turned": tuple(turned),
        "turns": Turns.of_model(model, [found[i][0] for i in turned], [found[i][1] for i in turned]),
    }


def require_no_loads_of_loops(model: Model, sensors: Sensors) -> None:
    """Raise `ModelError` for sensors of forces in bodies, which would leave out those of closed loops."""
    if model.topology.has_loops and (kinds := {"force", "torque"} & set(sensors.types)):
        raise ModelError(f"sensors of the kinds {', '.join(sorted(kinds))} leave out the forces of closed loops")


def _members(model: Model, given: Sequence[Sensor]) -> dict[str, Any]:
    """Return the fields of `Sensors` about the bodies whose momenta and forces are summed."""
    topology, rows, members = model.topology, {}, []
    for k, each in enumerate(given):
        if each.kind.startswith("subtree") or each.kind in ("force", "torque"):
            assert each.link is not None
            root, _ = pose_in_body(model, each.link, None, "")
            if root < 0 and each.kind in ("force", "torque"):
                raise ModelError(f"sensor {each.title!r}: no joint moves {each.link!r}, which is fixed in the world")
            inside = {root}
            for body, parent in enumerate(topology.parents):
                if parent in inside:
                    inside.add(body)
            members += [(k, rows.setdefault(body, len(rows))) for body in sorted(inside - {-1})]
    bodies = list(rows)
    dofs = tuple(int(topology.body_dofs[body]) for body in bodies)
    return {
        "members": tuple(members),
        "bodies": Places(dofs, float_leaf(np.zeros((0, 7)))),
        "body_numbers": tuple(body + 1 for body in bodies),
        "body_roots": tuple(topology.body_roots[body] + 1 for body in bodies),
    }
