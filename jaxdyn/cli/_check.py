"""`jaxdyn check`: compare the dynamics of a robot's file with another library."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxdyn import programs
from jaxdyn._errors import DataError, require_positive
from jaxdyn.algorithms import rnea
from jaxdyn.cli._robot_file import ModelOptions
from jaxdyn.model import Model

HELP = """Compare the dynamics of a robot with Pinocchio (URDF) or MuJoCo (MJCF), which must be installed.

Compares the mass matrix (crba), bias and inverse dynamics (rnea) and forward dynamics (aba) at random states, in double
precision, without friction, and without equality constraints, which MuJoCo holds by springs. An error is the largest
difference relative to the largest number of the answer, at the worst state. The exit code is 1 if an answer differs."""
EXAMPLES = """
  jaxdyn check robot.urdf
  jaxdyn check robot.urdf --free-base --states 100
  jaxdyn check scene.xml --json"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    states: int = 20
    """Number of random states."""
    tolerance: float = 1e-9
    """Largest relative error of equal answers. It is larger for accelerations where the mass matrix is so badly
    conditioned that its rounding alone causes more."""
    seed: int = 0
    """Seed of the random states."""


def main(arguments: Sequence[str]) -> int:
    """Run the command with its arguments."""
    options = programs.parse_options(Options, arguments, "jaxdyn check", HELP, EXAMPLES)
    require_positive(options.states, "states", error=DataError)
    # Equal means equal in double precision.
    programs.double_precision()
    comparison = compare(options)
    if options.json:
        programs.print_json(lambda: comparison)
    else:
        print_table(comparison)
    return programs.FINE if comparison["equal"] else programs.DIFFERENT


def compare(options: Options) -> dict[str, Any]:
    """Return the errors of all answers, the allowed errors, and the verdict."""
    model = options.load()
    programs.announce("computing the answers of the other library")
    states = programs.random_states(model, options.states, options.seed)
    a = np.random.default_rng((options.seed, 1)).normal(size=states.v.shape)
    library, expected = expected_answers(model, options, states)
    expected["inverse dynamics"] = np.einsum("nij,nj->ni", expected["mass matrix"], a) + expected["bias"]
    programs.announce("compiling, and computing the answers of jaxdyn")
    torque = jax.jit(lambda q, v, a: rnea(model, q, v, a, joint_friction=False))(states.q, states.v, a)
    values = programs.dynamics(model, states) | {"inverse dynamics": np.asarray(torque)}
    errors = programs.largest_errors(values, expected)
    allowed = programs.allowed_errors(errors, expected["mass matrix"], options.tolerance)
    return {
        "file": options.file,
        "against": library,
        "nv": model.nv,
        "states": options.states,
        "device": str(jax.devices()[0]),
        "errors": errors,
        "allowed": allowed,
        "condition_of_mass_matrix": programs.largest_condition(expected["mass matrix"]),
        "equal": all(errors[name] <= allowed[name] for name in errors),
    }


def expected_answers(model: Model, options: Options, states: programs.States) -> tuple[str, dict[str, np.ndarray]]:
    """Return the other library's name and answers. **Raises** `ImportError` where it is not installed, and `DataError`
    where it cannot read the file."""
    path = Path(options.file)
    if options.kind == "MJCF":
        # The loader has imported MuJoCo before.
        return f"MuJoCo {version('mujoco')}", programs.mujoco_answers(model, programs.mujoco_model(path), states)
    try:
        reference = programs.pinocchio_model(path, options.free_base)
    except ImportError:
        raise ImportError("URDF files are compared with Pinocchio, which is not installed: pip install pin") from None
    except (ValueError, RuntimeError) as error:
        raise DataError(f"{path}: Pinocchio cannot read it: {' '.join(str(error).split())}") from None
    return f"Pinocchio {version('pin')}", programs.pinocchio_answers(model, reference, path, states)


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
