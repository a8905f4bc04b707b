"""MJCF files whose moving bodies have no mass or inertia, which MuJoCo's compiler refuses."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from jaxdyn._errors import RobotFileError
from jaxdyn.io.mjcf import _compiled as mj
from jaxdyn.io.robot_files import robot_text

_REFUSAL = "mass and inertia of moving bodies must be larger"
_BOUND = 2e-15
"""Mass (kg) and moments of inertia (kg m^2) that take the place of smaller ones while the compiler runs: it refuses a
moving body with less than 1e-15, so no body of a file that it accepts has as little."""


def compile_massless_mjcf(path_or_text: Any, kinematics_only: bool) -> tuple[Any, str]:
    """Return what `compile_mjcf` returns. With `kinematics_only` moving bodies may lack mass and inertia, which are
    zero then: the compiler is given bounds for both, on a copy in memory, and what it raised to them is put back.

    **Raises** as `compile_mjcf`; without `kinematics_only` the error about such a body offers it.
    """
    try:
        return mj.compile_mjcf(path_or_text)
    except RobotFileError as error:
        if _REFUSAL not in str(error):
            raise
        if not kinematics_only:
            advice = "give the body an inertia, or load the kinematics alone with kinematics_only=True"
            raise RobotFileError(f"{error}: {advice}") from error.__cause__
    text, kind = robot_text(path_or_text), mj.mujoco().MjSpec
    source = "MJCF text" if text is not None else os.fsdecode(path_or_text)
    if text is None and not source.lower().endswith(".xml"):
        raise RobotFileError(f"{source}: moving bodies without mass are read only if the file's name ends with .xml")
    try:
        spec = kind.from_file(source) if text is None else kind.from_string(text[0])
        spec.compiler.boundmass = max(spec.compiler.boundmass, _BOUND)
        spec.compiler.boundinertia = max(spec.compiler.boundinertia, _BOUND)
        compiled = spec.compile()
    except ValueError as error:
        raise RobotFileError(f"{source}: MuJoCo's compiler refuses it: {' '.join(str(error).split())}") from error
    for values in (compiled.body_mass, compiled.body_inertia):
        values[np.asarray(values) <= _BOUND] = 0.0
    return mj.compile_mjcf(compiled)[0], source
