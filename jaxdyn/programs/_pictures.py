"""Figures of Matplotlib, without a screen, as files, and the plots and animations of robots that are drawn as lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._waits import saying
from jaxdyn.algorithms import forward_kinematics
from jaxdyn.model import Model
from jaxdyn.programs._files import write_durably

type Point = tuple[str | None, tuple[float, float, float]]
"""A body, or None for the world, and a point in its axes, m."""


class StickFigure(NamedTuple):
    """Lines through points of bodies, and spheres that are obstacles."""

    lines: tuple[tuple[Point, ...], ...]
    flat: bool
    """Whether the motion is in the x-z plane."""
    spheres: tuple[tuple[tuple[float, float, float], float], ...] = ()


def pyplot() -> Any:
    """Return Matplotlib's `pyplot` without a screen; None, after a message, where Matplotlib is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no pictures: matplotlib is not installed (pip install 'jaxdyn[viz]')")
        return None
    return plt


def save_figure(path: Path, figure: Any, dpi: int = 100) -> None:
    """Write a figure into a file, close it, and print the path."""
    import matplotlib.pyplot as plt

    write_durably(path, lambda temporary: figure.savefig(temporary, dpi=dpi), announce=True)
    plt.close(figure)


def _line_points(model: Model, figure: StickFigure, q: np.ndarray) -> list[np.ndarray]:
    """Return for each line its points `[samples, points, 3]` in the world, m."""
    poses = jax.jit(forward_kinematics)(model, jnp.asarray(q))
    R, p = np.asarray(poses.rotation), np.asarray(poses.translation)

    def in_world(body: str | None, point: tuple[float, float, float]) -> np.ndarray:
        if body is None:
            return np.broadcast_to(np.array(point), (len(q), 3))
        i = model.body_names.index(body)
        return R[:, i] @ np.array(point) + p[:, i]

    return [np.stack([in_world(*point) for point in line], axis=1) for line in figure.lines]


@saying("drawing the motion")
def draw_trajectory(path: Path, title: str, model: Model, figure: StickFigure, dt: float, xs, us) -> None:
    """Draw coordinates, velocities and controls over time, and the robot at some of the times."""
    plt = pyplot()
    if plt is None:
        return
    fig = plt.figure(figsize=(12, 7))
    t = dt * np.arange(len(xs))
    for i, (rows, label) in enumerate(
        ((xs[:, : model.nq], "q, rad or m"), (xs[:, model.nq :], "v, rad/s or m/s"), (us, "controls, N m or N"))
    ):
        axis = fig.add_subplot(3, 2, 2 * i + 1)
        axis.plot(t[: len(rows)], rows, lw=1, drawstyle="steps-post" if i == 2 else "default")
        axis.set(xlabel="time, s" if i == 2 else "", ylabel=label)
    lines = _line_points(model, figure, xs[:, : model.nq])
    axis = _scene(fig, figure, lines, (1, 2, 2))
    for k in np.unique(np.linspace(0, len(xs) - 1, 12).astype(int)):
        _draw_lines(axis, figure, [line[k] for line in lines], plt.cm.viridis(k / (len(xs) - 1)))
    fig.suptitle(title)
    fig.tight_layout()
    save_figure(path, fig)


@saying("drawing the animation")
def animate(path: Path, model: Model, figure: StickFigure, dt: float, xs, frames_per_second: float = 20.0) -> None:
    """Write a GIF in the time of the motion."""
    plt = pyplot()
    if plt is None:
        return
    from matplotlib.animation import FuncAnimation, PillowWriter

    stride = max(1, math.floor(1 / (dt * frames_per_second)))
    frames = xs[::stride]
    lines = _line_points(model, figure, frames[:, : model.nq])
    fig = plt.figure(figsize=(4, 4))
    artists = _draw_lines(_scene(fig, figure, lines, (1, 1, 1)), figure, [line[0] for line in lines], "black")

    def show(k: int):
        for artist, line in zip(artists, lines, strict=True):
            if figure.flat:
                artist.set_data(line[k, :, 0], line[k, :, 2])
            else:
                artist.set_data_3d(*line[k].T)
        return artists

    motion, writer = FuncAnimation(fig, show, frames=len(frames)), PillowWriter(fps=round(1 / (dt * stride)))
    write_durably(path, lambda temporary: motion.save(temporary, writer=writer, dpi=70), announce=True)
    plt.close(fig)


def _scene(fig, figure: StickFigure, lines, place: tuple[int, int, int]):
    """Add axes that hold all points of the lines and the spheres."""
    points = np.concatenate([line.reshape(-1, 3) for line in lines])
    for center, radius in figure.spheres:
        points = np.concatenate([points, np.array(center) + radius * np.array([[1.0] * 3, [-1.0] * 3])])
    middle, half = (points.max(axis=0) + points.min(axis=0)) / 2, 0.55 * np.ptp(points, axis=0).max() + 0.05
    low, high = middle - half, middle + half
    if figure.flat:
        axis = fig.add_subplot(*place)
        axis.set(xlim=(low[0], high[0]), ylim=(low[2], high[2]), xlabel="x, m", ylabel="z, m", aspect="equal")
        return axis
    axis = fig.add_subplot(*place, projection="3d")
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    axis.set(xlabel="x, m", ylabel="y, m", zlabel="z, m", box_aspect=(1, 1, 1))
    around, down = np.meshgrid(np.linspace(0, 2 * np.pi, 24), np.linspace(0, np.pi, 12))
    for center, radius in figure.spheres:
        ball = np.stack([np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)])
        x, y, z = np.array(center)[:, None, None] + radius * ball
        axis.plot_surface(x, y, z, color="tab:red", alpha=0.3, lw=0)
    return axis


def _draw_lines(axis, figure: StickFigure, lines, color) -> list[Any]:
    style = {"color": color, "lw": 1.8, "marker": "o", "ms": 3}
    return [axis.plot(*(line[:, [0, 2]] if figure.flat else line).T, **style)[0] for line in lines]
