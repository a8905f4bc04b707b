"""`jaxdyn info`: the content of a robot's file."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn.cli._application import double_precision, print_json
from jaxdyn.cli._config import parse_options
from jaxdyn.cli._robot_file import ModelOptions
from jaxdyn.io import LeftOut, left_out
from jaxdyn.joints import LOOP_ROWS
from jaxdyn.model import Model, mobility
from jaxdyn.worlds import World, describe

HELP = """Show the content of a robot's file or of a world, with warnings of likely mistakes.

Prints a table of bodies and joints with their indices in q and v, limits and masses; friction and springs; joints that
mimic others; loops and couplings, with the degrees of freedom that they leave; links that were merged; frames; what the
file has and the model leaves out. Names and limits are printed whole. A file without inertias is shown, too. Of an MJCF
file or a world of save_world also what load_world has beside the tree: time step, actuators, sensors, tendons, equality
constraints, limits, the pairs of geoms that may touch, and keyframes. Units are SI and rad."""
EXAMPLES = """
  jaxdyn info robot.urdf
  jaxdyn info robot.urdf --free-base
  jaxdyn info scene.xml
  jaxdyn info robot.urdf --json > robot.json"""
_WARNING = "warning: "
_JOINT_LEAVES = (
    *("position_lower", "position_upper", "velocity_limit", "effort_limit", "armature", "damping", "friction"),
    *("stiffness", "spring_reference"),
)


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    options = parse_options(ModelOptions, arguments, "jaxdyn info", HELP, EXAMPLES)
    # The numbers of the file, unrounded.
    double_precision()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world = options.load_world()
        # The world has what the model leaves out.
        loading = dataclasses.replace(options, lenient=True) if isinstance(world, World) else options
        model = loading.load(kinematics_only=True)
        saved = options.kind == "saved world"
        parts = () if saved else left_out(options.path, package_dirs=options.package_dirs)
    summary = model.summary(whole=True)
    # The summary has some of the warnings of the loader.
    summarized = [line.removeprefix(_WARNING) for line in summary.splitlines() if line.startswith(_WARNING)]
    more = [text for text in dict.fromkeys(str(w.message) for w in caught) if text not in summarized]
    if options.json:
        print_json(lambda: _described(model, options, parts, more + summarized) | _world(world))
        return
    print(f"{options.path} ({options.kind})\n")
    print(summary)
    if world is not None:
        print("\n" + _world_text(world))
    # Of parts that act, loading has warned.
    if idle := [part.text() for part in parts if not part.acts]:
        print("\nleft out, and without effect on the motion:\n" + "\n".join(f"- {text}" for text in idle))
    if more:
        print("\n" + "\n".join(_WARNING + text for text in more))


def _world(world: World | RobotFileError | None) -> dict[str, Any]:
    """Return the world for JSON: None for a URDF file, and where the file makes none, with the reason."""
    if isinstance(world, World):
        return {"world": describe(world)}
    return {"world": None} if world is None else {"world": None, "no_world": str(world)}


def _world_text(world: World | RobotFileError) -> str:
    """Return the world as lines of text."""
    if not isinstance(world, World):
        return f"no world: {world}"
    all_of_it = describe(world)

    def listed(title: str, lines: list[str]) -> list[str]:
        return [f"{title} ({len(lines)}):", *(f"  {line}" for line in lines)] if lines else []

    pairs = ", ".join(f"{count} of {kinds}" for kinds, count in all_of_it["pairs_of_geoms"].items())
    return "\n".join(
        [
            f"world: steps of {all_of_it['timestep']:g} s, {all_of_it['integrator']}",
            f"pairs of geoms that may touch: {pairs or 'none'}",
            *listed("actuators", [_actuator_text(x) for x in all_of_it["actuators"]]),
            *listed("sensors", [f"{x['name']}: {x['type']}, {x['size']}" for x in all_of_it["sensors"]]),
            *listed("tendons", [f"{x['name']}: {x['type']}" for x in all_of_it["tendons"]]),
            *listed(
                "equality constraints",
                [
                    f"{x['name']}: {x['type']}" + ("" if x["active"] else ", not active")
                    for x in all_of_it["equalities"]
                ],
            ),
            *listed("limits", [*all_of_it["limited_joints"], *(f"tendon {x}" for x in all_of_it["limited_tendons"])]),
            *listed("mocap bodies", all_of_it["mocap_bodies"]),
            *listed("keyframes", [f"{name}: at {x['time']:g} s" for name, x in all_of_it["keyframes"].items()]),
        ]
    )


def _actuator_text(x: dict[str, Any]) -> str:
    gain, bias = (np.trim_zeros(np.array(x[key]), "b").tolist() for key in ("gain", "bias"))
    law = f"gain {x['gain_type']} {_short(gain)}" + (f", bias {x['bias_type']} {_short(bias)}" if any(bias) else "")
    law += f", {x['dynamics']}" if x["dynamics"] != "none" else ""
    bounds = {what: x[f"{what}_range"] for what in ("control", "force")}
    ranges = [f", {what} {_bounds(pair)}" for what, pair in bounds.items() if pair != [None, None]]
    return f"{x['name']}: on {x['target']}, gear {_short(np.ravel(x['gear']).tolist())}, {law}{''.join(ranges)}"


def _short(numbers: list[float]) -> str:
    return " ".join(f"{x:.4g}" for x in numbers) or "0"


def _bounds(bounds: list[float | None]) -> str:
    return " to ".join("infinity" if x is None else f"{x:.4g}" for x in bounds)


def _described(model: Model, options: ModelOptions, parts: Sequence[LeftOut], warned: list[str]) -> dict[str, Any]:
    left = [dataclasses.asdict(part) for part in parts]
    return description(model, options) | {"left_out": left, "warnings": warned}


def description(model: Model, options: ModelOptions) -> dict[str, Any]:
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
        "file": options.path,
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
