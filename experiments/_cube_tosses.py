"""Recorded tosses of a cube, divided into those that are fitted and those that judge the fit."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments import _job_files
from experiments._flights import Flight, flights
from jaxdyn import DataError, State, cli, samples
from jaxdyn.spatial import quaternion_to_rotation


class Tosses(NamedTuple):
    """Tosses of one length, the shorter ones filled with their last sample."""

    position: Any
    """`[n, samples, 3]`, m"""
    quaternion: Any
    """`[n, samples, 4]`"""
    start: State
    """States of the cube at the first sample, as recorded."""
    flight: Flight
    """States at the first sample by all samples before the cube touches the table."""
    counts: Any
    """`[n, samples]`: 1 for samples that count, 0 for those that fill."""


def load(config: Any) -> tuple[Tosses, Tosses]:
    """Return the training and the test tosses of a `Config` of the experiment, drawn without repetition."""
    path = cli.data_path(config.recordings)
    names = ("position", "quaternion", "linear_velocity", "angular_velocity")

    def read(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return arrays["samples"], {name: arrays[name].astype(np.float64) for name in names}

    counts, columns = _job_files.read_npz(path, read)
    needed = config.training + config.testing
    if needed > len(counts):
        raise DataError(f"{path} has {len(counts)} tosses, but training and testing are {needed} together")
    drawn = np.random.default_rng(config.seed).permutation(len(counts))[:needed]
    parts = drawn[: config.training], drawn[config.training :]
    return tuple(_tosses(config, counts, columns, part) for part in parts)  # type: ignore[return-value]


def _tosses(config: Any, counts: np.ndarray, columns: dict[str, np.ndarray], which: np.ndarray) -> Tosses:
    first = np.cumsum(counts) - counts
    length = counts[which].max()
    rows = first[which, None] + np.minimum(np.arange(length), counts[which, None] - 1)
    position, quaternion, linear, angular = (x[rows] for x in columns.values())
    quaternion = quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True)
    world = linear[:, 0] + [0, 0, config.velocity_age / config.rate * samples.cube().gravity[2]]
    from_world = quaternion_to_rotation(quaternion[:, 0]).swapaxes(-1, -2)
    v = np.concatenate([np.einsum("nij,nj->ni", from_world, world), angular[:, 0]], axis=-1)
    start = State(jnp.asarray(np.concatenate([position[:, 0], quaternion[:, 0]], axis=-1)), jnp.asarray(v))
    counted = np.arange(length) < counts[which, None]
    rotation = np.asarray(quaternion_to_rotation(quaternion))
    lowest = position[..., 2] - config.half_width * np.abs(rotation[..., 2, :]).sum(axis=-1)
    flying = np.cumprod(counted & (lowest > config.clearance), axis=1)
    recorded = np.stack([world, angular[:, 0]], axis=1)
    return Tosses(position, quaternion, start, flights(config.rate, position, quaternion, flying, recorded), counted)


def first(tosses: Tosses, samples: int) -> Tosses:
    """Return the tosses up to a number of samples; 0 for all."""
    n = samples or tosses.counts.shape[1]
    position, quaternion, counts = (x[:, :n] for x in (tosses.position, tosses.quaternion, tosses.counts))
    return tosses._replace(position=position, quaternion=quaternion, counts=counts)
