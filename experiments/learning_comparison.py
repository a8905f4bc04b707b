"""Train policies by Brax's PPO and by this library's trainers in the same environments, and judge all in MuJoCo.

    python -m experiments.learning_comparison [CONFIG] [--key value ...]

Each run is one task, method and seed. Brax's PPO (`pip install "jaxdyn[brax]"`) has the settings of the paper that
introduced it (`ppo`), with an update after each 2,048 steps, or those of Brax's training notebook (`ppo_large`), which
are for accelerators, with an update after some 300,000 steps. It trains for `minutes` of processor time. This library's
trainers have their defaults, and train for `steps` of the environments, along which their learning rates fall. At its
end each policy is judged, without exploration, from `starts` starts in MuJoCo's C code (`jaxdyn.learn.judge`). On the
way a policy of PPO is judged alike, from `curve_starts` starts, and for those of this library stand the evaluations of
the trainer, in its own simulation. Judging PPO does not count as training; compilation does. A run that has ended is
not repeated, so an interrupted comparison continues with the run that was interrupted.

Times are those of the processors, in all threads of the process, so that programs beside it change them little;
`seconds` are by the clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from experiments._benchmark_report import conditions, table
from experiments._main import CONFIGS, experiment, version_of
from jaxdyn import DataError, cli, learn

DEFAULT_CONFIG = CONFIGS / "learning_comparison.toml"
Method = Literal["ppo", "ppo_large", "apg", "shac", "ahac"]

_RUNNERS = {
    "num_timesteps": 50_000_000,
    "reward_scaling": 1.0,
    "normalize_observations": True,
    "unroll_length": 20,
    "num_minibatches": 32,
    "num_updates_per_batch": 8,
    "discounting": 0.95,
    "learning_rate": 3e-4,
    "entropy_cost": 1e-3,
    "num_envs": 2048,
    "batch_size": 512,
}
_WALKERS = _RUNNERS | {"unroll_length": 10, "discounting": 0.97, "batch_size": 1024, "reward_scaling": 0.1}
PPO_LARGE = {
    "half_cheetah": _RUNNERS,
    # The notebook trains hopper and walker by SAC; the discount is the one that it has for them.
    "hopper": _RUNNERS | {"discounting": 0.997},
    "walker": _RUNNERS | {"discounting": 0.997},
    "ant": _WALKERS
    | {"unroll_length": 5, "num_updates_per_batch": 4, "entropy_cost": 1e-2, "reward_scaling": 10.0}
    | {"num_envs": 4096, "batch_size": 2048},
    "humanoid": _WALKERS,
    "cartpole_swingup": _WALKERS
    | {"unroll_length": 5, "num_updates_per_batch": 4, "entropy_cost": 1e-2, "reward_scaling": 10.0},
}
"""The settings of Brax's PPO, from `notebooks/training.ipynb` of Brax; for the cart-pole those of its inverted
pendulum. A run ends with its minutes, so `num_timesteps` is a bound."""
PPO = {
    "num_timesteps": 50_000_000,
    "normalize_observations": True,
    "num_envs": 64,
    "unroll_length": 32,
    "batch_size": 2,
    "num_minibatches": 32,
    "num_updates_per_batch": 10,
    "discounting": 0.99,
    "learning_rate": 3e-4,
    "entropy_cost": 0.0,
    "clipping_epsilon": 0.2,
    "hidden_layer_sizes": [64, 64],
}
"""The settings of Schulman et al., Proximal policy optimization algorithms, 2017, table 3: an update after 2,048 steps,
here of 64 environments, by 10 passes over minibatches of 64 steps, here 2 times 32, and networks with two layers of 64
units and the hyperbolic tangent."""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    tasks: tuple[str, ...] = ("half_cheetah", "hopper", "ant")
    methods: tuple[Method, ...] = ("ppo", "shac")
    seeds: int = 5
    """The number of runs of each task and method."""
    minutes: float = 20.0
    """The processor time of training of each run of PPO."""
    steps: int = 2_000_000
    """The steps of the environments in each run of this library's trainers."""
    points: int = 10
    """How often the policy of a run is judged on its way."""
    curve_starts: int = 10
    """The number of starts from which a policy of PPO is judged on its way."""
    starts: int = 100
    """The number of starts from which a policy is judged at its end."""
    episode_length: int = 1000


@dataclasses.dataclass
class Curve:
    """The judgments of a run on its way."""

    config: Config
    env: learn.Environment
    points: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    judging: tuple[float, float] = (0.0, 0.0)
    """The time that was spent on judging, by the clock and of the processors, s."""
    began: tuple[float, float] = dataclasses.field(default_factory=lambda: _clocks())

    def add(self, steps: int, policy: Callable[[Any], Any]) -> bool:
        """Judge the policy after these steps if a point is due. Returns whether the time is over."""
        now, limit = _clocks(), 60 * self.config.minutes
        seconds, cpu = (x - y - z for x, y, z in zip(now, self.began, self.judging, strict=True))
        over = cpu >= limit
        if over or cpu >= limit / self.config.points * len(self.points):
            judged = self.judge(policy, self.config.curve_starts, 0)
            self.points.append({"steps": steps, "seconds": seconds, "cpu_seconds": cpu, **_numbers(judged)})
            cli.announce(f"{steps} steps, {cpu:.0f} CPU s: return {np.median(judged.returns):.6g}")
        wall, processors = (x - y + z for x, y, z in zip(_clocks(), now, self.judging, strict=True))
        self.judging = wall, processors
        return over

    def judge(self, policy: Callable[[Any], Any], starts: int, seed: int) -> learn.PolicyJudgment:
        """Judge a policy in MuJoCo's C code."""
        return learn.judge(policy, self.env, starts=starts, steps=self.config.episode_length, seed=seed)


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _numbers(judged: learn.PolicyJudgment) -> dict[str, Any]:
    metrics = {name: float(x.mean()) for name, x in judged.metrics.items()}
    return {"returns": judged.returns.tolist(), "falls": judged.ends.count("task"), "metrics": metrics}


def run(config: Config) -> dict[str, Any]:
    """Train, judge, print, and write `<results>/<name>/`; returns the content of `summary.json`."""
    cli.require_positive_keys(config, "seeds", "minutes", "points", "curve_starts", "starts", "episode_length")
    known = PPO_LARGE if "ppo_large" in config.methods else learn.environments()
    if unknown := set(config.tasks) - set(known):
        raise DataError(f"there are no settings for the tasks {sorted(unknown)}; known are {', '.join(known)}")
    folder = config.make_folder()
    with cli.alone_in(folder):
        records = [recorded(folder, config, *job) for job in jobs(config)]
        lines = report(records)
        print("\n".join(lines))
        out = {"config": dataclasses.asdict(config), "conditions": conditions(-1), "runs": records}
        cli.write_json(folder / "summary.json", out, announce=True)
    return out


def jobs(config: Config) -> Iterator[tuple[str, Method, int]]:
    """Return task, method and seed of all runs, those of one seed first."""
    for seed in range(config.seeds):
        for task in config.tasks:
            for method in config.methods:
                yield task, method, seed


def recorded(folder: Path, config: Config, task: str, method: Method, seed: int) -> dict[str, Any]:
    """Return the record of a run, from its file if it has ended before with the same settings."""
    settings = {"task": task, "method": method, "seed": seed} | {
        name: getattr(config, name) for name in ("minutes", "points", "curve_starts", "starts", "episode_length")
    }
    of_ppo = {"ppo": PPO, "ppo_large": PPO_LARGE.get(task)}.get(method)
    settings |= {"budget": config.steps} if of_ppo is None else {"settings": of_ppo}
    path = folder / f"{task}-{method}-{seed}.json"
    if path.exists():
        record = cli.read_json(path)
        if record.get("settings") != settings:
            raise DataError(f"{path} has other settings; give another name, or delete it to run it again")
        return record
    until = f"{config.minutes:g} minutes" if method.startswith("ppo") else f"{config.steps} steps"
    cli.announce(f"{task} by {method}, seed {seed}: {until}")
    env = learn.environment(task)
    curve = Curve(config, env)
    if of_ppo is not None:
        policy, steps = by_ppo(of_ppo, seed, curve)
    else:
        policy, steps = by_gradients(config, folder / f"{task}-{method}-{seed}", method, seed, curve)
    final = curve.judge(policy, config.starts, 1)
    print(f"{task}, {method}, seed {seed}, {steps} steps\n{final}", flush=True)
    made_with = {name: version_of(name) for name in ("jax", "brax", "mujoco", "gymnasium")}
    record = {
        "task": task,
        "method": method,
        "seed": seed,
        "settings": settings,
        "steps": steps,
        "points": curve.points,
        "final": _numbers(final),
        "made_with": made_with,
    }
    cli.write_json(path, record)
    return record


class BraxPolicy(eqx.Module):
    """A policy of Brax as this library has them."""

    parameters: Any
    make: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, obs: Any, key: Any = None) -> Any:
        return self.make(self.parameters, deterministic=key is None)(obs, key)[0]


class _TimeIsOverError(Exception):
    pass


def by_ppo(settings: dict[str, Any], seed: int, curve: Curve) -> tuple[BraxPolicy, int]:
    """Train by Brax's PPO, and return the policy and the steps of the environments."""
    if not hasattr(jax, "device_put_replicated"):
        # Brax 0.14 calls this function, which JAX 0.10 has removed.
        jax.device_put_replicated = _replicated  # pyright: ignore[reportAttributeAccessIssue]
    from brax.training.agents.ppo import train as ppo  # pyright: ignore[reportMissingImports]
    from brax.training.agents.ppo.networks import make_ppo_networks  # pyright: ignore[reportMissingImports]

    options = dict(settings)
    if sizes := options.pop("hidden_layer_sizes", None):
        layers = {"policy_hidden_layer_sizes": sizes, "value_hidden_layer_sizes": sizes, "activation": jnp.tanh}
        options["network_factory"] = functools.partial(make_ppo_networks, **layers)
    samples = options["batch_size"] * options["unroll_length"] * options["num_minibatches"]
    # Brax returns to Python after an epoch, of which each evaluation has one: some updates, so that this costs little.
    epochs = -(-options["num_timesteps"] // max(samples, 2**15))
    latest: list[Any] = []

    def follow(steps, make_policy, parameters):
        # `make_policy` is another function in each run, and the same during one: judging compiles once a run.
        latest[:] = BraxPolicy(parameters, make_policy), int(steps)
        if curve.add(int(steps), latest[0]):
            raise _TimeIsOverError

    with contextlib.suppress(_TimeIsOverError):
        length = curve.config.episode_length
        found = {"episode_length": length, "seed": seed, "num_evals": epochs + 1, "run_evals": False}
        ppo.train(curve.env, **found, policy_params_fn=follow, **options)
    return latest[0], latest[1]


def by_gradients(config: Config, folder: Path, method: str, seed: int, curve: Curve) -> tuple[Any, int]:
    """Train by one of this library's trainers, and return the policy and the steps of the environments."""
    options: dict[str, Any] = {"steps": config.steps, "seed": seed, "episode_length": config.episode_length}
    training = learn.train(
        curve.env, method, **options, evaluations=config.points, folder=folder, resume=folder.exists(), progress=False
    )
    for record in training.records:
        numbers = {name: record[name] for name in ("steps", "seconds")}
        curve.points.append({**numbers, "cpu_seconds": None, "returns": [record["return"]]})
    return training.policy, training.records[-1]["steps"]


def _replicated(tree: Any, devices: Any) -> Any:
    return jax.tree.map(lambda x: jnp.stack([x] * len(devices)), tree)


def report(records: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the tables: return against time and steps, and at the end."""
    lines, groups = [], {}
    for record in records:
        groups.setdefault((record["task"], record["method"]), []).append(record)
    rows = []
    for (task, method), runs in groups.items():
        count = min(len(x["points"]) for x in runs)
        for i in sorted({round(k * (count - 1) / 4) for k in range(5)}):
            points = [x["points"][i] for x in runs]
            means = [_mean([p[name] for p in points]) for name in ("steps", "seconds", "cpu_seconds")]
            rows.append([task, method, *means, _band([np.mean(p["returns"]) for p in points])])
    header = ["task", "method", "steps", "seconds", "CPU seconds", "return: median over seeds [quartiles]"]
    lines += table(header, rows)
    ends = []
    for (task, method), runs in groups.items():
        returns = [np.mean(x["final"]["returns"]) for x in runs]
        falls = [100 * x["final"]["falls"] / len(x["final"]["returns"]) for x in runs]
        ends.append([task, method, str(len(runs)), f"{np.mean([x['steps'] for x in runs]):.3g}", _band(returns)])
        ends[-1].append(f"{np.median(falls):.0f}")
    header = ["task", "method", "seeds", "steps", "return at the end: median over seeds [quartiles]", "falls, %"]
    return [*lines, "", *table(header, ends)]


def _mean(values: list[Any]) -> str:
    return "not measured" if None in values else f"{np.mean(values):.3g}"


def _band(values: list[Any]) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.0f} [{low:.0f}, {high:.0f}]"


main = experiment("learning_comparison", Config, run, DEFAULT_CONFIG, __doc__, x64=False)

if __name__ == "__main__":
    sys.exit(main())
