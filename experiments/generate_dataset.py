"""Roll-outs of a random population of models under random controls, in shards, for learning and identification.

    python -m experiments.generate_dataset [CONFIG] [--key value ...]

An interrupted run continues where it stopped, and ends with the same bytes as an uninterrupted one. Several processes,
on one or many hosts, may share the work: `--processes.count`, `--processes.id`. `SHARD` below lists the arrays of
a shard; `manifest.json` in the folder says how it was made.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments import _job_files
from experiments._main import CONFIGS, experiment
from experiments._population import Controls, Population, draw_models, draw_motion, effort_limits
from experiments._resuming import Pieces, Processes, arrays_by_path, require_seed
from jaxdyn import DataError, Model, cli, rollout

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
    "seed": "seed of the data set",
    "shard": "number of the shard",
}


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    robot: str
    """A sample robot (acrobot, arm, cartpole, double_pendulum, pendulum), or a URDF file, absolute or below
    $JAXDYN_DATA."""
    shards: int
    """Number of files; a larger number later adds to the data set."""
    rollouts: int
    """Roll-outs in each shard, each of another model."""
    duration: float
    """Duration of a roll-out, s."""
    rate: float
    """Samples per second; controls are held from a sample to the next."""
    population: Population
    controls: Controls
    substeps: int = 1
    """Steps of the integrator from a sample to the next."""
    integrator: Literal["semi_implicit_euler", "implicit_velocity", "rk4"] = "semi_implicit_euler"
    precision: Literal["float32", "float64"] = "float64"
    """Precision of the simulation and of the files."""
    seed: int = 0
    plot: bool = True
    """Whether to draw roll-outs.png."""
    processes: Processes = dataclasses.field(default_factory=Processes)


def run(config: Config) -> Path:
    """Write the missing shards of the data set; returns its folder."""
    steps = check(config)
    share = config.processes.begin()
    model = cli.load_robot(config.robot).astype(config.precision)
    effort = effort_limits(model, config.controls)
    if config.controls.kind == "servo" and model.nq != model.nv:
        raise DataError(f"controls.kind is 'servo', but {config.robot} has ball or free joints; use 'sines' or 'noise'")
    if config.population.payload_frame:
        model.topology.frame(config.population.payload_frame)
    folder = config.make_folder()
    names = [shard_name(i) for i in range(config.shards)]
    shards = Pieces(folder, "shards", names, manifest(config, model), "its shards would not fit together")
    missing = shards.check(share, {"arrays": SHARD})
    if len(missing) < config.shards:
        print(f"{config.shards - len(missing)} of {config.shards} shards are there already")
    if missing:
        cli.announce(f"compiling, and writing {len(missing)} shards")
        write_shards(config, model, effort, steps, shards, missing)
    print(f"{folder}: {config.shards} shards of {config.rollouts} roll-outs of {steps} steps")
    if config.plot and share[0] == 0:
        draw(folder, config, model)
    return folder


def check(config: Config) -> int:
    """Return the number of steps. **Raises** `DataError` for settings without a meaning."""
    cli.require_positive_keys(config, "shards", "rollouts", "duration", "rate", "substeps")
    require_seed(config.seed)
    steps = round(config.duration * config.rate)
    if steps < 1:
        raise DataError(f"duration {config.duration:g} s is shorter than a sample at {config.rate:g} Hz")
    config.population.check()
    config.controls.check()
    return steps


def manifest(config: Config, model: Model) -> dict[str, Any]:
    """Return how the shards are made. Runs with another manifest would make other ones."""
    # The number of shards, the place, the plot and the processes do not change the content of a shard.
    free = ("name", "shards", "results", "plot", "processes")
    made_with = {
        "jax": jax.__version__,
        "numpy": np.__version__,
        "platform": jax.default_backend(),
        "robot": _job_files.digest_of_arrays(arrays_by_path(model)),
    }
    content = {k: v for k, v in dataclasses.asdict(config).items() if k not in free}
    return {"format": FORMAT, "config": content, "made_with": made_with}


@functools.cache
def generator(
    population: Population, controls: Controls, rollouts: int, steps: int, rate: float, substeps: int, integrator: Any
) -> Callable[[Model, jax.Array, jax.Array, jax.Array], dict[str, jax.Array]]:
    """Return the compiled function from the nominal model, effort limits, a key and the number of a shard to the shard.

    All shards use the same program; its random numbers depend on the key and the number alone.
    """

    @jax.jit
    def generate(model: Model, effort: jax.Array, key: jax.Array, shard: jax.Array) -> dict[str, jax.Array]:
        first, second = jax.random.split(jax.random.fold_in(key, shard))
        models, drawn = draw_models(first, model, population, effort, rollouts)
        state, drive = draw_motion(second, model, controls, effort, rollouts, steps, 1 / rate)
        counted = jnp.zeros((), jnp.int32) if callable(drive) else None
        options = {"policy_state": counted, "integrator": integrator, "substeps": substeps}
        motion = rollout(models, state, drive, 1 / rate, steps=steps, **options)
        assert motion.tau is not None
        return {"t": motion.t, "q": motion.q, "v": motion.v, "tau": motion.tau, **drawn}

    return generate


def write_shards(
    config: Config, model: Model, effort: jax.Array, steps: int, shards: Pieces, missing: list[int]
) -> None:
    """Make the missing shards. **Raises** `DataError` if a roll-out diverges."""
    c = config
    generate = generator(c.population, c.controls, c.rollouts, steps, c.rate, c.substeps, c.integrator)
    key = jax.random.key(config.seed)

    def make(i: int) -> dict[str, Any]:
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
        return arrays

    shards.make(missing, make, lambda arrays: f"fastest={np.abs(arrays['v']).max():.3g}")


def shard_name(i: int) -> str:
    """The file name of a shard."""
    return f"shard-{i:06d}.npz"


def draw(folder: Path, config: Config, model: Model) -> None:
    """Draw some roll-outs of the first shard."""
    plt = cli.pyplot()
    if plt is None:
        return
    with np.load(folder / shard_name(0)) as file:
        t, q, v, tau, mass = file["t"], file["q"], file["v"], file["tau"], file["inertial_parameters"][..., 0].sum(-1)
    shown = range(min(4, config.rollouts))
    fig, axes = plt.subplots(model.nv, 3, figsize=(13, 1.6 * model.nv + 0.8), sharex=True, squeeze=False)
    # A free base has more coordinates (position and quaternion) than velocities; only the last coordinates are drawn.
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
    cli.save_figure(folder / "roll-outs.png", fig)


main = experiment("generate_dataset", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
