"""Train a small neural policy that swings up a pendulum with a weak motor, by the gradient through the roll-out.

    python -m experiments.train_policy [CONFIG] [--key value ...]

An interrupted training goes on where it stopped, and ends with the same policy as one that was not.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import jaxdyn
from experiments._main import CONFIGS, experiment
from jaxdyn import DataError, Model, State, Trajectory, rollout
from jaxdyn.programs._files import (
    alone_in,
    read_json,
    require_same,
    write_durably,
    write_json,
    write_npz,
)
from jaxdyn.simulate import ActuatedPolicy, Actuation, EffortLimits

DEFAULT_CONFIG = CONFIGS / "train_policy.toml"
FORMAT = 1
UPRIGHT_ANGLE = 0.1
"""rad: within this of upright for the last second of a test, and slower than `UPRIGHT_SPEED`, is a success."""
UPRIGHT_SPEED = 0.1
"""rad/s."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Keys of the configuration file."""

    name: str
    """Of the folder below `results` that is written."""
    torque_limit: float
    """Of the motor, N m. The weight of the pendulum's rod needs 4.9 N m when it is horizontal."""
    duration: float
    """Of a roll-out in training, s."""
    timestep: float
    """s."""
    iterations: int
    """Steps of the optimizer."""
    batch: int
    """Roll-outs in each."""
    learning_rate: float
    """At first; it falls along a cosine to a twentieth."""
    width: int = 32
    """Of the two hidden layers."""
    start_speed: float = 3.0
    """Largest speed at the start, rad/s; angles are any, and an eighth of the starts in training nearly hang."""
    velocity_weight: float = 0.02
    """Of the squared velocity in the cost, s^2."""
    torque_weight: float = 0.001
    """Of the squared torque in the cost, 1/(N m)^2."""
    checkpoint_every: int = 25
    """Iterations from one checkpoint to the next: what an interruption costs in time at most."""
    test_starts: int = 1000
    """Random starts of the test."""
    test_duration: float = 10.0
    """s."""
    seed: int = 0
    results: str = "results"
    """Directory of the results."""
    plot: bool = True
    """Whether to draw swing-up.png."""


class SwingUp(eqx.Module):
    """A network that sees the angle as its cosine and sine, and the velocity; commands a torque, N m."""

    network: eqx.nn.MLP
    torque_scale: float = eqx.field(static=True)

    def __call__(self, carry: None, state: State, t: Any) -> tuple[None, jax.Array]:
        x = jnp.concatenate([jnp.cos(state.q), jnp.sin(state.q), 0.2 * state.v], axis=-1)
        *hidden, last = self.network.layers
        for layer in hidden:
            x = jnp.tanh(_dense(layer, x))
        return carry, self.torque_scale * _dense(last, x)


def _dense(layer: eqx.nn.Linear, x: jax.Array) -> jax.Array:
    """A layer on the whole batch at once, as in the roll-out."""
    assert layer.bias is not None
    return x @ layer.weight.T + layer.bias


class Training(NamedTuple):
    """All that a training needs to go on."""

    policy: SwingUp
    optimizer: Any
    iteration: int
    costs: np.ndarray
    """Of each iteration so far."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 2 for a mistake in what was given, with a message on stderr."""
    return experiment(Config, run, arguments, DEFAULT_CONFIG, "train_policy", __doc__, x64=False)


def run(config: Config) -> dict[str, Any]:
    """Train, print, and write `<results>/<name>/`; returns what `summary.json` holds."""
    check(config)
    folder = Path(config.results) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        begin(folder, config)
        model = pendulum(config)
        first = beginning(config)
        training = resumed(folder, first)
        began = time.perf_counter()
        training, compiling = train(folder, config, model, training)
        seconds = time.perf_counter() - began - compiling
        before, after = evaluate(config, model, first.policy), evaluate(config, model, training.policy)
        out = {
            "config": dataclasses.asdict(config),
            "cost": {"initial": before.cost, "final": after.cost},
            "success": {
                "initial": before.success_rate,
                "final": after.success_rate,
                "final, Runge-Kutta": evaluate(config, model, training.policy, exact=True).success_rate,
                "final, from hanging": bool(after.success[0]),
            },
        }
        write_durably(folder / "policy.npz", lambda path: write_npz(path, leaves_by_name(training.policy)))
        write_json(folder / "summary.json", out)
        print(
            f"cost: {before.cost:.4f} before, {after.cost:.4f} after {training.iteration} iterations "
            f"({seconds:.1f} s, and {compiling:.1f} s of compilation)\n"
            f"upright and still in the last of {config.test_duration:g} s: {100 * before.success_rate:.1f} % of "
            f"{config.test_starts} random starts before, {100 * after.success_rate:.1f} % after "
            f"({100 * out['success']['final, Runge-Kutta']:.1f} % if simulated with Runge-Kutta and four substeps); "
            f"from hanging at rest: {'yes' if after.success[0] else 'no'}, at most {after.angle[0]:.4f} rad and "
            f"{after.speed[0]:.4f} rad/s off\nwrote {folder / 'policy.npz'}"
        )
        if config.plot:
            draw(folder / "swing-up.png", config, training, after.motion)
    return out


def check(config: Config) -> None:
    """**Raises** `DataError` for what means nothing."""
    positive = ("torque_limit", "duration", "timestep", "iterations", "batch", "learning_rate", "width")
    for name in (*positive, "checkpoint_every", "test_starts"):
        if not 0 < getattr(config, name) < math.inf:
            raise DataError(f"{name} is {getattr(config, name):g}, but it must be positive")
    if config.duration < config.timestep:
        raise DataError(f"duration {config.duration:g} s is shorter than a step of {config.timestep:g} s")
    if config.test_duration < 1:
        raise DataError(f"test_duration is {config.test_duration:g} s, but its last second is judged: take more")
    if not 0 <= config.seed < 2**32:
        raise DataError(f"seed is {config.seed}, but it must be in 0 ... {2**32 - 1}")


def pendulum(config: Config) -> Model:
    """The sample pendulum with a motor, in single precision."""
    model = jaxdyn.samples.pendulum()
    return eqx.tree_at(lambda m: m.effort_limit, model, jnp.array([config.torque_limit])).astype(jnp.float32)


def beginning(config: Config) -> Training:
    network = eqx.nn.MLP(3, 1, config.width, 2, dtype=jnp.float32, key=jax.random.key(config.seed))
    policy = SwingUp(network, config.torque_limit)
    return Training(policy, optimizer(config).init(eqx.filter(policy, eqx.is_array)), 0, np.zeros(0, np.float32))


def optimizer(config: Config) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(config.learning_rate, config.iterations, alpha=0.05)
    # Far from upright the roll-out is sensitive, and single gradients are a hundred times the others.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


def driven(policy: SwingUp, model: Model) -> ActuatedPolicy:
    """The policy behind the motor's limit, which is smooth: a saturated motor still has a gradient."""
    return Actuation(EffortLimits(model.effort_limit, kind="tanh")).driven_by(policy)


def starts(key: jax.Array, n: int, speed: float) -> State:
    angles, speeds = jax.random.split(key)
    q = jax.random.uniform(angles, (n, 1), jnp.float32, -math.pi, math.pi)
    return State(q, jax.random.uniform(speeds, (n, 1), jnp.float32, -speed, speed))


def cost(config: Config, motion: Trajectory) -> jax.Array:
    """The mean over time and roll-outs of `1 + cos q`, which is 0 upright and 2 hanging, and the weighted squares."""
    assert motion.tau is not None
    off = 1 + jnp.cos(motion.q[:, 1:]) + config.velocity_weight * motion.v[:, 1:] ** 2
    return jnp.mean(off) + config.torque_weight * jnp.mean(motion.tau**2)


@functools.cache
def trainer(config: Config) -> Callable[..., Any]:
    """The compiled function of a model, a policy, an optimizer's state and numbers of iterations, which does these:
    it returns the policy, the optimizer's state, and the costs `[iterations]`."""
    steps = round(config.duration / config.timestep)

    def batch_cost(policy: SwingUp, model: Model, key: jax.Array) -> jax.Array:
        start = starts(key, config.batch, config.start_speed)
        nearly_hanging = jnp.arange(config.batch)[:, None] < config.batch // 8
        start = jax.tree.map(lambda x: jnp.where(nearly_hanging, 0.05 * x, x), start)
        motor = driven(policy, model)
        motion = rollout(model, start, motor, config.timestep, steps=steps, policy_state=motor.init(start))
        return cost(config, motion)

    @eqx.filter_jit
    def train_block(model: Model, policy: SwingUp, state: Any, iterations: jax.Array):
        arrays, rest = eqx.partition(policy, eqx.is_array)

        def one(carry, iteration):
            arrays, state = carry
            # The random numbers depend on the iteration alone: a training that goes on later draws the same.
            key = jax.random.fold_in(jax.random.key(config.seed), iteration)
            value, gradient = jax.value_and_grad(lambda x: batch_cost(eqx.combine(x, rest), model, key))(arrays)
            updates, state = optimizer(config).update(gradient, state)
            return (optax.apply_updates(arrays, updates), state), value

        (arrays, state), costs = jax.lax.scan(one, (arrays, state), iterations)
        return eqx.combine(arrays, rest), state, costs

    return train_block


def train(folder: Path, config: Config, model: Model, training: Training) -> tuple[Training, float]:
    """Train to the end, with a checkpoint after each block; also the time of the first block, mostly compilation, s."""
    block = trainer(dataclasses.replace(config, name="", results="", plot=False))
    began, first = time.perf_counter(), 0.0
    with tqdm(total=config.iterations, initial=training.iteration, unit=" iterations", mininterval=0.1) as bar:
        while training.iteration < config.iterations:
            stop = min(training.iteration + config.checkpoint_every, config.iterations)
            numbers = jnp.arange(training.iteration, stop, dtype=jnp.int32)
            policy, state, costs = block(model, training.policy, training.optimizer, numbers)
            costs = np.asarray(costs)
            if not np.isfinite(costs).all():
                bad = training.iteration + int(np.argmin(np.isfinite(costs)))
                raise DataError(
                    f"the cost is not finite in iteration {bad}; take a smaller learning_rate or timestep, and delete "
                    f"{folder} if its last checkpoint goes there again"
                )
            first = first or time.perf_counter() - began
            bar.update(stop - training.iteration)
            bar.set_postfix(cost=f"{costs.mean():.4f}")
            training = Training(policy, state, stop, np.concatenate([training.costs, costs]))
            save(folder / "checkpoint.npz", training)
    return training, first


def begin(folder: Path, config: Config) -> None:
    """Write down what is trained. **Raises** `DataError` if something else was begun here."""
    # What concerns the tests and the report does not change the policy.
    other = ("name", "results", "plot", "checkpoint_every", "test_starts", "test_duration")
    manifest = {
        "format": FORMAT,
        "config": {k: v for k, v in dataclasses.asdict(config).items() if k not in other},
        "made_with": {"jax": jax.__version__, "optax": optax.__version__, "platform": jax.default_backend()},
    }
    path = folder / "manifest.json"
    if path.exists():
        allowed = "Give what it was begun with, another name, or delete the folder"
        require_same(path, read_json(path), manifest, "the policy would be that of neither", allowed)
    else:
        write_json(path, manifest)


def save(path: Path, training: Training) -> None:
    leaves = leaves_by_name((training.policy, training.optimizer))
    content = {"iteration": np.int64(training.iteration), "costs": training.costs, **leaves}
    write_durably(path, lambda temporary: write_npz(temporary, content))


def resumed(folder: Path, first: Training) -> Training:
    """The training as the last checkpoint has it, or `first`. **Raises** `DataError` for a file that is not one."""
    path = folder / "checkpoint.npz"
    if not path.exists():
        return first
    try:
        with np.load(path) as file:
            content = {name: file[name] for name in file.files}
        policy, state = with_leaves((first.policy, first.optimizer), content)
        training = Training(policy, state, int(content["iteration"]), content["costs"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a checkpoint ({error}); delete it to train from the start") from None
    print(f"goes on after iteration {training.iteration}")
    return training


def load_policy(folder: Path) -> tuple[Model, SwingUp]:
    """The pendulum and the trained policy of a folder that this experiment wrote."""
    config = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["config"]
    config = Config(**config)
    with np.load(folder / "policy.npz") as file:
        return pendulum(config), with_leaves(beginning(config).policy, dict(file))


def leaves_by_name(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree, by where they stand in it."""
    named = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    # Slashes make folders of an archive.
    return {jax.tree_util.keystr(path).replace("/", "|"): np.asarray(x) for path, x in named}


def with_leaves(tree: Any, content: dict[str, np.ndarray]) -> Any:
    """The pytree with the arrays of `leaves_by_name`. **Raises** `KeyError`, `ValueError` where they do not fit."""
    arrays, rest = eqx.partition(tree, eqx.is_array)

    def stored(path, x):
        y = content[jax.tree_util.keystr(path).replace("/", "|")]
        if y.shape != x.shape or y.dtype != x.dtype:
            raise ValueError(f"{jax.tree_util.keystr(path)} is {y.dtype}{list(y.shape)}, not {x.dtype}{list(x.shape)}")
        return jnp.asarray(y)

    return eqx.combine(jax.tree_util.tree_map_with_path(stored, arrays), rest)


class Test(NamedTuple):
    cost: float
    motion: Trajectory
    """From hanging at rest, then from random starts."""
    angle: np.ndarray
    """Largest angle to upright in the last second, rad."""
    speed: np.ndarray
    """Largest in the last second, rad/s."""

    @property
    def success(self) -> np.ndarray:
        return (self.angle < UPRIGHT_ANGLE) & (self.speed < UPRIGHT_SPEED)

    @property
    def success_rate(self) -> float:
        """Of the random starts."""
        return float(self.success[1:].mean())


def evaluate(config: Config, model: Model, policy: SwingUp, exact: bool = False) -> Test:
    """Roll out from hanging at rest and from random starts that training did not see."""
    start = starts(jax.random.fold_in(jax.random.key(config.seed), 2**32 - 1), config.test_starts, config.start_speed)
    start = jax.tree.map(lambda x: jnp.concatenate([jnp.zeros((1, 1), x.dtype), x]), start)
    motor = driven(policy, model)
    steps = round(config.test_duration / config.timestep)
    motion = rollout(
        model,
        start,
        motor,
        config.timestep,
        steps=steps,
        policy_state=motor.init(start),
        integrator="rk4" if exact else "semi_implicit_euler",
        substeps=4 if exact else 1,
    )
    last = steps - round(1 / config.timestep)
    q, v = np.asarray(motion.q)[:, last:, 0], np.asarray(motion.v)[:, last:, 0]
    angle = np.abs(np.mod(q, 2 * math.pi) - math.pi).max(axis=1)
    return Test(float(cost(config, motion)), motion, angle, np.abs(v).max(axis=1))


def draw(path: Path, config: Config, training: Training, motion: Trajectory) -> None:
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'jaxdyn[viz]')")
        return
    t, q, v, tau = (np.asarray(x) for x in (motion.t, motion.q[..., 0], motion.v[..., 0], motion.tau))
    shown = range(min(12, len(q)))
    fig, axes = plt.subplots(2, 2, figsize=(12, 7))
    axes[0, 0].plot(training.costs, lw=0.8)
    axes[0, 0].set(xlabel="iteration", ylabel="cost of the batch", title="training")
    # Turns that were made on the way do not matter.
    turns = 2 * math.pi * np.round((q[:, -1:] - math.pi) / (2 * math.pi))
    for i in shown:
        style = {"color": "black", "lw": 1.8, "zorder": 3} if i == 0 else {"lw": 0.8}
        axes[0, 1].plot(t, (q - turns)[i], **style)
        axes[1, 0].step(t[:-1], tau[i, :, 0], where="post", **style)
        axes[1, 1].plot((q - turns)[i], v[i], **style)
    axes[0, 1].axhline(math.pi, color="0.7", lw=0.8, ls="--")
    axes[0, 1].set(xlabel="time, s", ylabel="angle, rad", title="black: from hanging; upright is pi")
    axes[1, 0].set(xlabel="time, s", ylabel=f"torque, N m (limit {config.torque_limit:g})")
    axes[1, 1].set(xlabel="angle, rad", ylabel="velocity, rad/s")
    fig.tight_layout()
    write_durably(path, lambda temporary: fig.savefig(temporary, dpi=100))
    plt.close(fig)
    print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
