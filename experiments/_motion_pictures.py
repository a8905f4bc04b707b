"""A plot and a film of a motion that optimal control has found."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxdyn import World, cli
from jaxdyn.trajopt import ModelDynamics
from jaxdyn.viz import plot_trajectory, save_video


def draw_motion(path: Path, title: str, dynamics: ModelDynamics, xs: np.ndarray, us: np.ndarray) -> None:
    """Draw coordinates, velocities and torques over time. The dynamics have a matrix or nothing as their actuation."""
    if cli.pyplot() is None:
        return
    cli.announce(f"drawing {path.name}")
    model, t = dynamics.model, float(dynamics.dt) * np.arange(len(xs))
    tau = us if dynamics.actuation is None else us @ np.asarray(dynamics.actuation).T
    figure = plot_trajectory(model, t, xs[:, : model.nq], xs[:, model.nq :], tau, title=title)
    cli.save_figure(path, figure)


def film_motion(path: Path, dynamics: ModelDynamics, xs: np.ndarray, world: World | None = None) -> None:
    """Write a film in the time of the motion, of the robot or of a world with it and obstacles."""
    cli.announce(f"drawing the pictures of {path.name}")
    model, t = dynamics.model, float(dynamics.dt) * np.arange(len(xs))
    try:
        shown = model if world is None else world
        save_video(path, shown, t, xs[:, : model.nq], frames_per_second=20.0, width=400, height=400)
    except ImportError as error:
        print(f"no film: {error}")
        return
    print(f"wrote {path}")
