"""Many robots of one structure identified at once, each from a recording of its own."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from jaxdyn import _printing as printing
from jaxdyn._errors import (
    DataError,
    ModelError,
    naming_arguments,
    require_positive,
    require_positive_integer,
    require_time_step,
)
from jaxdyn._status import Status
from jaxdyn._types import Array, Float
from jaxdyn.sysid.parameters import Parametrization, leaves
from jaxdyn.sysid.recordings import Recording
from jaxdyn.sysid.rollouts import _descent as descent
from jaxdyn.sysid.rollouts import _shooting as shooting
from jaxdyn.sysid.rollouts._recorded_rollouts import Segments, cut_recordings
from jaxdyn.sysid.rollouts._rollout_fit import noise_of_dofs, shooting_problem
from jaxdyn.sysid.rollouts._rollout_options import RolloutFitOptions
from jaxdyn.sysid.rollouts._shooting import ShootingProblem, ShootingState
from jaxdyn.worlds import World


class FleetFit(NamedTuple):
    """Robots identified together."""

    robot: Any
    """The identified robots, with a leading axis `[robots]`."""
    free: np.ndarray
    """`[robots, P]`"""
    cost: np.ndarray
    """`[robots]`: half of the sums of squares."""
    status: np.ndarray
    """`[robots]` integers of `Status`."""
    iterations: np.ndarray
    """`[robots]`"""

    @property
    def converged(self) -> np.ndarray:
        """`[robots]` of bool."""
        return self.status == Status.CONVERGED

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        cost, iterations = printing.number(self.cost), printing.number(self.iterations)
        facts = {"cost": cost, "iterations": iterations, "free numbers": str(self.free.shape[-1])}
        left = np.flatnonzero(~np.asarray(self.converged))
        return printing.status(self.status), facts | ({"not converged": printing.numbers(left)} if len(left) else {})

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@naming_arguments
def fit_fleet(
    parametrization: Parametrization,
    q: Float[Array | np.ndarray, "robots samples nq"],
    v: Float[Array | np.ndarray, "robots samples nv"],
    tau: Float[Array | np.ndarray, "robots samples n"],
    dt: float,
    *,
    segment: float,
    position_noise: float,
    velocity_noise: float,
    options: RolloutFitOptions | None = None,
    chunk: int = 128,
    report: Callable[[int, int], None] | None = None,
    share: bool = True,
) -> FleetFit:
    """`fit_rollouts` for many robots of one structure at once, by `jax.vmap` over recordings and models.

    Every robot has its own damping and accepts its own steps. One that is done makes room for the next, so those that
    take many steps delay only the last.

    Under `jax.distributed`, the processes share the robots. Every process calls `fit_fleet` with the same arguments,
    fits each `jax.process_count()`-th robot from its `jax.process_index()` on, and returns the fits of all robots,
    gathered when the last process is done. This suits minutes of work: a process that ends early ends the others, too,
    and nothing is kept. Long jobs on many hosts call it with `share=False` for blocks of robots, and write a file for
    each block, as `experiments.identify_fleet` does; the guide "Many hosts" has the commands.

    **Arguments**

    - `parametrization`: one for all, or one for each robot, whose references have a leading axis `[robots]`
      (`equinox.filter_vmap(lambda model: Parametrization(model, ...))(models)`).
    - `q`, `v`, `tau`: measured every `dt` (s). For worlds with actuators, their controls `[robots, samples, nu]` stand
      in the place of `tau`.
    - `chunk`: robots at a time, which bounds the memory of a step.
    - `report`: called after every step with the number of robots that are done (of this process's share) and the
      number of steps.
    - `share`: whether the processes of `jax.distributed` share the robots; False fits all of the given robots in this
      process, whatever others do. With one process it makes no difference.
    - the others as in `fit_rollouts`; `options` without exact matching, `zero_deviation` and `rounds`.

    **Raises** `DataError`, `ModelError`; `DataError` also where processes that share robots have different recordings
    or parametrizations.
    """
    options = options or RolloutFitOptions(max_iterations=50)
    if options.matching == 0 or options.rounds > 1 or options.zero_deviation is not None:
        raise ModelError("fit_fleet has no exact matching, zero_deviation or rounds; use fit_rollouts")
    require_positive_integer(chunk, "chunk")
    require_time_step(dt)
    require_positive(segment, "segment (s)")
    world = parametrization.reference
    drive = "control" if isinstance(world, World) and world.nu else "tau"
    data = {name: np.asarray(x) for name, x in (("q", q), ("v", v), (drive, tau))}
    if any(x.ndim != 3 for x in data.values()) or len({x.shape[:2] for x in data.values()}) > 1:
        shapes = ", ".join(str(x.shape) for x in data.values())
        raise DataError(f"q, v and {drive} have shapes {shapes}; [robots, samples, n] is needed")
    fleet = _fleet(parametrization, data, dt, segment, options)
    noise = {"position_noise": position_noise, "velocity_noise": velocity_noise}
    first = [noise_of_dofs(x, data["v"].shape[-1], name) for name, x in noise.items()]
    processes = jax.process_count() if share else 1
    robots = len(data["q"])
    if processes > 1:
        fleet = _share(fleet, robots, processes)
        robots = len(fleet.segments.q)
    out = _fit(fleet, robots, min(chunk, robots), first, options, report)
    return _gathered(out, len(data["q"]), processes) if processes > 1 else out


def _share(fleet: _Fleet, robots: int, processes: int) -> _Fleet:
    """Return the robots of this process. The shares are equally long: some repeat the last robot."""
    _require_same(fleet)
    length = -(-robots // processes)
    part = fleet.rows(np.minimum(jax.process_index() + processes * np.arange(length), robots - 1))
    return dataclasses.replace(part, segments=jax.tree.map(np.asarray, part.segments))


def _require_same(fleet: _Fleet) -> None:
    """Raise `DataError` unless all processes have the same problems."""
    state = hashlib.sha256()
    for x in jax.tree.leaves(eqx.filter(fleet, eqx.is_array)):
        state.update(f"{x.dtype} {x.shape};".encode() + np.asarray(x).tobytes())
    digests = multihost_utils.process_allgather(np.frombuffer(state.digest(), np.uint8))
    if (digests != digests[0]).any():
        raise DataError(
            "the processes were given different recordings, parametrizations or options; give all of them those of the "
            "whole fleet, or share=False to fit robots of its own in each"
        )


def _gathered(out: FleetFit, robots: int, processes: int) -> FleetFit:
    """Return the fits of all processes, in the order of the robots."""

    def gather(x: Any) -> np.ndarray:
        x = np.ascontiguousarray(x)
        if not x.size:
            return np.zeros((robots, *x.shape[1:]), x.dtype)
        # Bytes, since numbers would be rounded without JAX's double precision.
        raw = multihost_utils.process_allgather(x.view(np.uint8).reshape(len(x), -1))
        rows = np.asarray(raw).swapaxes(0, 1).reshape(len(x) * processes, -1)[:robots]
        return np.ascontiguousarray(rows).view(x.dtype).reshape(robots, *x.shape[1:])

    robot = jax.tree.map(lambda x: jnp.asarray(gather(x)), out.robot)
    return FleetFit(robot, *(gather(x) for x in out[1:]))


def _fit(fleet: _Fleet, robots: int, width: int, first, options: RolloutFitOptions, report) -> FleetFit:
    """Fit the robots of a fleet in this process, `width` at a time."""
    # The last chunk is filled up with repeats, so that one program serves all.
    chunks = [np.minimum(np.arange(begin, begin + width), robots - 1) for begin in range(0, robots, width)]
    parts = [_first(fleet.rows(rows), first) for rows in chunks]
    states = jax.tree.map(lambda *x: np.concatenate(x)[:robots], *parts)
    _run(fleet, states, width, options, report)
    models = [_robots(fleet.rows(rows), _rows(states.free, rows)) for rows in chunks]
    robot = jax.tree.map(lambda *x: jnp.concatenate(x)[:robots], *models)
    status = np.where(states.status == Status.RUNNING, int(Status.OUT_OF_ITERATIONS), states.status)
    return FleetFit(robot, states.free, states.cost, status, states.iteration)


class _Fleet(eqx.Module):
    """The problems of some robots."""

    problem: ShootingProblem
    """The problem of one robot, whose parametrization and segments the others replace."""
    parametrization: Parametrization
    segments: Segments
    """The segments, with a leading axis `[robots]`."""
    batched: bool = eqx.field(static=True)
    """Whether `parametrization` has a leading axis `[robots]`, too."""

    def rows(self, rows: np.ndarray) -> _Fleet:
        parametrization = _rows(self.parametrization, rows) if self.batched else self.parametrization
        return dataclasses.replace(self, parametrization=parametrization, segments=_rows(self.segments, rows))

    def map(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return `function(problem, *operands)` of each robot."""

        def call(parametrization, segments, *operands):
            problem = dataclasses.replace(self.problem, parametrization=parametrization, segments=segments)
            return function(problem, *operands)

        axes = (0 if self.batched else None, 0, *(0 for _ in operands))
        return jax.vmap(call, in_axes=axes)(self.parametrization, self.segments, *operands)


def _fleet(
    parametrization: Parametrization, data: dict[str, np.ndarray], dt: float, segment: float, options: RolloutFitOptions
) -> _Fleet:
    robots, samples = data["q"].shape[:2]
    inertias = leaves.model_of(parametrization.reference).inertial_parameters
    batched = inertias.ndim == 3
    if batched and len(inertias) != robots:
        raise ModelError(
            f"the parametrization has references for {len(inertias)} robots, but there are recordings of {robots}"
        )
    single = jax.tree.map(lambda x: x[0], parametrization) if batched else parametrization
    t = dt * np.arange(samples)
    recordings = [(Recording(t, **{name: x[i] for name, x in data.items()}),) for i in range(robots)]
    link = options.matching is not None
    cuts = [cut_recordings(single.reference, x, segment, options.hold, link=link)[0] for x in recordings]
    problem = shooting_problem(single, cuts[0], dt, options)
    segments = jax.tree.map(lambda *x: np.stack([np.asarray(y) for y in x]), *cuts)
    return _Fleet(problem, parametrization, segments, batched)


def _run(fleet: _Fleet, states: ShootingState, width: int, options: RolloutFitOptions, report) -> None:
    """Step `width` robots at a time, in place, until all are done."""
    waiting = np.flatnonzero(states.status == Status.RUNNING)
    active, waiting = waiting[:width], waiting[width:]
    steps, rows, chosen = 0, active[:0], fleet
    while len(active):
        before, rows = rows, np.resize(active, width)
        if not np.array_equal(before, rows):
            chosen = fleet.rows(rows)
        after = _step(chosen, _rows(states, rows), jnp.asarray(options.tolerance, states.q.dtype))
        steps += 1
        for all_robots, x in zip(jax.tree.leaves(states), jax.tree.leaves(after), strict=True):
            all_robots[active] = np.asarray(x)[: len(active)]
        running = (states.status[active] == Status.RUNNING) & (states.iteration[active] < options.max_iterations)
        more = waiting[: len(active) - int(running.sum())]
        active, waiting = np.concatenate([active[running], more]), waiting[len(more) :]
        if report is not None:
            report(len(states.status) - len(active) - len(waiting), steps)


def _rows(tree: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x[rows]), tree)


@eqx.filter_jit
def _first(fleet: _Fleet, noise) -> ShootingState:
    return fleet.map(lambda problem: shooting.first_state(problem, problem.parametrization.zeros(), *noise))


@eqx.filter_jit
def _step(fleet: _Fleet, states: ShootingState, tolerance) -> ShootingState:
    def step(problem, state):
        return descent.levenberg_marquardt(problem, state, shooting.linearize(problem, state), tolerance)

    return fleet.map(step, states)


@eqx.filter_jit
def _robots(fleet: _Fleet, free) -> Any:
    return fleet.map(lambda problem, free: problem.parametrization.model(free), free)
