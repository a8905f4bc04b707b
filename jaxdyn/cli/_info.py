"""`jaxdyn info`: what a robot's file says."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from jaxdyn.model import Model
from jaxdyn.programs._application import double_precision, print_json
from jaxdyn.programs._robot_file import File, FileOptions, Flag, parse

HELP = """What a robot's file says, and warnings of what is likely to be wrong.

A table of bodies and joints with their places in q and v, limits and masses; friction and springs; joints that follow
others; links that were merged; frames. Units are SI and rad."""
EXAMPLES = """
  jaxdyn info robot.urdf
  jaxdyn info robot.urdf --free-base
  jaxdyn info scene.xml --lenient
  jaxdyn info robot.urdf --json > robot.json"""
_WARNING = "warning: "


@dataclasses.dataclass(frozen=True)
class Options(FileOptions):
    file: File = dataclasses.field(kw_only=True)
    """A URDF or MJCF file."""
    json: Flag = False
    """The same as JSON on stdout, every number included."""


def main(arguments: Sequence[str]) -> None:
    """The command with its arguments."""
    options = parse(Options, arguments, "info", HELP, EXAMPLES)
    # The numbers of the file, as they are.
    double_precision()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = options.load(options.file)
    summary = model.summary()
    # The summary says some of what loading said.
    said = [line.removeprefix(_WARNING) for line in summary.splitlines() if line.startswith(_WARNING)]
    more = [text for text in dict.fromkeys(str(w.message) for w in caught) if text not in said]
    if options.json:
        print_json(lambda: described(model, options) | {"warnings": more + said})
        return
    print(f"{options.file} ({options.kind(options.file)})\n")
    print(summary)
    if more:
        print()
    for text in more:
        print(_WARNING + text)


def described(model: Model, options: Options) -> dict[str, Any]:
    """A model as JSON has it."""
    topology = model.topology
    bodies = []
    for i, name in enumerate(topology.body_names):
        parent = topology.parents[i]
        bodies.append(
            {
                "name": name,
                "parent": topology.body_names[parent] if parent >= 0 else "world",
                "joint": topology.joint_names[i],
                "type": topology.joint_types[i],
                "mass": float(model.mass[i]),
                "inertial_parameters": _numbers(model.inertial_parameters[i]),
                "placement": _numbers(model.joint_placement[i]),
            }
        )
    coordinates = {"q": topology.q_starts, "v": topology.v_starts}
    for key, starts in coordinates.items():
        for body, (start, stop) in zip(bodies, pairwise(starts), strict=True):
            body[key] = [start, stop]
    return {
        "file": options.file,
        "format": options.kind(options.file),
        "nb": model.nb,
        "nq": model.nq,
        "nv": model.nv,
        "mass": float(model.mass.sum()),
        "gravity": _numbers(model.gravity),
        "bodies": bodies,
        **{
            key: _numbers(getattr(model, key))
            for key in ("position_lower", "position_upper", "velocity_limit", "effort_limit")
        },
        **{key: _numbers(getattr(model, key)) for key in ("armature", "damping", "friction")},
        **{
            key: _numbers(getattr(model, key))
            for key in ("stiffness", "spring_reference")
            if getattr(model, key) is not None
        },
        "mimics": [
            {
                "joint": topology.joint_names[joint],
                "follows": topology.joint_names[leader],
                "multiplier": float(model.mimic_multiplier[k]),
                "offset": float(model.mimic_offset[k]),
            }
            for k, (joint, leader) in enumerate(topology.mimics)
        ],
        "merged_links": {
            link: topology.body_names[body] if body >= 0 else "world"
            for link, body in zip(topology.attached_links, topology.attached_bodies, strict=True)
        },
        "frames": list(topology.frame_names),
    }


def _numbers(x: Any) -> list:
    return np.asarray(x, np.float64).tolist()
