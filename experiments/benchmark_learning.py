"""Roll-outs of Gymnasium's ant and the gradient of their return, beside the forward passes of MJX and Brax.

    python -m experiments.benchmark_learning [CONFIG] [--key value ...]

`forward` and `gradient` are `jaxdyn.learn.environment("ant")` with a fixed network and the gradient of its mean return
by all weights; `mjx` steps the same file by the same actions, with the file's integrator and solver; `brax` is Brax's
own ant with its default backend, which has another file and another law of contact. Each is one program, single
precision, `worlds` at once, and runs in a process of its own, which ends after `limit` seconds. Compilation is what the
first call takes longer than later ones. MJX's Newton solver has no reverse pass over its iterations.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax import lax

from experiments import benchmark_contact
from experiments._benchmark_options import names_in
from experiments._benchmark_report import step_times, write_step_times
from experiments._main import CONFIGS, experiment
from jaxdyn import learn
from jaxdyn.cli import ProgramConfig

DEFAULT_CONFIG = CONFIGS / "benchmark_learning.toml"


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file. Lists are names between commas."""

    libraries: str = "forward,gradient,mjx,brax"
    worlds: int = 64
    steps: int = 32
    """Steps of the environment, each of five time steps."""
    limit: float = 300.0
    """The longest time of one measurement with its compilation, s."""
    seconds: float = 1.0
    """Approximate length of each repeat, s."""
    repeats: int = 3
    alone: bool = False
    """Whether to measure in this process, without a limit."""


def run(config: Config) -> list[dict[str, Any]]:
    """Measure, print, and write `<results>/<name>/report.md`; returns the measurements."""
    folder, records = config.make_folder(), []
    for name in names_in(config.libraries, LIBRARIES, "libraries"):
        if config.alone:
            times = functools.partial(LIBRARIES[name], config)
            records.append(step_times(times, config.worlds * config.steps * SUBSTEPS, library=name))
        else:
            records.append(_measured_apart(config, name, folder))
    (folder / "measurements.json").write_text(json.dumps(records))
    if not config.alone:
        write_step_times(folder, "Roll-outs of the ant", _note(config), records, ("library",))
        _print_ratios(records)
    return records


SUBSTEPS = 5
"""Time steps in a step of the environment, in all three libraries."""


def _note(config: Config) -> str:
    return f"{config.worlds} worlds, {config.steps} steps of {SUBSTEPS} time steps; "


def _measured_apart(config: Config, name: str, folder: Path) -> dict[str, Any]:
    """Return the record of a library from a process of its own; with a reason where that did not end in time."""
    options = {f"--{key}": str(getattr(config, key)) for key in ("worlds", "steps", "seconds", "repeats")}
    options |= {"--libraries": name, "--name": name, "--results": str(folder)}
    arguments = [x for pair in options.items() for x in pair]
    command = [sys.executable, "-m", "experiments.benchmark_learning", *arguments, "--alone"]
    try:
        subprocess.run(command, timeout=config.limit, check=True)
    except subprocess.TimeoutExpired:
        return {"library": name, "reason": f"it did not end within {config.limit:g} s"}
    except subprocess.CalledProcessError as error:
        return {"library": name, "reason": f"it ended with code {error.returncode}"}
    return json.loads((folder / name / "measurements.json").read_text())[0]


def _print_ratios(records: list[dict[str, Any]]) -> None:
    rates = {x["library"]: x["steps_per_s"] for x in records if "steps_per_s" in x}
    for name, rate in rates.items():
        if name != "forward" and "forward" in rates:
            print(f"forward takes {rate / rates['forward']:.3g} times the time of {name}")


def _ant(config: Config) -> tuple[Any, Any, Any]:
    env = learn.environment("ant")
    policy = learn.Policy(env.observation_size, env.action_size, key=jax.random.key(1))
    return env, policy, jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), config.worlds))


def _mean_return(env: Any, config: Config) -> Callable[[Any, Any], Any]:
    """Return the function of a policy's weights and of states that returns the mean return. The numbers of the world
    are constants of its program."""

    def value(policy, states):
        def one(state, _):
            state = jax.vmap(env.step)(state, jax.vmap(policy)(state.obs))
            return state, state.reward.mean()

        return lax.scan(one, states, length=config.steps)[1].sum()

    return value


def time_forward(config: Config) -> tuple[float, float]:
    env, policy, states = _ant(config)
    return benchmark_contact.timed(eqx.filter_jit(_mean_return(env, config)), (policy, states), config)


def time_gradient(config: Config) -> tuple[float, float]:
    env, policy, states = _ant(config)
    gradient = eqx.filter_jit(eqx.filter_value_and_grad(_mean_return(env, config)))
    return benchmark_contact.timed(gradient, (policy, states), config)


def _actions(config: Config, count: int) -> Any:
    """Return actions of the size of an untrained policy's, `[steps, worlds, count]`."""
    return 0.1 * jax.random.normal(jax.random.key(1), (config.steps, config.worlds, count))


def time_mjx(config: Config) -> tuple[float, float]:
    mjx, mujoco = importlib.import_module("mujoco.mjx"), importlib.import_module("mujoco")
    folder = Path(str(importlib.import_module("gymnasium").__file__)).parent / "envs" / "mujoco" / "assets"
    model = mjx.put_model(mujoco.MjModel.from_xml_path(str(folder / "ant.xml")))
    env, _, states = _ant(config)
    data = mjx.make_data(model)
    actions = _actions(config, env.action_size)

    def held(x, action):
        return lax.fori_loop(0, SUBSTEPS, lambda _, x: mjx.step(model, x), x.replace(ctrl=action))

    @jax.jit
    def rolled(q, v):
        start = jax.vmap(lambda q, v: data.replace(qpos=q, qvel=v))(q, v)
        return lax.scan(lambda x, action: (jax.vmap(held)(x, action), None), start, actions)[0].qpos

    qvel = env.world.to_qvel(states.data.q, states.data.v)
    return benchmark_contact.timed(rolled, (states.data.q, qvel), config)


def time_brax(config: Config) -> tuple[float, float]:
    env = importlib.import_module("brax.envs").get_environment("ant")
    assert env._n_frames == SUBSTEPS
    states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), config.worlds))
    actions = _actions(config, env.action_size)

    @jax.jit
    def rolled(states):
        return lax.scan(lambda x, action: (jax.vmap(env.step)(x, action), None), states, actions)[0].obs

    return benchmark_contact.timed(rolled, (states,), config)


LIBRARIES: dict[str, Callable[[Config], tuple[float, float]]] = {
    "forward": time_forward,
    "gradient": time_gradient,
    "mjx": time_mjx,
    "brax": time_brax,
}
"""Functions that return the time of all steps, and of the first call, s."""

main = experiment("benchmark_learning", Config, run, DEFAULT_CONFIG, __doc__, x64=False)

if __name__ == "__main__":
    sys.exit(main())
