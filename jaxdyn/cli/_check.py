"""`jaxdyn check`: the dynamics of a robot's file against those of another library."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.algorithms import rnea
from jaxdyn.model import Model
from jaxdyn.programs import _mujoco, _pinocchio
from jaxdyn.programs._application import DIFFERENT, FINE, double_precision, print_json
from jaxdyn.programs._compare import States, allowed_errors, answers, condition, largest_errors, random_states
from jaxdyn.programs._robot_file import File, FileOptions, Flag, parse

HELP = """Whether the dynamics of a robot are those of Pinocchio (URDF) or MuJoCo (MJCF), which must be installed.

Compared are the mass matrix (crba), bias and inverse dynamics (rnea) and forward dynamics (aba) at random states, in
double precision, without friction. An error is the largest difference relative to the largest number of the answer, at
the worst state. The exit code is 1 if an answer differs."""
EXAMPLES = """
  jaxdyn check robot.urdf
  jaxdyn check robot.urdf --free-base --states 100
  jaxdyn check scene.xml --json"""


@dataclasses.dataclass(frozen=True)
class Options(FileOptions):
    file: File = dataclasses.field(kw_only=True)
    """A URDF or MJCF file."""
    states: int = 20
    """How many."""
    tolerance: float = 1e-9
    """Relative error up to which answers are equal. To accelerations more is allowed where the mass matrix is so badly
    conditioned that its rounding alone does more."""
    seed: int = 0
    """Of the random states."""
    json: Flag = False
    """The same as JSON on stdout."""


def main(arguments: Sequence[str]) -> int:
    """The command with its arguments."""
    options = parse(Options, arguments, "check", HELP, EXAMPLES)
    if options.states < 1:
        raise DataError(f"states is {options.states}; at least one is needed")
    # Equal means equal in double precision.
    double_precision()
    found = compared(options)
    if options.json:
        print_json(lambda: found)
    else:
        print_table(found)
    return FINE if found["equal"] else DIFFERENT


def compared(options: Options) -> dict[str, Any]:
    """The errors of all answers, what is allowed, and the verdict."""
    model = options.load(options.file)
    states = random_states(model, options.states, options.seed)
    a = np.random.default_rng((options.seed, 1)).normal(size=states.v.shape)
    other, expected = expected_answers(model, options, states)
    expected["inverse dynamics"] = np.einsum("nij,nj->ni", expected["mass matrix"], a) + expected["bias"]
    torque = jax.jit(lambda q, v, a: rnea(model, q, v, a, joint_friction=False))(states.q, states.v, a)
    found = answers(model, states) | {"inverse dynamics": np.asarray(torque)}
    errors = largest_errors(found, expected)
    allowed = allowed_errors(errors, expected["mass matrix"], options.tolerance)
    return {
        "file": options.file,
        "against": other,
        "nv": model.nv,
        "states": options.states,
        "device": str(jax.devices()[0]),
        "errors": errors,
        "allowed": allowed,
        "condition_of_mass_matrix": condition(expected["mass matrix"]),
        "equal": all(errors[name] <= allowed[name] for name in errors),
    }


def expected_answers(model: Model, options: Options, states: States) -> tuple[str, dict[str, np.ndarray]]:
    """The other library's name and answers. **Raises** `ImportError` where it is not installed, and `DataError` where
    it cannot read the file."""
    path = Path(options.file)
    if options.kind(options.file) == "MJCF":
        # The loader has needed MuJoCo before.
        return f"MuJoCo {version('mujoco')}", _mujoco.expected(model, _mujoco.reference(path), states)
    try:
        other = _pinocchio.reference(path, options.free_base)
    except ImportError:
        raise ImportError("URDF files are compared with Pinocchio, which is not installed: pip install pin") from None
    except (ValueError, RuntimeError) as error:
        raise DataError(f"{path}: Pinocchio cannot read it: {' '.join(str(error).split())}") from None
    return f"Pinocchio {version('pin')}", _pinocchio.expected(model, other, path, states)


def print_table(found: dict[str, Any]) -> None:
    freedom = f"{found['nv']} degree{'s' if found['nv'] != 1 else ''} of freedom"
    print(
        f"{found['file']}: {freedom}, {found['states']} random states, float64 on {found['device']}, against "
        f"{found['against']}\n\n{'':18}{'relative error':>14}{'allowed':>12}"
    )
    for name, error in found["errors"].items():
        verdict = "" if error <= found["allowed"][name] else "   DIFFERENT"
        print(f"{name:18}{error:14.1e}{found['allowed'][name]:12.1e}{verdict}")
    print(f"\ncondition number of the mass matrix, at most: {found['condition_of_mass_matrix']:.1e}")
    different = [name for name, error in found["errors"].items() if not error <= found["allowed"][name]]
    print(f"DIFFERENT: {', '.join(different)}" if different else "equal")
