"""Plots and animations of robots that are drawn as lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms import forward_kinematics
from jaxdyn.model import Model
from jaxdyn.programs._files import write_durably
from jaxdyn.programs._motion_tasks import Drawing


def pyplot() -> Any:
    """Matplotlib without a screen, or None where it is not installed, with a word on that."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no pictures: matplotlib is not installed (pip install 'jaxdyn[viz]')")
        return None
    return plt


def points_of(model: Model, drawing: Drawing, q: np.ndarray) -> list[np.ndarray]:
    """For each line its points `[samples, points, 3]` in the world, m."""
    poses = jax.jit(forward_kinematics)(model, jnp.asarray(q))
    R, p = np.asarray(poses.rotation), np.asarray(poses.translation)
    out = []
    for line in drawing.lines:
        points = []
        for body, at in line:
            if body is None:
                points.append(np.broadcast_to(np.array(at), (len(q), 3)))
            else:
                i = model.body_names.index(body)
                points.append(R[:, i] @ np.array(at) + p[:, i])
        out.append(np.stack(points, axis=1))
    return out


def draw_trajectory(path: Path, title: str, model: Model, drawing: Drawing, dt: float, xs, us) -> None:
    """Coordinates, velocities and controls over time, and the robot at some of the times."""
    plt = pyplot()
    if plt is None:
        return
    fig = plt.figure(figsize=(12, 7))
    t = dt * np.arange(len(xs))
    for i, (rows, label) in enumerate(
        ((xs[:, : model.nq], "q, rad or m"), (xs[:, model.nq :], "v, rad/s or m/s"), (us, "controls, N m or N"))
    ):
        axis = fig.add_subplot(3, 2, 2 * i + 1)
        if i < 2:
            axis.plot(t, rows, lw=1)
        else:
            axis.step(t[:-1], rows, where="post", lw=1)
            axis.set_xlabel("time, s")
        axis.set_ylabel(label)
    shown = np.unique(np.linspace(0, len(xs) - 1, 12).astype(int))
    lines = points_of(model, drawing, xs[:, : model.nq])
    axis = _scene(fig, drawing, lines, (1, 2, 2))
    for k in shown:
        _stroke(axis, drawing, [line[k] for line in lines], plt.cm.viridis(k / (len(xs) - 1)))
    fig.suptitle(title)
    fig.tight_layout()
    write_durably(path, lambda temporary: fig.savefig(temporary, dpi=100))
    plt.close(fig)
    print(f"wrote {path}")


def animate(path: Path, model: Model, drawing: Drawing, dt: float, xs, frames_per_second: float = 20.0) -> None:
    """A GIF in the time of the motion."""
    plt = pyplot()
    if plt is None:
        return
    from matplotlib.animation import FuncAnimation, PillowWriter

    stride = max(1, math.floor(1 / (dt * frames_per_second)))
    kept = xs[::stride]
    lines = points_of(model, drawing, kept[:, : model.nq])
    fig = plt.figure(figsize=(4, 4))
    axis = _scene(fig, drawing, lines, (1, 1, 1))
    artists = _stroke(axis, drawing, [line[0] for line in lines], "black")

    def show(k: int):
        for artist, line in zip(artists, lines, strict=True):
            _move(artist, drawing, line[k])
        return artists

    motion = FuncAnimation(fig, show, frames=len(kept))
    write_durably(
        path, lambda temporary: motion.save(temporary, writer=PillowWriter(fps=round(1 / (dt * stride))), dpi=70)
    )
    plt.close(fig)
    print(f"wrote {path}")


def _scene(fig, drawing: Drawing, lines, place: tuple[int, int, int]):
    every = np.concatenate([line.reshape(-1, 3) for line in lines])
    for center, radius in drawing.spheres:
        every = np.concatenate([every, np.array(center) + radius * np.array([[1.0] * 3, [-1.0] * 3])])
    middle, half = (every.max(axis=0) + every.min(axis=0)) / 2, 0.55 * np.ptp(every, axis=0).max() + 0.05
    low, high = middle - half, middle + half
    if drawing.flat:
        axis = fig.add_subplot(*place)
        axis.set(xlim=(low[0], high[0]), ylim=(low[2], high[2]), xlabel="x, m", ylabel="z, m", aspect="equal")
        return axis
    axis = fig.add_subplot(*place, projection="3d")
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    axis.set(xlabel="x, m", ylabel="y, m", zlabel="z, m", box_aspect=(1, 1, 1))
    around, down = np.meshgrid(np.linspace(0, 2 * np.pi, 24), np.linspace(0, np.pi, 12))
    for center, radius in drawing.spheres:
        ball = np.stack([np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down)])
        x, y, z = np.array(center)[:, None, None] + radius * ball
        axis.plot_surface(x, y, z, color="tab:red", alpha=0.3, lw=0)
    return axis


def _stroke(axis, drawing: Drawing, lines, color) -> list[Any]:
    style = {"color": color, "lw": 1.8, "marker": "o", "ms": 3}
    if drawing.flat:
        return [axis.plot(line[:, 0], line[:, 2], **style)[0] for line in lines]
    return [axis.plot(*line.T, **style)[0] for line in lines]


def _move(artist, drawing: Drawing, line) -> None:
    if drawing.flat:
        artist.set_data(line[:, 0], line[:, 2])
    else:
        artist.set_data_3d(*line.T)
