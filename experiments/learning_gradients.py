"""Bias and noise of the gradient of a return against the horizon, and the stiffness and width of contacts.

    python -m experiments.learning_gradients [CONFIG] [--key value ...]

A fixed random network moves each robot; the gradient is that by the offsets of its last layer, one for each action, at
offsets and starts that are drawn at random. Its mean over all draws is compared with that of differences of returns at
offsets on both sides (Gaussian smoothing: Nesterov & Spokoiny, Random gradient-free minimization of convex functions,
2017), which needs no derivatives. Both means estimate the gradient of the mean return over these offsets; where the
return jumps, only the differences do so without bias (Suh et al., Do differentiable simulators give better policy
gradients?, ICML 2022). The bias is the distance of the means over the norm of the second, and its standard error stands
beside it. The noise is the standard deviation of one sample of a gradient over the same norm.

Single precision. Episodes do not end. Writes `report.md`, `measurements.jsonl` and, with matplotlib, `figure.png`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments._benchmark_options import names_in, numbers_in
from experiments._main import CONFIGS, experiment
from jaxdyn import learn
from jaxdyn.cli import ProgramConfig, pyplot, save_figure

DEFAULT_CONFIG = CONFIGS / "learning_gradients.toml"


@dataclasses.dataclass(frozen=True)
class Config(ProgramConfig):
    """Keys of the configuration file. Lists are names or numbers between commas."""

    environments: str = "cartpole_swingup,hopper,half_cheetah,ant"
    horizons: str = "2,4,8,16,32"
    """Steps of the environments."""
    horizon: int = 16
    """The number of steps in the figures against stiffness and width."""
    starts: int = 128
    """Samples of the gradient by derivatives."""
    differences: int = 4
    """Samples by differences for each of them."""
    smoothing: float = 0.1
    """The standard deviation of the offsets; actions are within 1."""
    time_constants: str = "0.02,0.04,0.08"
    """The time constants of contacts (`solref[0]`), s. Those of a file are at least two time steps."""
    widths: str = "0.001,0.01,0.1"
    """The depths over which contacts become stiff (`solimp[2]`), m."""


class Samples(NamedTuple):
    """Gradients of returns up to each step, `[samples, steps, nu]`."""

    derivatives: Any
    differences: Any


def run(config: Config) -> list[dict[str, Any]]:
    """Measure, print and write; returns the measurements."""
    horizons = [int(x) for x in numbers_in(config.horizons, "horizons")]
    folder, records = config.make_folder(), []
    for name in names_in(config.environments, learn.environments(), "environments"):
        env = learn.environment(name)
        settings: list[tuple[str, float | None, Any]] = [("horizon", None, env)]
        if env.world.parts.constraints.contacts.pairs:
            settings += [
                ("time_constant", x, _with_contacts(env, "solref", 0, x)) for x in _floats(config.time_constants)
            ]
            settings += [("width", x, _with_contacts(env, "solimp", 2, x)) for x in _floats(config.widths)]
        for what, value, changed in settings:
            began = time.perf_counter()
            samples = sampled(config, changed, max(horizons))
            seconds = time.perf_counter() - began
            for steps in horizons if what == "horizon" else [config.horizon]:
                found = compared(samples, steps)
                records.append({"environment": name, "against": what, "value": value or steps, "steps": steps} | found)
            print(f"{name:18}{what:14}{value or '':<8} {seconds:6.1f} s", flush=True)
    text = table(records)
    print(text)
    (folder / "report.md").write_text(f"# Gradients of returns\n\n{__doc__}\n{text}\n")
    (folder / "measurements.jsonl").write_text("".join(json.dumps(x) + "\n" for x in records))
    draw(folder / "figure.png", config, records)
    return records


def _floats(text: str) -> list[float]:
    return [float(x) for x in text.split(",")]


def _with_contacts(env: Any, field: str, column: int, value: float) -> Any:
    """Return the environment with one number of the law of all contacts."""

    def places(env):
        return [getattr(pairs, field) for pairs in env.world.parts.constraints.contacts.pairs]

    return eqx.tree_at(places, env, [jnp.asarray(x).at[..., column].set(value) for x in places(env)])


def policy_of(env: Any) -> learn.Policy:
    """Return a fixed random network whose actions are not small."""
    policy = learn.Policy(env.observation_size, env.action_size, widths=(32, 32), key=jax.random.key(1))
    # New policies have a small last layer; these actions have a standard deviation of about a half.
    return eqx.tree_at(lambda p: p.network.layers[-1].weight, policy, replace_fn=lambda x: 50 * x)


def sampled(config: Config, env: Any, steps: int) -> Samples:
    """Return samples of the gradient of the return up to each of `steps` steps."""
    keys = jax.random.split(jax.random.key(0), config.starts * config.differences)
    return Samples(
        _derivatives(env, policy_of(env), keys[: config.starts], config.smoothing, steps),
        _differences(env, policy_of(env), keys, config.smoothing, steps),
    )


def _returns(env: Any, policy: Any, offset: Any, state: Any, steps: int) -> Any:
    """Return the sums of the rewards up to each step."""
    policy = eqx.tree_at(lambda p: p.network.layers[-1].bias, policy, offset)

    def one(state, _):
        state = env.step(state, policy(state.obs))
        return state, state.reward

    return jnp.cumsum(lax.scan(one, state, length=steps)[1])


def _draw(env: Any, key: Any, smoothing: float) -> tuple[Any, Any]:
    """Return a start, and an offset of the actions."""
    start, offset = jax.random.split(key)
    return env.reset(start), smoothing * jax.random.normal(offset, (env.action_size,))


@eqx.filter_jit
def _derivatives(env: Any, policy: Any, keys: Any, smoothing: float, steps: int) -> Any:
    def one(key):
        state, offset = _draw(env, key, smoothing)
        return jax.jacfwd(lambda x: _returns(env, policy, x, state, steps))(offset)

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _differences(env: Any, policy: Any, keys: Any, smoothing: float, steps: int) -> Any:
    def one(key):
        state, offset = _draw(env, key, smoothing)
        high, low = (_returns(env, policy, x, state, steps) for x in (offset, -offset))
        return (high - low)[:, None] * offset / (2 * smoothing**2)

    return jax.vmap(one)(keys)


def compared(samples: Samples, steps: int) -> dict[str, float]:
    """Return the bias of the derivatives with its standard error, and the noise of both, up to a step."""
    one, two = (np.asarray(x[:, steps - 1], float) for x in samples)
    mean, reference = one.mean(axis=0), two.mean(axis=0)
    size = np.linalg.norm(reference)
    spreads = [x.var(axis=0, ddof=1).sum() for x in (one, two)]
    error = np.sqrt(spreads[0] / len(one) + spreads[1] / len(two))
    return {
        "bias": float(np.linalg.norm(mean - reference) / size),
        "bias_error": float(error / size),
        "noise": float(np.sqrt(spreads[0]) / size),
        "noise_of_differences": float(np.sqrt(spreads[1]) / size),
        "norm": float(size),
        "median": float(np.median(np.linalg.norm(one, axis=-1))),
        "largest": float(np.linalg.norm(one, axis=-1).max()),
    }


def table(records: list[dict[str, Any]]) -> str:
    """Return the measurements as a table."""
    names = ("bias", "bias_error", "noise", "noise_of_differences", "norm", "median", "largest")
    lines = ["| environment | against | value | " + " | ".join(names) + " |", "|---" * (3 + len(names)) + "|"]
    for x in records:
        numbers = " | ".join(f"{x[name]:.3g}" for name in names)
        lines.append(f"| {x['environment']} | {x['against']} | {x['value']:g} | {numbers} |")
    return "\n".join(lines)


def draw(path: Any, config: Config, records: list[dict[str, Any]]) -> None:
    """Draw the bias and the noise against the horizon, the time constant and the width."""
    plt = pyplot()
    if plt is None:
        return
    labels = {
        "horizon": "horizon, steps",
        "time_constant": f"time constant of contacts, s ({config.horizon} steps)",
        "width": f"width of contacts, m ({config.horizon} steps)",
    }
    fig, axes = plt.subplots(2, 3, figsize=(12, 6.5), sharex="col", sharey="row")
    environments = list(dict.fromkeys(x["environment"] for x in records))
    for (against, label), (above, below) in zip(labels.items(), axes.T, strict=True):
        for k, name in enumerate(environments):
            own = [x for x in records if (x["environment"], x["against"]) == (name, against)]
            value, color = [x["value"] for x in own], f"C{k}"
            for axis, key, line, title in (
                (above, "bias", "-", name),
                (below, "noise", "-", f"{name}, derivatives"),
                (below, "noise_of_differences", ":", f"{name}, differences"),
            ):
                axis.plot(value, [x[key] for x in own], line, color=color, label=title)
            # A bias within two standard errors may as well be zero.
            clear = [x for x in own if x["bias"] > 2 * x["bias_error"]]
            above.plot(value, [x["bias"] for x in own], "o", color=color, mfc="white")
            above.plot([x["value"] for x in clear], [x["bias"] for x in clear], "o", color=color)
        for axis in (above, below):
            axis.axhline(1, color="0.7", lw=0.8)
            axis.set(xscale="log", yscale="log")
        ticks = sorted({x["value"] for x in records if x["against"] == against})
        below.set_xticks(ticks, [f"{x:g}" for x in ticks])
        below.set_xticks([], minor=True)
        below.set(xlabel=label)
    axes[0, 0].set(ylabel="bias of derivatives over the gradient\n(hollow: within two standard errors)")
    axes[1, 0].set(ylabel="noise of one sample over the gradient")
    axes[0, 0].legend(fontsize=7)
    axes[1, 0].legend(fontsize=6)
    fig.tight_layout()
    save_figure(path, fig, dpi=100)


main = experiment("learning_gradients", Config, run, DEFAULT_CONFIG, __doc__, x64=False)

if __name__ == "__main__":
    sys.exit(main())
