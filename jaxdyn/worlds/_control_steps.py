"""The time steps of a world under one control, as one function of arrays: its native program has one loop over the
steps, and over the stages of Runge-Kutta steps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import joints
from jaxdyn._errors import ModelError, look_up, require_positive_integer
from jaxdyn.contact import straight_motion
from jaxdyn.model import Topology
from jaxdyn.native import Plain, call, repeated
from jaxdyn.simulate import Advance, State
from jaxdyn.simulate.integrators import RobotOperands, closed
from jaxdyn.solve import SolverReport
from jaxdyn.tree import rows_of, to_leading
from jaxdyn.worlds._contact_search import left_out
from jaxdyn.worlds._equations import activations
from jaxdyn.worlds._states import Given, Solved, completed, given_of, with_batch
from jaxdyn.worlds._steps import SHARES, WEIGHTS, by_name, solved, takes_stages, times
from jaxdyn.worlds._world_velocities import body_velocity, rates_of_rotation_vectors, world_velocity

if TYPE_CHECKING:
    from jaxdyn.worlds._steps import World

READABLE = "q", "v", "sensors", "actuator_torque", "body_wrenches"
"""The quantities that `World.step_and_read` can read."""


class _Stage(NamedTuple):
    """The stage of a Runge-Kutta step that comes next, and the sums of those before."""

    q: Any
    v: Any
    activation: Any
    velocity: Any
    """The velocity at which it is reached from the start of the step, along the axes of the world."""
    sums: tuple[Any, Any, Any]
    """Velocities, accelerations and rates of activations times their weights."""
    first_rate: Any
    """The rate of the activations at the start of the step."""

    @classmethod
    def first(cls, state: State) -> _Stage:
        """Return the first stage of a step from a state."""
        none, rate = jnp.zeros_like(state.v), jnp.zeros_like(state.activation)
        return cls(state.q, state.v, state.activation, none, (none, none, rate), rate)


class _Progress(NamedTuple):
    """The values that one evaluation of the accelerations hands to the next."""

    state: State
    """At the start of the step: `q`, `v`, `activation` and `time`."""
    readings: dict[str, Any]
    error: Any
    iterations: Any
    crowded: Any
    """As in `SolverReport`: the largest, and the sum of all iterations."""
    number: Any
    """The number of evaluations before."""
    stage: _Stage | None

    def axes(self) -> list[int]:
        """Return for each array, in the order of the leaves, the number of axes that are not batch axes."""
        # The leaves of a dictionary stand in the order of its keys.
        names = sorted(self.readings)
        readings = [2 if name == "body_wrenches" else 1 for name in names for _ in jax.tree.leaves(self.readings[name])]
        numbers = jax.tree.leaves((self.error, self.iterations, self.crowded, self.number))
        return [1, 1, 1, 0, *readings, *(0 for _ in numbers), *(1 for _ in jax.tree.leaves(self.stage))]


class _HeldInputs(NamedTuple):
    """The inputs that are the same in all steps."""

    control: Any
    torque: Any
    wrenches: Any
    mocap: Any
    active: Any

    def axes(self) -> list[int]:
        """Return for each array that is there the number of axes that are not batch axes."""
        return [n for n, x in zip((1, 1, 2, 2, 1), self, strict=True) if x is not None]


@dataclasses.dataclass(frozen=True)
class _Leaves:
    """A pytree of arrays without those that have no elements, which native programs do not have."""

    structure: Any
    axes: tuple[int, ...]
    empty: tuple[tuple[int, ...] | None, ...]
    """The shapes of those that have none, without batch axes."""

    @classmethod
    def of(cls, tree: Any) -> tuple[_Leaves, list[Any]]:
        """Return the static part and the arrays of a pytree with a method `axes`."""
        leaves, structure = jax.tree.flatten(tree)
        axes = tree.axes()
        shapes = [x.shape[x.ndim - n :] for x, n in zip(leaves, axes, strict=True)]
        empty = tuple(shape if 0 in shape else None for shape in shapes)
        return cls(structure, tuple(axes), empty), [x for x, e in zip(leaves, empty, strict=True) if e is None]

    @property
    def cores(self) -> tuple[int, ...]:
        """The number of axes of each array that are not batch axes."""
        return tuple(n for n, empty in zip(self.axes, self.empty, strict=True) if empty is None)

    def leaves(self, tree: Any) -> list[Any]:
        """Return the arrays of a pytree of this structure."""
        return [x for x, empty in zip(jax.tree.leaves(tree), self.empty, strict=True) if empty is None]

    def tree(self, operands: Any, dtype: Any) -> Any:
        """Return the pytree with the next of some arrays."""
        leaves = [next(operands) if empty is None else jnp.zeros(empty, dtype) for empty in self.empty]
        return jax.tree.unflatten(self.structure, leaves)


@dataclasses.dataclass(frozen=True)
class _StageEvaluation:
    """An evaluation of the accelerations, with what comes before the next one, as a function of arrays with leading
    batch axes: of the world, of what is held, and of what was handed on."""

    world: RobotOperands
    held: _Leaves
    progress: _Leaves
    at_start: bool
    """Whether readings are those of the first evaluation, instead of the last one."""

    def __call__(self, *operands):
        given, dtype = iter(operands), operands[-1].dtype
        world = self.world.robot(given)
        held, progress = (leaves.tree(given, dtype) for leaves in (self.held, self.progress))
        return self.progress.leaves(_evaluated(world, held, progress, self.at_start))


def control_step(
    world: World,
    state: State,
    control: Any,
    torque: Any = None,
    wrenches: Any = None,
    *,
    substeps: int = 1,
    reads: tuple[str, ...] = (),
    at_start: bool = False,
) -> Advance:
    """Return the state after some time steps in which all else is held, quantities by their names of the last solution
    of the constraints in them, or of the first, and how well all of them were solved."""
    require_positive_integer(substeps, "substeps")
    state, held = completed(world, state), _HeldInputs(control, torque, wrenches, state.mocap, state.active)
    dtype, evaluations = state.q.dtype, substeps * (len(WEIGHTS) if takes_stages(world) else 1)
    held = _HeldInputs(*(None if x is None else jnp.asarray(x, dtype) for x in held))
    moving = dataclasses.replace(state, mocap=None, active=None)
    none = jnp.zeros((), dtype)
    crowded = none if world.parts.constraints.contacts.listed else None
    stage = _Stage.first(moving) if takes_stages(world) else None
    progress = _Progress(moving, no_readings(world, state, reads), none, none, crowded, none, stage)
    if evaluations == 1:
        end = _evaluated(world, held, progress, at_start)
    else:
        progress = jax.tree.map(lambda x: jnp.asarray(x, dtype), progress)
        static, operands = RobotOperands.of(world, world.axes(), dtype, (state, held))
        (of_held, given), (of_progress, carried) = _Leaves.of(held), _Leaves.of(progress)
        evaluation = _StageEvaluation(static, of_held, of_progress, at_start)
        cores = *static.cores, *of_held.cores, *of_progress.cores
        shapes = tuple(x.shape[x.ndim - n :] for x, n in zip(carried, of_progress.cores, strict=True))
        plain = Plain(evaluation, cores, shapes, shared=len(operands))
        everything = repeated(plain, evaluations, len(carried), every=None)
        end = of_progress.tree(iter(call(everything, *operands, *given, *carried)), dtype)
    tolerance = world.options.tolerance_of(dtype)
    report = SolverReport(end.error, end.iterations.astype(jnp.int32), tolerance, crowded=end.crowded)
    after = dataclasses.replace(end.state, mocap=state.mocap, active=state.active)
    return Advance(with_batch(after, after.q.shape[:-1]), end.readings, report)


def advanced(
    world: World, state: State, control: Any, torque: Any, wrenches: Any, sensed: bool, substeps: int
) -> Advance:
    """Return what `AbstractWorld.advance` does."""
    reads = ("sensors",) if sensed else ()
    after = control_step(world, state, control, torque, wrenches, substeps=substeps, reads=reads, at_start=True)
    return after._replace(readings=after.readings["sensors"] if sensed else None)


def no_readings(world: World, state: State, names: tuple[str, ...]) -> dict[str, Any]:
    """Return readings like those of `World.step_and_read`, without batch axes, for a state in which nothing acts.
    **Raises** `UnknownNameError`, and `ModelError` for quantities that steps of the world do not have."""
    sensors, dtype, model = world.parts.sensors, state.q.dtype, world.model
    shapes = {"q": model.nq, "v": model.nv, "actuator_torque": model.nv, "body_wrenches": (len(world.body_names), 6)}
    for name in names:
        look_up(name, READABLE, "quantity of a step")
    beyond = sorted(set(names) - {"q", "v", "sensors"})
    if beyond and not world.parts.as_mujoco:
        raise ModelError(f"steps without MuJoCo's law have no {', '.join(beyond)} to read")
    none = {name: jnp.zeros(n, dtype) for name, n in zip(sensors.names, sensors.sizes, strict=True)}
    return {name: none if name == "sensors" else jnp.zeros(shapes[name], dtype) for name in names}


def _evaluated(world: World, held: _HeldInputs, before: _Progress, at_start: bool) -> _Progress:
    """Return what an evaluation of the accelerations hands on."""
    state = dataclasses.replace(before.state, mocap=held.mocap, active=held.active)
    given = given_of(world, state, held.control, held.torque, held.wrenches)
    names = [name for name in before.readings if name not in ("q", "v")]
    if before.stage is None:
        found, stage = solved(given, "step", *names), None
        after = step_from(given, found)
    else:
        given = given.at(before.stage.q, before.stage.v, before.stage.activation)
        found = solved(given, "rates", *names)
        after, stage = _after_stage(given, before, found)
    readings = {name: _reading(name, given, found) for name in before.readings}
    if at_start:
        first = before.number == 0
        readings = jax.tree.map(lambda new, old: jnp.where(first[..., None], new, old), readings, before.readings)
    crowded = before.crowded
    if crowded is not None:
        crowded = jnp.maximum(crowded, left_out(world.parts.constraints.contacts, found.found))
    error, iterations = jnp.maximum(before.error, found.error), before.iterations + found.iterations
    return _Progress(after, readings, error, iterations, crowded, before.number + 1, stage)


def step_from(given: Given, found: Solved) -> State:
    """Return the state after a time step without stages from one with its solution, which has the `"step"`."""
    (q, v, activation), time = found.results["step"], given.state.time
    return State(q, v, activation, time + given.world.timestep.astype(time.dtype))


def _reading(name: str, given: Given, found: Solved) -> Any:
    if name in ("q", "v"):
        return getattr(given.arguments, name)
    if name == "sensors":
        return by_name(given.world.parts.sensors, found.results["sensors"])
    x = found.results[name]
    return x.reshape(*x.shape[:-1], -1, 6) if name == "body_wrenches" else x


def _after_stage(given: Given, before: _Progress, found: Solved) -> tuple[State, _Stage]:
    """Return the state at the start of the next stage's step, and this stage.

    Steps are of Munthe-Kaas's kind: the stages add up displacements from the start, of positions along the world's
    axes and of rotations as rotation vectors (Munthe-Kaas, Runge-Kutta methods on Lie groups, BIT 1998)."""
    world, start, stage = given.world, before.state, before.stage
    topology, dt = world.model.topology, world.timestep.astype(start.q.dtype)[..., None]
    assert stage is not None
    number = (before.number - len(WEIGHTS) * jnp.floor(before.number / len(WEIGHTS)))[..., None]
    last, weight, share = number == len(WEIGHTS) - 1, WEIGHTS[0], SHARES[0]
    for k in range(1, len(WEIGHTS)):
        weight = jnp.where(number < k, weight, WEIGHTS[k])
        share = jnp.where(number < k, share, (*SHARES, 0.0)[k])
    now = given.arguments
    # One primitive each: otherwise derivatives of a step keep hundreds of numbers of the rotations of free joints.
    slopes = joints.apply_to_rows(_slopes, topology, now.q, now.v, stage.velocity, found.a, dt)
    slopes = *jnp.split(slopes, 2, axis=-1), found.results["rates"]
    sums = tuple(x + weight * slope for x, slope in zip(stage.sums, slopes, strict=True))
    velocity, acceleration, rate = (jnp.where(last, x, share * slope) for x, slope in zip(sums, slopes, strict=True))
    end = joints.apply_to_rows(_stage, topology, start.q, start.v, velocity, acceleration, dt)
    q, v = end[..., : start.q.shape[-1]], end[..., start.q.shape[-1] :]
    if topology.has_loops:
        ended = closed(world.model, State(q, v))
        q, v = jnp.where(last, ended.q, q), jnp.where(last, ended.v, v)
    # What blocks remember is held over the stages, and changes as at the first of them.
    dynamic = np.arange(world.na) < world.parts.actuators.dynamic
    first_rate = jnp.where(number == 0, slopes[2], stage.first_rate)
    rate = jnp.where(dynamic, rate, jnp.where(last, first_rate, 0.0))
    bound, operands = given.bound()
    activation = start.activation + dt * rate
    activation = jnp.where(last, bound.call(activations, operands, start.activation, rate), activation)
    time = start.time + jnp.where(last[..., 0], world.timestep.astype(start.time.dtype), 0.0)
    ends = ((q, start.q), (v, start.v), (activation, start.activation))
    after_q, after_v, after_activation = (jnp.where(last, x, y) for x, y in ends)
    velocity, *sums = (jnp.where(last, 0.0, x) for x in (velocity, *sums))
    stage = _Stage(q, v, activation, velocity, (sums[0], sums[1], sums[2]), first_rate)
    return State(after_q, after_v, after_activation, time), stage


def _stage(topology: Topology, q: Any, v: Any, velocity: Any, acceleration: Any, dt: Any) -> Any:
    """Return the configuration and the velocity in a stage of RK4, rows `[nq + nv, *batch]`, which the time `dt` at a
    velocity and an acceleration along the axes of the world leads to from a start."""
    q0, v0, velocity, acceleration = map(to_leading, (q, v, velocity, acceleration))
    rank, dt = dt.ndim - 1, dt[0]
    straight = times(dt, straight_motion(topology, body_velocity(topology, q0, velocity), dt))
    end = joints.integrate(topology, q, rows_of(straight, rank))
    v = world_velocity(topology, q0, v0) + times(dt, acceleration)
    return jnp.concatenate([end, rows_of(body_velocity(topology, to_leading(end), v), rank)])


def _slopes(topology: Topology, q: Any, v: Any, velocity: Any, acceleration: Any, dt: Any) -> Any:
    """Return the velocity, as the rate of displacements from the start, and the acceleration of a stage, rows
    `[2 nv, *batch]` along the axes of the world; the stage was reached at `velocity`."""
    q, v, velocity, acceleration = map(to_leading, (q, v, velocity, acceleration))
    rank, dt = dt.ndim - 1, dt[0]
    own = rates_of_rotation_vectors(topology, times(dt, velocity), world_velocity(topology, q, v))
    return jnp.concatenate([rows_of(x, rank) for x in (own, world_velocity(topology, q, acceleration))])
