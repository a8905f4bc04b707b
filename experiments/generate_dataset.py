"""Roll-outs of a random population of models under random controls, in shards, for learning and identification.

    python -m experiments.generate_dataset [CONFIG] [--key value ...]

An interrupted run goes on where it stopped, and ends with the same bytes as one that was not. See `manifest.json` in
the folder, and `SHARD` below for what each shard holds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxdyn
from experiments._main import CONFIGS, experiment
from experiments._population import Controls, Population, draw_models, draw_motion, effort_limits, leaves_by_name
from jaxdyn import DataError, Model, rollout
from jaxdyn.io import load_urdf
from jaxdyn.programs._files import (
    alone_in,
    data_path,
    digest,
    digest_of_arrays,
    read_json,
    require_same,
    write_durably,
    write_json,
    write_npz,
)

DEFAULT_CONFIG = CONFIGS / "generate_dataset.toml"
FORMAT = 1
SHARD = {
    "t": "[steps + 1], s",
    "q": "[rollouts, steps + 1, nq], configurations",
    "v": "[rollouts, steps + 1, nv], velocities",
    "tau": "[rollouts, steps, nv], actuator torques, held from a sample to the next, N m or N",
    "inertial_parameters": "[rollouts, nb, 10], with the payload, m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz, SI",
    "damping": "[rollouts, nv], N m s/rad or N s/m",
    "friction": "[rollouts, nv], N m or N",
    "friction_velocity": "[nv], rad/s or m/s",
    "gravity": "[rollouts, 3], m/s^2",
    "payload": "[rollouts], kg",
    "seed": "of the data set",
    "shard": "number of the shard",
}
SAMPLES = {
    name: getattr(jaxdyn.samples, name) for name in ("acrobot", "arm", "cartpole", "double_pendulum", "pendulum")
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of the configuration file."""

    name: str
    """Of the folder below `results` that is written."""
    robot: str
    """A sample robot (acrobot, arm, cartpole, double_pendulum, pendulum), or a URDF file, absolute or below
    $JAXDYN_DATA."""
    shards: int
    """Number of files; may be raised later to add to a data set."""
    rollouts: int
    """In each shard, each of another model."""
    duration: float
    """Of a roll-out, s."""
    rate: float
    """Samples per second; controls are held from one to the next."""
    population: Population
    controls: Controls
    substeps: int = 1
    """Of the integrator, from a sample to the next."""
    integrator: Literal["semi_implicit_euler", "implicit_velocity", "rk4"] = "semi_implicit_euler"
    precision: Literal["float32", "float64"] = "float64"
    """Of the simulation and of the files."""
    seed: int = 0
    results: str = "results"
    """Directory of the results."""
    plot: bool = True
    """Whether to draw roll-outs.png."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 2 for a mistake in what was given, with a message on stderr."""
    # An application may choose; which precision is used is said by the configuration.
    return experiment(Config, run, arguments, DEFAULT_CONFIG, "generate_dataset", __doc__)


def run(config: Config) -> Path:
    """Write what is missing of the data set; returns its folder."""
    steps = check(config)
    model = load_robot(config.robot).astype(config.precision)
    effort = effort_limits(model, config.controls)
    if config.controls.kind == "servo" and model.nq != model.nv:
        raise DataError(f"controls.kind is 'servo', but {config.robot} has ball or free joints; use 'sines' or 'noise'")
    if config.population.payload_frame:
        model.topology.frame(config.population.payload_frame)
    folder = Path(config.results) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        manifest = begin(folder, config, model)
        kept = whole_shards(folder, manifest)
        missing = [i for i in range(config.shards) if shard_name(i) not in kept]
        if len(missing) < config.shards:
            print(f"{config.shards - len(missing)} of {config.shards} shards are there already")
        if missing:
            write_shards(folder, config, model, effort, steps, manifest, missing)
    print(f"{folder}: {config.shards} shards of {config.rollouts} roll-outs of {steps} steps")
    if config.plot:
        draw(folder, config, model)
    return folder


def check(config: Config) -> int:
    """The number of steps. **Raises** `DataError` for what means nothing."""
    for name in ("shards", "rollouts", "duration", "rate", "substeps"):
        if not 0 < getattr(config, name) < math.inf:
            raise DataError(f"{name} is {getattr(config, name):g}, but it must be positive")
    if not 0 <= config.seed < 2**32:
        raise DataError(f"seed is {config.seed}, but it must be in 0 ... {2**32 - 1}")
    steps = round(config.duration * config.rate)
    if steps < 1:
        raise DataError(f"duration {config.duration:g} s is shorter than a sample at {config.rate:g} Hz")
    config.population.check()
    config.controls.check()
    return steps


def load_robot(name: str) -> Model:
    if name.endswith(".urdf"):
        return load_urdf(data_path(name))
    if name in SAMPLES:
        return SAMPLES[name]()
    raise DataError(f"robot is {name!r}; known: {', '.join(SAMPLES)}, or a path that ends with .urdf")


def begin(folder: Path, config: Config, model: Model) -> dict[str, Any]:
    """The manifest, new or that of the run which goes on. **Raises** `DataError` if that one was another."""
    # The number of shards, the place and the plot do not change what is in a shard.
    content = {k: v for k, v in dataclasses.asdict(config).items() if k not in ("name", "shards", "results", "plot")}
    made_with = {
        "jax": jax.__version__,
        "numpy": np.__version__,
        "platform": jax.default_backend(),
        "robot": digest_of_arrays(leaves_by_name(model)),
    }
    manifest = {"format": FORMAT, "config": content, "made_with": made_with, "arrays": SHARD, "shards": {}}
    path = folder / "manifest.json"
    if not path.exists():
        write_json(path, manifest)
        return manifest
    before = read_json(path)
    require_same(
        path,
        {key: before.get(key) for key in ("format", "config", "made_with")},
        {key: manifest[key] for key in ("format", "config", "made_with")},
        "its shards would not fit together",
        "Give what it was begun with, another name, or delete the folder",
    )
    return manifest | {"shards": before.get("shards", {})}


def whole_shards(folder: Path, manifest: dict[str, Any]) -> set[str]:
    """The shards whose bytes are those that were written. Others are made again: they are the same each time."""
    whole = set()
    for name, expected in manifest["shards"].items():
        path = folder / name
        if not path.exists():
            print(f"{name} is missing, and made again")
        elif digest(path) != expected:
            print(f"{name} is damaged, and made again")
        else:
            whole.add(name)
    return whole


@functools.cache
def generator(
    population: Population, controls: Controls, rollouts: int, steps: int, rate: float, substeps: int, integrator: Any
) -> Callable[[Model, jax.Array, jax.Array, jax.Array], dict[str, jax.Array]]:
    """The compiled function of the nominal model, effort limits, a key and the number of a shard, that makes a shard.

    All shards are the same program, whose random numbers depend on the number alone.
    """

    @jax.jit
    def generate(model: Model, effort: jax.Array, key: jax.Array, shard: jax.Array) -> dict[str, jax.Array]:
        first, second = jax.random.split(jax.random.fold_in(key, shard))
        models, drawn = draw_models(first, model, population, effort, rollouts)
        state, policy = draw_motion(second, model, controls, effort, rollouts, steps, 1 / rate)
        motion = rollout(
            models,
            state,
            policy,
            1 / rate,
            steps=steps,
            policy_state=policy.init(state),
            integrator=integrator,
            substeps=substeps,
        )
        assert motion.tau is not None
        return {"t": motion.t, "q": motion.q, "v": motion.v, "tau": motion.tau, **drawn}

    return generate


def write_shards(
    folder: Path, config: Config, model: Model, effort: jax.Array, steps: int, manifest: dict[str, Any], missing
) -> None:
    generate = generator(
        config.population,
        config.controls,
        config.rollouts,
        steps,
        config.rate,
        config.substeps,
        config.integrator,
    )
    key = jax.random.key(config.seed)
    with tqdm(missing, unit=" shards", mininterval=0.1) as bar:
        for i in bar:
            arrays: dict[str, Any] = jax.device_get(generate(model, effort, key, jnp.asarray(i, jnp.uint32)))
            for name in ("q", "v"):
                finite = np.isfinite(arrays[name]).all(axis=(-2, -1))
                if not finite.all():
                    raise DataError(
                        f"shard {i}: roll-outs {np.flatnonzero(~finite)[:10].tolist()} diverged; take more substeps, "
                        "or smaller ranges in [population] or [controls]"
                    )
            arrays |= {"seed": np.int64(config.seed), "shard": np.int64(i)}
            assert set(arrays) == set(SHARD)
            path = folder / shard_name(i)
            write_durably(path, lambda temporary, arrays=arrays: write_npz(temporary, arrays))
            # After the shard: one that is not listed is made again.
            manifest["shards"] = dict(sorted((manifest["shards"] | {path.name: digest(path)}).items()))
            write_json(folder / "manifest.json", manifest)
            bar.set_postfix(fastest=f"{np.abs(arrays['v']).max():.3g}")


def shard_name(i: int) -> str:
    return f"shard-{i:06d}.npz"


def draw(folder: Path, config: Config, model: Model) -> None:
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'jaxdyn[viz]')")
        return
    with np.load(folder / shard_name(0)) as file:
        t, q, v, tau, mass = file["t"], file["q"], file["v"], file["tau"], file["inertial_parameters"][..., 0].sum(-1)
    shown = range(min(4, config.rollouts))
    fig, axes = plt.subplots(model.nv, 3, figsize=(13, 1.6 * model.nv + 0.8), sharex=True, squeeze=False)
    # The last coordinates: of a free base the position and orientation come before.
    for row, q_row, v_row in zip(axes, range(model.nq - model.nv, model.nq), range(model.nv), strict=True):
        for i in shown:
            label = f"roll-out {i}, {mass[i]:.2f} kg"
            row[0].plot(t, q[i, :, q_row], lw=1, label=label)
            row[1].plot(t, v[i, :, v_row], lw=1)
            row[2].step(t[:-1], tau[i, :, v_row], lw=1, where="post")
        for axis, name in zip(row, ("q", "v", "tau"), strict=True):
            axis.set_ylabel(f"{name}[{q_row if name == 'q' else v_row}]", fontsize=8)
            axis.tick_params(labelsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("time, s")
    axes[0, 0].legend(fontsize=7, ncol=4, loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)
    fig.tight_layout()
    path = folder / "roll-outs.png"
    write_durably(path, lambda temporary: fig.savefig(temporary, dpi=100))
    plt.close(fig)
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
