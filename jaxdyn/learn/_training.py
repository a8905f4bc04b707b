"""`train`: a training with its folder, checkpoints, log, evaluations and progress."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from jaxdyn._digests import digest_of_arrays
from jaxdyn._errors import ModelError, require_choice, require_kind, require_positive_integer
from jaxdyn.learn._algorithms import AHAC, APG, SHAC, AbstractAlgorithm
from jaxdyn.learn._environment import AbstractEnvironment
from jaxdyn.learn._episodes import Episodes
from jaxdyn.learn._evaluation import evaluate
from jaxdyn.learn._networks import Policy
from jaxdyn.learn._training_files import TrainingFolder
from jaxdyn.learn._training_log import TrainingLog
from jaxdyn.learn._update import TrainingState, initial_state, update

ALGORITHMS: dict[str, type[AbstractAlgorithm]] = {"apg": APG, "shac": SHAC, "ahac": AHAC}
_AXIS = "actors"
_SPLIT = ("environments", "recent", "actor", "returned")
"""The fields of the state whose arrays begin with an axis of environments."""


@dataclasses.dataclass(frozen=True)
class Training:
    """The result of `train`."""

    policy: Policy
    """The mean of the policies of the last updates (`average` of the algorithm), with its normalization of
    observations."""
    best: Policy
    """The policy with the largest mean return of all evaluations. That return is a little too large, because it was
    chosen by it; `judge` and `evaluate` with another key have no part in the choice."""
    records: tuple[dict[str, Any], ...]
    """The evaluations, as in `log.jsonl`: `steps` of the environments and `seconds` so far; `return`, `return_std`,
    `return_min`, `return_max`, `length` and `falls` (a part of 1) of the evaluation; and of the updates since the one
    before means, such as `gradient_norm`, `growth`, `lambda`, `horizon` and `agreement`, the cosine between a gradient
    and the mean of those before, and counts: `skipped` updates, whose gradient was not finite, `episodes`, those that
    the task `ended`, and those that `diverged`."""
    state: TrainingState
    """All that the training would continue from."""


def train(
    env: AbstractEnvironment,
    algorithm: AbstractAlgorithm | str = "shac",
    *,
    steps: int = 2_000_000,
    seed: int = 0,
    folder: str | os.PathLike | None = None,
    resume: bool = False,
    episode_length: int | None = None,
    evaluations: int = 20,
    checkpoint_seconds: float = 20.0,
    devices: Sequence[Any] | None = None,
    progress: bool = True,
) -> Training:
    """Train a policy by gradients through the simulation.

    **Arguments**

    - `algorithm`: a `SHAC`, `AHAC` or `APG` with its settings, or one of `"shac"`, `"ahac"`, `"apg"`.
    - `steps`: those of all environments together, rounded up to whole updates.
    - `seed`: that of all random numbers: networks, starts, exploration and evaluation.
    - `folder`: where checkpoints, `log.jsonl`, `curve.png`, `policy.npz` and `best.npz` are written, or None.
    - `resume`: continue a training that was begun in the folder and ended early, also by a kill. It ends with the same
      policy, to the last bit, as one without interruption on the same devices.
    - `episode_length`: the time limit of episodes, in steps; by default the task's. It is no end of the task: values go
      on beyond it.
    - `evaluations`: how often the policy is evaluated: 64 episodes with starts of their own, without exploration.
    - `checkpoint_seconds`: the time from one checkpoint to the next, s.
    - `devices`: those that share the environments; by default all, also those of other processes under
      `jax.distributed`, where each process calls `train` alike and the first one writes the files.
    - `progress`: whether to show a line of progress on stderr.

    **Raises** `ModelError` for arguments that do not fit; `DataError` for a folder where another training was begun.
    """
    require_kind(env, AbstractEnvironment, "train: `env`")
    chosen = _algorithm(algorithm)
    for name, value in (("steps", steps), ("evaluations", evaluations)):
        require_positive_integer(value, name)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ModelError(f"seed is {seed!r}; an integer in 0 ... {2**32 - 1} is needed")
    run = _Run(
        Episodes(env, episode_length),
        chosen,
        -(-steps // chosen.samples),
        seed,
        evaluations,
        tuple(jax.devices() if devices is None else devices),
    )
    store = None if folder is None else TrainingFolder(Path(folder), run.manifest())
    with contextlib.nullcontext() if store is None or jax.process_index() > 0 else store.held(resume):
        return run.go(store, checkpoint_seconds, progress)


def _algorithm(chosen: AbstractAlgorithm | str) -> AbstractAlgorithm:
    if isinstance(chosen, AbstractAlgorithm):
        return chosen
    require_choice(chosen, tuple(ALGORITHMS), "algorithm")
    return ALGORITHMS[chosen]()


@dataclasses.dataclass
class _Run:
    """A training on some devices, whose update is compiled once."""

    episodes: Episodes
    algorithm: AbstractAlgorithm
    updates: int
    seed: int
    evaluations: int
    devices: tuple[Any, ...]

    def __post_init__(self):
        if self.algorithm.actors % len(self.devices):
            raise ModelError(
                f"{self.algorithm.actors} actors cannot be shared evenly by {len(self.devices)} devices; take a "
                "multiple of their number, or give fewer devices"
            )

    def manifest(self) -> dict[str, Any]:
        """Return all that decides which policy comes out."""
        env = self.episodes.unwrapped
        leaves = jax.tree_util.tree_leaves_with_path(self.episodes.env)
        settings = {f.name: getattr(self.algorithm, f.name) for f in dataclasses.fields(self.algorithm)}
        return {
            "algorithm": {"name": type(self.algorithm).__name__, **settings},
            "updates": self.updates,
            "seed": self.seed,
            "evaluations": self.evaluations,
            "episode_length": self.episodes.length,
            "task": type(env.task).__name__,
            "substeps": env.n_substeps,
            "environment": digest_of_arrays({jax.tree_util.keystr(path): x for path, x in leaves}),
            "devices": f"{len(self.devices)} {self.devices[0].device_kind}",
            "jax": jax.__version__,
        }

    def start(self, key: Any) -> TrainingState:
        """Return the state before the first update."""
        return _compiled(self.devices, _Constant(self.episodes))[0](self.algorithm, key)

    def step(self) -> Callable[[TrainingState], tuple[TrainingState, dict[str, Any]]]:
        """Return the compiled update. Numbers of the algorithm are operands, so other ones need no compilation."""
        compiled, updates = _compiled(self.devices, _Constant(self.episodes))[1], np.float32(self.updates)
        return lambda state: compiled(self.algorithm, updates, state)

    def go(self, store: TrainingFolder | None, checkpoint_seconds: float, progress: bool) -> Training:
        """Train to the end."""
        keys = jax.random.split(jax.random.key(self.seed))
        state, log = self.start(keys[0]), TrainingLog()
        restored = None if store is None else store.restore(state)
        if restored is not None:
            state, log = jax.device_put(restored[0], _placed(self.devices)), TrainingLog(**restored[1])
        policy = _local(state.averaged)
        best = store.best() if store is not None and log.records else policy
        step, samples, done = self.step(), self.algorithm.samples, int(state.updates)
        every = max(1, self.updates // self.evaluations)
        first, saved = time.monotonic() - log.seconds, time.monotonic()
        silent = not progress or jax.process_index() > 0
        shown = {"total": self.updates * samples, "initial": done * samples, "desc": type(self.algorithm).__name__}
        # The log of a job gets a line every few seconds; a terminal draws over the last one.
        shown |= {"unit": " steps", "unit_scale": True, "mininterval": 0.5 if sys.stderr.isatty() else 5.0}
        with tqdm(**shown, disable=silent) as bar:
            while done < self.updates:
                state, numbers = step(state)
                log.add({name: float(x) for name, x in numbers.items()})
                done += 1
                bar.update(samples)
                judged = done % every == 0 or done == self.updates
                if judged:
                    policy = _local(state.averaged)
                    self._evaluate(policy, keys[1], log, done * samples, first)
                    # Later the gradients of a policy that has learned what there is to learn are noise, too.
                    if len(log.records) == 1 or 4 * done <= self.updates:
                        log.warn_of_noise(float(self.algorithm.growth_limit))
                    if log.improved:
                        best = policy
                        if store is not None and jax.process_index() == 0:
                            store.save_best(best)
                    bar.set_postfix_str(f"return {log.records[-1]['return']:.1f}")
                # Processes must agree on when they gather a state, and their clocks do not.
                late = time.monotonic() - saved > checkpoint_seconds and jax.process_count() == 1
                if store is not None and (judged or late):
                    saved = time.monotonic()
                    log.seconds = saved - first
                    self._save(store, state, log)
        if store is not None and jax.process_index() == 0:
            store.finish(policy, log.records)
        log.warn_of_faults()
        return Training(policy, best, tuple(log.records), state)

    def _evaluate(self, policy: Policy, key: Any, log: TrainingLog, steps: int, first: float) -> None:
        found = evaluate(self.episodes.env, policy, key, length=self.episodes.length)
        log.seconds = time.monotonic() - first
        log.evaluated(steps, found.facts())

    def _save(self, store: TrainingFolder, state: TrainingState, log: TrainingLog) -> None:
        """Write a checkpoint and the log; with several processes, the first one does, after all gave their part."""
        if jax.process_count() > 1:
            state = _gathered(state)
        if jax.process_index() == 0:
            store.save(state, dataclasses.asdict(log))
            store.write_log(log.records)


@dataclasses.dataclass(frozen=True, eq=False)
class _Constant:
    """Episodes that are a constant of compiled functions. Two are the same if their environment is the same object."""

    episodes: Episodes

    def __hash__(self) -> int:
        return hash((id(self.episodes.env), self.episodes.length))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant):
            return False
        mine, others = self.episodes, other.episodes
        return mine.env is others.env and mine.length == others.length


# Programs are specialized to the numbers of a world that is a constant. The number of worlds that are kept is small,
# because each keeps its programs.
@functools.lru_cache(maxsize=8)
def _compiled(devices: tuple[Any, ...], constant: _Constant) -> tuple[Callable, Callable]:
    """Return the compiled functions that begin a training on some devices, and that update its state."""
    episodes = constant.episodes

    def training_update(algorithm, updates, state):
        if len(devices) == 1:
            return update(episodes, algorithm, updates, state)

        # Each device has its part of the environments, and all have everything else.
        def part(algorithm, updates, state):
            return update(episodes, algorithm, updates, state, _AXIS)

        whole, shares = PartitionSpec(), _shares(PartitionSpec(), PartitionSpec(_AXIS))
        inside, outside = (whole, whole, shares), (shares, whole)
        split = jax.shard_map(part, mesh=_mesh(devices), in_specs=inside, out_specs=outside, check_vma=False)
        return split(algorithm, updates, state)

    def training_start(algorithm, key):
        return initial_state(episodes, algorithm, key)

    return jax.jit(training_start, out_shardings=_placed(devices)), jax.jit(training_update, donate_argnums=2)


def _mesh(devices: tuple[Any, ...]) -> Mesh:
    return Mesh(np.array(devices), (_AXIS,))


def _placed(devices: tuple[Any, ...]) -> Any:
    """Return the shardings of the fields of a training's state."""
    whole, split = (NamedSharding(_mesh(devices), spec) for spec in (PartitionSpec(), PartitionSpec(_AXIS)))
    return _shares(whole, split)


def _shares(whole: Any, split: Any) -> Any:
    """Return `split` for the fields of a training's state that have an axis of environments, `whole` for the others."""
    names = [field.name for field in dataclasses.fields(TrainingState)]
    return TrainingState(**{name: split if name in _SPLIT else whole for name in names})


def _local(tree: Any) -> Any:
    """Return arrays that every process has whole, as arrays of this process alone."""
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), tree)


def _gathered(state: TrainingState) -> TrainingState:
    """Return the state with the environments of all processes."""

    def gathered(x):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = multihost_utils.process_allgather(jax.random.key_data(x), tiled=True)
            return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(x))
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(gathered, state)
