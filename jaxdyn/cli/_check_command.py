"""`jaxdyn check`: compare the dynamics of a robot's file with another library."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from jaxdyn._errors import DataError, require_positive
from jaxdyn.algorithms import rnea
from jaxdyn.cli._application import DIFFERENT, FINE, double_precision, print_json
from jaxdyn.cli._comparison import (
    States,
    allowed_errors,
    dynamics,
    largest_condition,
    largest_errors,
    mujoco_answers,
    mujoco_model,
    pinocchio_answers,
    pinocchio_model,
    random_states,
)
from jaxdyn.cli._config import parse_options
from jaxdyn.cli._progress import announce
from jaxdyn.cli._robot_file import ModelOptions
from jaxdyn.cli._world_check import RolloutCompared, WorldComparison, compare_world
from jaxdyn.model import Model

HELP = """Compare the dynamics of a robot with Pinocchio (URDF) or MuJoCo (MJCF), which must be installed.

Compares the mass matrix (crba), bias and inverse dynamics (rnea) and forward dynamics (aba) at random states, in double
precision, without friction, and without equality constraints, which MuJoCo holds by springs. An error is the largest
difference relative to the largest number of the answer, at the worst state. The exit code is 1 if an answer differs.

With `--against mujoco` the whole scene of an MJCF file is compared, contacts, actuators, tendons and all:
accelerations, sensors and a time step at the initial state, keyframes, random states, states of a motion and states at
limits, and a roll-out. If they differ, the first quantity that does is named."""
EXAMPLES = """
  jaxdyn check robot.urdf
  jaxdyn check robot.urdf --free-base --states 100
  jaxdyn check scene.xml --json
  jaxdyn check scene.xml --against mujoco"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(ModelOptions):
    states: int = 20
    """Number of random states; with `--against mujoco` of each of three kinds: random, of a motion, and at limits."""
    tolerance: float | None = None
    """Largest relative error of equal answers, 1e-9 by default. It is larger for accelerations where the mass matrix is
    so badly conditioned that its rounding alone causes more. With `--against mujoco`: of accelerations, 1e-8 by
    default, or ten times the change of MuJoCo's own if the state changes by 1e-12."""
    seed: int = 0
    """Seed of the random states."""
    against: Literal["mujoco"] | None = None
    """MJCF: compare the whole scene, rather than the dynamics of the tree."""
    steps: int = 300
    """With `--against mujoco`: time steps of the roll-out, none if 0."""


def main(arguments: Sequence[str]) -> int:
    """Run the command with its arguments."""
    options = parse_options(CheckOptions, arguments, "jaxdyn check", HELP, EXAMPLES)
    require_positive(options.states, "states", error=DataError)
    # Equal means equal in double precision.
    double_precision()
    if options.against:
        return _world(options)
    comparison = compare(options)
    if options.json:
        print_json(lambda: comparison)
    else:
        print_table(comparison)
    return FINE if comparison["equal"] else DIFFERENT


def _world(options: CheckOptions) -> int:
    """Compare the whole scene, and return the exit code."""
    if options.kind != "MJCF":
        raise DataError(f"{options.path}: --against mujoco compares scenes of MJCF files; leave it out for URDF files")
    options.require_matching_options()
    require_positive(options.steps, "steps", zero=True, error=DataError)
    announce("comparing states and a roll-out with MuJoCo")
    tolerance = 1e-8 if options.tolerance is None else options.tolerance
    found = compare_world(
        options.path, states=options.states, steps=options.steps, tolerance=tolerance, seed=options.seed
    )
    for text in found.left_out:
        print(text, file=sys.stderr)
    if options.json:
        facts = {"file": options.path, "against": f"MuJoCo {version('mujoco')}", "equal": found.equal}
        print_json(lambda: facts | dataclasses.asdict(found))
    else:
        _print_world(options, found)
    return FINE if found.equal else DIFFERENT


def _print_world(options: CheckOptions, found: WorldComparison) -> None:
    print(
        f"{options.path}: {found.nv} degrees of freedom, {found.nu} controls, float64 on {jax.devices()[0]}, against "
        f"MuJoCo {version('mujoco')}\n\n"
        f"{'':12}{'states':>8}{'acceleration':>15}{'MuJoCo, shifted by 1e-12':>27}{'step':>10}{'sensors':>10}"
    )
    for kind, x in found.accelerations.items():
        verdict = f"   DIFFERENT at {x.different}" if x.different else ""
        verdict += f"   different at {x.by_contacts} by contacts alone" if x.by_contacts else ""
        verdict += f"   ({x.on_switches} on the edge of a contact or limit, not compared)" if x.on_switches else ""
        verdict += f"   ({x.crowded} with more contacts than there is room for, not compared)" if x.crowded else ""
        none = x.on_switches + x.crowded == x.states
        error, step, sensors = ("-" if none else f"{e:.1e}" for e in (x.error, x.step_error, x.sensor_error))
        print(f"{kind:12}{x.states:8}{error:>15}{x.own_change:27.1e}{step:>10}{sensors:>10}{verdict}")
    if found.margin_change:
        print(
            f"with margins of contacts and limits larger and smaller by {found.margin_change:g} than in the file, in "
            "which bodies only just touch"
        )
    if found.rollout is not None:
        _print_rollout(found.rollout, options.steps)
    if found.other_contacts:
        print(
            "\nMuJoCo does the same with the contacts of this world, which are no worse than its own, of "
            f"{'; '.join(found.other_contacts)}"
        )
    if found.first is not None:
        first = found.first
        print(f"\nthe first quantity that differs, at the state {first.state!r}: {first.quantity}")
        print(f"from {first.where}; relative error {first.error:.1e}")
    print(f"\n{_verdict(found)}")


def _print_rollout(rollout: RolloutCompared, steps: int) -> None:
    """Print how well a roll-out agrees with MuJoCo's. `steps` were asked for."""
    early = rollout.steps < steps
    asked = f" of the {steps} steps asked for, after which MuJoCo's own motion diverges" if early else " steps"
    print(f"\nroll-out of {rollout.steps}{asked}")
    if rollout.steps:
        print(
            f"error {rollout.first_step:.1e} after the first step, at most {rollout.error:.1e} up to the horizon of "
            f"{rollout.horizon} steps{_mark(rollout)}\n"
            f"within 1e-5 of MuJoCo's for {rollout.agree} steps; MuJoCo's from a start shifted by 1e-12 stays so for "
            f"{rollout.own_agree}"
        )


def _mark(rollout: RolloutCompared) -> str:
    """Return what stands behind the error of a roll-out."""
    if rollout.equal:
        return ""
    return "   different by contacts alone" if rollout.by_contacts else "   DIFFERENT"


def _verdict(found: WorldComparison) -> str:
    """Return the last line, which says where equal has a limit."""
    if not found.equal:
        return "different by contacts alone" if found.equal_with_contacts else "DIFFERENT"
    kinds = found.accelerations.values()
    limits = []
    if any(max(x.error, x.step_error, x.sensor_error) > found.tolerance for x in kinds):
        limits.append(f"errors above {found.tolerance:g} are within ten times the change of MuJoCo's own answers")
    if not found.comparable:
        limits.append("most states are on the edge of a contact or limit or too crowded, and are not compared")
    return ": ".join(["equal", *["; ".join(limits)] * bool(limits)])


def compare(options: CheckOptions) -> dict[str, Any]:
    """Return the errors of all answers, the allowed errors, and the verdict."""
    model = options.load()
    announce("computing the answers of the other library")
    states = random_states(model, options.states, options.seed)
    a = np.random.default_rng((options.seed, 1)).normal(size=states.v.shape)
    library, expected = expected_answers(model, options, states)
    expected["inverse dynamics"] = np.einsum("nij,nj->ni", expected["mass matrix"], a) + expected["bias"]
    announce("compiling, and computing the answers of jaxdyn")
    torque = jax.jit(lambda q, v, a: rnea(model, q, v, a, joint_friction=False))(states.q, states.v, a)
    values = dynamics(model, states) | {"inverse dynamics": np.asarray(torque)}
    errors = largest_errors(values, expected)
    tolerance = 1e-9 if options.tolerance is None else options.tolerance
    allowed = allowed_errors(errors, expected["mass matrix"], tolerance)
    return {
        "file": options.path,
        "against": library,
        "nv": model.nv,
        "states": options.states,
        "device": str(jax.devices()[0]),
        "errors": errors,
        "allowed": allowed,
        "condition_of_mass_matrix": largest_condition(expected["mass matrix"]),
        "equal": all(errors[name] <= allowed[name] for name in errors),
    }


def expected_answers(model: Model, options: CheckOptions, states: States) -> tuple[str, dict[str, np.ndarray]]:
    """Return the other library's name and answers. **Raises** `ImportError` where it is not installed, and `DataError`
    where it cannot read the file."""
    path = Path(options.path)
    if options.kind == "MJCF":
        # The loader has imported MuJoCo before.
        return f"MuJoCo {version('mujoco')}", mujoco_answers(model, mujoco_model(path), states)
    try:
        reference = pinocchio_model(path, options.free_base)
    except ImportError:
        raise ImportError("URDF files are compared with Pinocchio, which is not installed: pip install pin") from None
    except (ValueError, RuntimeError) as error:
        raise DataError(f"{path}: Pinocchio cannot read it: {' '.join(str(error).split())}") from None
    return f"Pinocchio {version('pin')}", pinocchio_answers(model, reference, path, states)


def print_table(comparison: dict[str, Any]) -> None:
    """Print the errors, a line for each answer."""
    states, device = comparison["states"], comparison["device"]
    freedom = f"{comparison['nv']} degree{'s' if comparison['nv'] != 1 else ''} of freedom"
    print(
        f"{comparison['file']}: {freedom}, {states} random states, float64 on {device}, against "
        f"{comparison['against']}\n\n{'':18}{'relative error':>14}{'allowed':>12}"
    )
    different = [name for name, error in comparison["errors"].items() if not error <= comparison["allowed"][name]]
    for name, error in comparison["errors"].items():
        verdict = "   DIFFERENT" if name in different else ""
        print(f"{name:18}{error:14.1e}{comparison['allowed'][name]:12.1e}{verdict}")
    print(f"\ncondition number of the mass matrix, at most: {comparison['condition_of_mass_matrix']:.1e}")
    print(f"DIFFERENT: {', '.join(different)}" if different else "equal")
