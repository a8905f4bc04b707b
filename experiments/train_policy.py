"""Train a small neural policy that swings up a pendulum with a weak motor, by the gradient through the roll-out.

    python -m experiments.train_policy [CONFIG] [--key value ...]

An interrupted training continues where it stopped, and ends with the same policy as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxdyn
from experiments import _job_files
from experiments._main import CONFIGS, experiment
from experiments._resuming import arrays_by_path, require_seed
from jaxdyn import DataError, Model, State, Trajectory, cli, rollout
from jaxdyn.simulate import ActuatedPolicy, Actuation, EffortLimits

DEFAULT_CONFIG = CONFIGS / "train_policy.toml"
FORMAT = 1
UPRIGHT_ANGLE = 0.1
"""Largest angle from upright in the last second of a successful test, rad."""
UPRIGHT_SPEED = 0.1
"""Largest speed in the last second of a successful test, rad/s."""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    torque_limit: float
    """Limit of the motor, N m. The weight of the pendulum's rod needs 4.9 N m when it is horizontal."""
    duration: float
    """Duration of a roll-out in training, s."""
    timestep: float
    """Time step, s."""
    iterations: int
    """Steps of the optimizer."""
    batch: int
    """Roll-outs in each step."""
    learning_rate: float
    """Learning rate at the start; it falls along a cosine to a twentieth."""
    width: int = 32
    """Width of the two hidden layers."""
    start_speed: float = 3.0
    """Largest speed at the start, rad/s. Starts have any angle; an eighth of those in training nearly hang."""
    velocity_weight: float = 0.02
    """Weight of the squared velocity in the cost, s^2."""
    torque_weight: float = 0.001
    """Weight of the squared torque in the cost, 1/(N m)^2."""
    checkpoint_every: int = 25
    """Iterations from one checkpoint to the next; an interruption costs at most these."""
    test_starts: int = 1000
    """Random starts of the test."""
    test_duration: float = 10.0
    """Duration of a test, s."""
    seed: int = 0
    plot: bool = True
    """Whether to draw swing-up.png."""


class SwingUp(eqx.Module):
    """A network from the cosine and sine of the angle and the velocity to a torque, N m."""

    network: eqx.nn.MLP
    torque_scale: float = eqx.field(static=True)

    def __call__(self, carry: None, state: State, t: Any) -> tuple[None, jax.Array]:
        x = jnp.concatenate([jnp.cos(state.q), jnp.sin(state.q), 0.2 * state.v], axis=-1)
        *hidden, last = self.network.layers
        for layer in hidden:
            x = jnp.tanh(_dense(layer, x))
        return carry, self.torque_scale * _dense(last, x)


def _dense(layer: eqx.nn.Linear, x: jax.Array) -> jax.Array:
    """Apply a layer to the whole batch at once."""
    assert layer.bias is not None
    return x @ layer.weight.T + layer.bias


class Training(NamedTuple):
    """The state of a training, from which it can continue."""

    policy: SwingUp
    optimizer: Any
    iteration: int
    costs: np.ndarray
    """The cost of each iteration so far."""


def run(config: Config) -> dict[str, Any]:
    """Train, print, and write `<results>/<name>/`; returns the content of `summary.json`."""
    check(config)
    folder = config.make_folder()
    with cli.alone_in(folder):
        job = begin_training(folder, config)
        model = pendulum(config)
        first = initial_training(config)
        training = load_checkpoint(folder, job, first)
        began = time.perf_counter()
        cli.announce(f"compiling, and training {config.iterations - training.iteration} iterations")
        training, compiling = train(folder, job, config, model, training)
        seconds = time.perf_counter() - began - compiling
        cli.announce(f"testing the policy from {config.test_starts} starts")
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
        _job_files.write_npz(folder / "policy.npz", arrays_by_path(training.policy))
        cli.write_json(folder / "summary.json", out)
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
    """Raise `DataError` for settings without a meaning."""
    cli.require_positive_keys(
        config, "torque_limit", "duration", "timestep", "iterations", "batch", "learning_rate", "width"
    )
    cli.require_positive_keys(config, "checkpoint_every", "test_starts")
    if config.duration < config.timestep:
        raise DataError(f"duration {config.duration:g} s is shorter than a step of {config.timestep:g} s")
    if config.test_duration < 1:
        raise DataError(f"test_duration is {config.test_duration:g} s, but its last second is judged: take more")
    require_seed(config.seed)


def pendulum(config: Config) -> Model:
    """Return the sample pendulum with a motor, in single precision."""
    model = jaxdyn.samples.pendulum()
    return eqx.tree_at(lambda m: m.effort_limit, model, jnp.array([config.torque_limit])).astype(jnp.float32)


def initial_training(config: Config) -> Training:
    """Return the state before the first iteration."""
    network = eqx.nn.MLP(3, 1, config.width, 2, dtype=jnp.float32, key=jax.random.key(config.seed))
    policy = SwingUp(network, config.torque_limit)
    return Training(policy, optimizer(config).init(eqx.filter(policy, eqx.is_array)), 0, np.zeros(0, np.float32))


def optimizer(config: Config) -> optax.GradientTransformation:
    """Return Adam with a clipped gradient and a rate that falls along a cosine."""
    rate = optax.cosine_decay_schedule(config.learning_rate, config.iterations, alpha=0.05)
    # Far from upright the roll-out is sensitive, and some gradients are a hundred times larger than most.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


def actuate(policy: SwingUp, model: Model) -> ActuatedPolicy:
    """Return the policy behind the motor's limit, which is smooth so that a saturated motor has a gradient, too."""
    return Actuation(EffortLimits(model.effort_limit, kind="tanh")).driven_by(policy)


def starts(key: jax.Array, n: int, speed: float) -> State:
    """Draw `n` states with any angle and speeds up to `speed`, rad/s."""
    angles, speeds = jax.random.split(key)
    q = jax.random.uniform(angles, (n, 1), jnp.float32, -math.pi, math.pi)
    return State(q, jax.random.uniform(speeds, (n, 1), jnp.float32, -speed, speed))


def cost(config: Config, motion: Trajectory) -> jax.Array:
    """Return the mean over time and roll-outs of `1 + cos q`, 0 upright and 2 hanging, plus the weighted squares."""
    assert motion.tau is not None
    off = 1 + jnp.cos(motion.q[:, 1:]) + config.velocity_weight * motion.v[:, 1:] ** 2
    return jnp.mean(off) + config.torque_weight * jnp.mean(motion.tau**2)


@functools.cache
def trainer(config: Config) -> Callable[..., Any]:
    """Return the compiled training step: from a model, a policy, an optimizer's state and the numbers of iterations to
    the policy, the optimizer's state and the costs `[iterations]` after them."""
    steps = round(config.duration / config.timestep)

    def batch_cost(policy: SwingUp, model: Model, key: jax.Array) -> jax.Array:
        start = starts(key, config.batch, config.start_speed)
        nearly_hanging = jnp.arange(config.batch)[:, None] < config.batch // 8
        start = jax.tree.map(lambda x: jnp.where(nearly_hanging, 0.05 * x, x), start)
        motor = actuate(policy, model)
        motion = rollout(model, start, motor, config.timestep, steps=steps, policy_state=motor.init(start))
        return cost(config, motion)

    @eqx.filter_jit
    def train_block(model: Model, policy: SwingUp, state: Any, iterations: jax.Array):
        arrays, static = eqx.partition(policy, eqx.is_array)

        def iterate(carry, iteration):
            arrays, state = carry
            # The random numbers depend on the iteration alone, so a training that continues draws the same.
            key = jax.random.fold_in(jax.random.key(config.seed), iteration)
            value, gradient = jax.value_and_grad(lambda x: batch_cost(eqx.combine(x, static), model, key))(arrays)
            updates, state = optimizer(config).update(gradient, state)
            return (optax.apply_updates(arrays, updates), state), value

        (arrays, state), costs = jax.lax.scan(iterate, (arrays, state), iterations)
        return eqx.combine(arrays, static), state, costs

    return train_block


def train(folder: Path, job: str, config: Config, model: Model, training: Training) -> tuple[Training, float]:
    """Train to the end, with a checkpoint after each block. Returns the training and the time of the first block, which
    is mostly compilation, s."""
    train_block = trainer(dataclasses.replace(config, name="", results="", plot=False))
    began, first = time.perf_counter(), 0.0
    bounds = {"total": config.iterations, "initial": training.iteration}
    with cli.ProgressBar(**bounds, unit=" iterations", mininterval=0.1) as bar:
        while training.iteration < config.iterations:
            stop = min(training.iteration + config.checkpoint_every, config.iterations)
            numbers = jnp.arange(training.iteration, stop, dtype=jnp.int32)
            policy, state, costs = train_block(model, training.policy, training.optimizer, numbers)
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
            save_checkpoint(folder / "checkpoint.npz", job, training)
    return training, first


def begin_training(folder: Path, config: Config) -> str:
    """Write the manifest, and return its digest, which marks the checkpoints of this training. **Raises** `DataError`
    if another training was begun in the folder."""
    # Keys of the tests and the results do not change the policy.
    free = ("name", "results", "plot", "checkpoint_every", "test_starts", "test_duration")
    manifest = {
        "format": FORMAT,
        "config": {k: v for k, v in dataclasses.asdict(config).items() if k not in free},
        "made_with": {"jax": jax.__version__, "optax": optax.__version__, "platform": jax.default_backend()},
    }
    _job_files.begin(folder / "manifest.json", manifest, "the policy would be a mixture of both")
    return _job_files.digest_of_json(manifest)


def save_checkpoint(path: Path, job: str, training: Training) -> None:
    """Write the state of a training."""
    leaves = arrays_by_path((training.policy, training.optimizer))
    content = {"iteration": np.int64(training.iteration), "costs": training.costs, **leaves}
    _job_files.write_checkpoint(path, content, job)


def load_checkpoint(folder: Path, job: str, first: Training) -> Training:
    """Return the training of the last checkpoint, or `first`. A checkpoint that is damaged is set aside."""

    def restored(content: dict[str, np.ndarray]) -> Training:
        policy, state = with_arrays((first.policy, first.optimizer), content)
        return Training(policy, state, int(content["iteration"]), content["costs"])

    training = _job_files.read_checkpoint(folder / "checkpoint.npz", job, restored)
    if training is None:
        return first
    print(f"continues after iteration {training.iteration}")
    return training


def load_policy(folder: Path) -> tuple[Model, SwingUp]:
    """Load the pendulum and the trained policy from a folder of this experiment. **Raises** `DataError`."""
    config = cli.read_json(folder / "summary.json", lambda x: Config(**x["config"]))
    first = initial_training(config).policy
    return pendulum(config), _job_files.read_npz(folder / "policy.npz", lambda arrays: with_arrays(first, arrays))


def with_arrays(tree: Any, content: dict[str, np.ndarray]) -> Any:
    """Return the pytree with arrays of `arrays_by_path`. **Raises** `KeyError`, `ValueError` if they do not fit."""
    arrays, static = eqx.partition(tree, eqx.is_array)

    def stored(path, x):
        y = content[jax.tree_util.keystr(path).replace("/", "|")]
        if y.shape != x.shape or y.dtype != x.dtype:
            raise ValueError(f"{jax.tree_util.keystr(path)} is {y.dtype}{list(y.shape)}, not {x.dtype}{list(x.shape)}")
        return jnp.asarray(y)

    return eqx.combine(jax.tree_util.tree_map_with_path(stored, arrays), static)


class Test(NamedTuple):
    """Roll-outs of a policy and their success."""

    cost: float
    motion: Trajectory
    """Roll-outs, the first from hanging at rest, the others from random starts."""
    angle: np.ndarray
    """The largest angle from upright in the last second, rad."""
    speed: np.ndarray
    """The largest speed in the last second, rad/s."""

    @property
    def success(self) -> np.ndarray:
        """For each roll-out: whether it ends upright and still."""
        return (self.angle < UPRIGHT_ANGLE) & (self.speed < UPRIGHT_SPEED)

    @property
    def success_rate(self) -> float:
        """The part of the random starts that succeed."""
        return float(self.success[1:].mean())


def evaluate(config: Config, model: Model, policy: SwingUp, exact: bool = False) -> Test:
    """Roll out from hanging at rest and from random starts that training did not use."""
    start = starts(jax.random.fold_in(jax.random.key(config.seed), 2**32 - 1), config.test_starts, config.start_speed)
    start = jax.tree.map(lambda x: jnp.concatenate([jnp.zeros((1, 1), x.dtype), x]), start)
    motor = actuate(policy, model)
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
    """Draw the costs of the training and some roll-outs of the test."""
    plt = cli.pyplot()
    if plt is None:
        return
    t, q, v, tau = (np.asarray(x) for x in (motion.t, motion.q[..., 0], motion.v[..., 0], motion.tau))
    shown = range(min(12, len(q)))
    fig, axes = plt.subplots(2, 2, figsize=(12, 7))
    axes[0, 0].plot(training.costs, lw=0.8)
    axes[0, 0].set(xlabel="iteration", ylabel="cost of the batch", title="training")
    # Full turns on the way do not matter.
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
    cli.save_figure(path, fig)


main = experiment("train_policy", Config, run, DEFAULT_CONFIG, __doc__, x64=False)

if __name__ == "__main__":
    sys.exit(main())
