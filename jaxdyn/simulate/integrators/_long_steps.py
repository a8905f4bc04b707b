"""Warnings of time steps with which friction and springs of joints are unstable."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.core import Tracer

from jaxdyn._errors import DivergenceWarning, warn
from jaxdyn.model import Model, stable_steps


def warn_of_long_step(model: Model, dt: Any, integrator: str, substeps: int) -> None:
    """Warn of a `dt` that is longer than `stable_steps` of the integrator, where it and the model have values: also
    while a state is traced, as in a gradient."""
    if isinstance(dt, Tracer) or not isinstance(model, Model):
        return
    steps = stable_steps(model)
    longest = steps.get(integrator)
    if longest is None or float(dt) / substeps <= longest.dt:
        return
    how = "any step" if longest.dt == 0 else f"steps longer than about {longest.dt:.2g} s (see Model.summary)"
    needed = f"substeps={int(np.ceil(float(dt) / longest.dt))}" if longest.dt > 0 else "another integrator"
    advice = f"take a smaller dt or {needed}"
    if steps["implicit_velocity"].dt >= float(dt) / substeps:
        advice += ", or integrator='implicit_velocity', which is stable with this one"
    warn(
        f"{integrator!r} with {'substeps of ' if substeps > 1 else 'dt = '}{float(dt) / substeps:.4g} s: the friction "
        f"or spring of joint {longest.joint!r} is unstable in {how}. States may look right while the joint jumps to "
        f"and fro near rest and derivatives grow without bound; {advice}",
        DivergenceWarning,
    )
