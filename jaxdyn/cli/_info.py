"""`jaxdyn info`: the content of a robot's file."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn.cli._robot_file import ModelOptions
from jaxdyn.io import LeftOut, left_out
from jaxdyn.joints import LOOP_ROWS
from jaxdyn.model import Model, mobility
from jaxdyn.programs import double_precision, parse_options, print_json

HELP = """Show the content of a robot's file, with warnings of likely mistakes.

Prints a table of bodies and joints with their indices in q and v, limits and masses; friction and springs; joints that
mimic others; loops and couplings, with the degrees of freedom that they leave; links that were merged; frames; what the
file has and the model leaves out. Names and limits are printed whole. A file without inertias is shown, too. Units are
SI and rad."""
EXAMPLES = """
  jaxdyn info robot.urdf
  jaxdyn info robot.urdf --free-base
  jaxdyn info scene.xml --lenient
  jaxdyn info robot.urdf --json > robot.json"""
_WARNING = "warning: "
_JOINT_LEAVES = (
    *("position_lower", "position_upper", "velocity_limit", "effort_limit", "armature", "damping", "friction"),
    *("stiffness", "spring_reference"),
)


Options = ModelOptions


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    options = parse_options(Options, arguments, "jaxdyn info", HELP, EXAMPLES)
    # The numbers of the file, unrounded.
    double_precision()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = options.load(kinematics_only=True)
        parts = left_out(options.file, package_dirs=options.package_dirs)
    summary = model.summary(whole=True)
    # The summary has some of the warnings of the loader.
    summarized = [line.removeprefix(_WARNING) for line in summary.splitlines() if line.startswith(_WARNING)]
    more = [text for text in dict.fromkeys(str(w.message) for w in caught) if text not in summarized]
    if options.json:
        print_json(lambda: _described(model, options, parts, more + summarized))
        return
    print(f"{options.file} ({options.kind})\n")
    print(summary)
    # Of parts that act, loading has warned.
    if idle := [part.text() for part in parts if not part.acts]:
        print("\nleft out, and without effect on the motion:\n" + "\n".join(f"- {text}" for text in idle))
    if more:
        print("\n" + "\n".join(_WARNING + text for text in more))


def _described(model: Model, options: Options, parts: Sequence[LeftOut], warned: list[str]) -> dict[str, Any]:
    left = [dataclasses.asdict(part) for part in parts]
    return description(model, options) | {"left_out": left, "warnings": warned}


def description(model: Model, options: Options) -> dict[str, Any]:
    """Return the content of a model for JSON."""
    topology = model.topology

    def body_name(i: int) -> str:
        return topology.body_names[i] if i >= 0 else "world"

    bodies = [
        {
            "name": name,
            "parent": body_name(topology.parents[i]),
            "joint": topology.joint_names[i],
            "type": topology.joint_types[i],
            "mass": float(model.mass[i]),
            "inertial_parameters": _numbers(model.inertial_parameters[i]),
            "placement": _numbers(model.joint_placement[i]),
            "q": list(topology.q_starts[i : i + 2]),
            "v": list(topology.v_starts[i : i + 2]),
        }
        for i, name in enumerate(topology.body_names)
    ]
    return {
        "file": options.file,
        "format": options.kind,
        "nb": model.nb,
        "nq": model.nq,
        "nv": model.nv,
        "mass": float(model.mass.sum()),
        "gravity": _numbers(model.gravity),
        "bodies": bodies,
        **{key: _numbers(getattr(model, key)) for key in _JOINT_LEAVES if getattr(model, key) is not None},
        "mimics": [
            {
                "joint": topology.joint_names[joint],
                "follows": topology.joint_names[leader],
                "multiplier": float(model.mimic_multiplier[k]),
                "offset": float(model.mimic_offset[k]),
            }
            for k, (joint, leader) in enumerate(topology.mimics)
        ],
        **_constraints(model),
        "merged_links": dict(zip(topology.attached_links, map(body_name, topology.attached_bodies), strict=True)),
        "frames": list(topology.frame_names),
    }


def _constraints(model: Model) -> dict[str, Any]:
    """Return the loops and couplings for JSON, with the degrees of freedom that they leave."""
    topology = model.topology
    bodies, joints = (*topology.body_names, "world"), (*topology.joint_names, None)
    arrays = ("loop_placement1", "loop_placement2", "loop_length", "coupling_coefficients", "coupling_reference")
    first, second, length, coefficients, reference = (_numbers(getattr(model, name)) for name in arrays)
    loops = [
        {
            "name": name,
            "kind": kind,
            "body1": bodies[body1],
            "body2": bodies[body2],
            "equations": LOOP_ROWS[kind],
            "placement1": first[k],
            "placement2": second[k],
            "length": length[k] if kind == "distance" else None,
        }
        for k, (name, kind, body1, body2) in enumerate(topology.loops)
    ]
    couplings = [
        {
            "name": name,
            "joint1": joints[joint1],
            "joint2": joints[joint2],
            "coefficients": coefficients[k],
            "reference": reference[k],
        }
        for k, (name, joint1, joint2) in enumerate(topology.couplings)
    ]
    out: dict[str, Any] = {"loops": loops, "couplings": couplings, "mobility": None}
    if topology.has_loops:
        found = mobility(model)
        out["mobility"] = {
            "equations": found.equations,
            "redundant": found.equations - found.rank,
            "degrees_of_freedom": found.mobility,
            "where": found.where,
        }
    return out


def _numbers(x: Any) -> list:
    return np.asarray(x, np.float64).tolist()
