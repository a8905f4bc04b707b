"""The compiled loop of a roll-out."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxdyn import native
from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, ShapeError, require_last_axes
from jaxdyn.algorithms import constraint_error
from jaxdyn.model import Model
from jaxdyn.simulate._checkpointed_scan import scan_in_segments
from jaxdyn.simulate._divergence import Report
from jaxdyn.simulate._native_steps import INTEGRATORS_AT_ONCE, steps_at_once
from jaxdyn.simulate._sharding import Split
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.simulate._systems import AbstractWorld
from jaxdyn.simulate.integrators import advance, differentiated_as
from jaxdyn.solve import SolverReport


class RolloutInputs(NamedTuple):
    """All arrays of a roll-out."""

    model: Model | AbstractWorld
    start: State
    controls: Any
    """`[*batch, steps, nv]`, for a world `[*batch, steps, nu]`, or None with a policy."""
    f_ext: Any
    """`[*batch, steps, nb, 6]`, `[*batch, 1, nb, 6]` for all steps, or None; the wrenches of a world likewise."""
    dt: Any
    """The time for which a control is held, s."""
    memory: Any = None
    """The carry of the policy's first call."""
    functions: Any = None
    """The arrays in the policy, the sensors and the function of wrenches."""
    torques: Any = None
    """For a world, `[*batch, steps, nv]`, `[*batch, 1, nv]` for all steps, or None."""


@dataclasses.dataclass(frozen=True)
class RolloutPlan:
    """The static part of a roll-out: hashable, a key of the compiled program."""

    steps: int
    integrator: str
    substeps: int
    save_every: int
    segment: int | None
    check: bool
    split: Split | None
    functions: Any
    sensed: bool = False
    """Whether the sensors of a world are read."""


def strongly_typed(x):
    """`x` as an array that keeps its dtype in a loop."""
    x = jnp.asarray(x)
    return lax.convert_element_type(x, x.dtype)


def separate_arrays(tree) -> tuple[Any, tuple]:
    """The arrays in a pytree, and its static part, which is hashable."""
    arrays, static = eqx.partition(tree, lambda x: isinstance(x, jax.Array | np.ndarray))
    leaves, structure = jax.tree.flatten(static)
    return arrays, (tuple(leaves), structure)


def _join_arrays(arrays, static: tuple):
    """The inverse of `separate_arrays`."""
    leaves, structure = static
    return eqx.combine(arrays, jax.tree.unflatten(structure, leaves))


@compiled("plan")
def run(inputs: RolloutInputs, plan: RolloutPlan) -> tuple[Trajectory, Report | None]:
    """The trajectory, and with `plan.check` a report of its divergence."""
    split = plan.split

    def simulate(inputs: RolloutInputs):
        return _Simulation(inputs, plan).run()

    if split is None:
        return simulate(inputs)
    trajectory, report = split.of_leading(jax.eval_shape(simulate, inputs))
    specs = eqx.tree_at(lambda x: x.t, trajectory, PartitionSpec()), report
    # The parts are independent: the program of each device is that of a batch of its size, chunks included, and the
    # compiler has nothing to partition.
    in_specs = (shard_specs(split, inputs),)
    return jax.shard_map(simulate, mesh=split.mesh, in_specs=in_specs, out_specs=specs, check_vma=False)(inputs)


def shard_specs(split: Split, inputs: RolloutInputs) -> RolloutInputs:
    return RolloutInputs(
        model=split.of_system(inputs.model),
        start=split.of_leading(inputs.start),
        controls=split.specs(inputs.controls, 2),
        f_ext=split.specs(inputs.f_ext, 3),
        dt=PartitionSpec(),
        memory=split.of_leading(inputs.memory),
        functions=jax.tree.map(lambda _: PartitionSpec(), inputs.functions),
        torques=split.specs(inputs.torques, 2),
    )


class _Loop(NamedTuple):
    """The carry of the loop over steps."""

    state: State
    memory: Any
    report: Report | None


class _Inputs(NamedTuple):
    """The controls, wrenches and torques that act in a step, or in all of them."""

    control: Any
    f_ext: Any
    torque: Any


class _Simulation:
    """A roll-out of one device."""

    def __init__(self, inputs: RolloutInputs, plan: RolloutPlan):
        self.inputs, self.plan = inputs, plan
        self.world = inputs.model if isinstance(inputs.model, AbstractWorld) else None
        self.model = inputs.model.model if isinstance(inputs.model, AbstractWorld) else inputs.model
        self.policy, self.sensors, self.wrenches = _join_arrays(inputs.functions, plan.functions)

    @property
    def width(self) -> int:
        """The number of controls."""
        return self.model.nv if self.world is None else self.world.nu

    def run(self) -> tuple[Trajectory, Report | None]:
        inputs, plan = self.inputs, self.plan
        self.check_functions()
        if self.is_one_function():
            states = _states_at_once(inputs, plan)
            q, v = states.q, states.v
            tau = inputs.controls[..., :: plan.save_every, :]
            tau = jnp.broadcast_to(tau, (*v.shape[:-2], *tau.shape[-2:])).astype(v.dtype)
            t = self.time(jnp.arange(0, plan.steps + 1, plan.save_every))
            states = jax.tree.map(lambda x: jnp.moveaxis(x, -2, 0), states)
            return Trajectory(t, q, v, tau, None, self.readings(states, t), None), None
        return self.by_steps()

    def is_one_function(self) -> bool:
        """Whether all steps are one function of arrays, which may run as one native program."""
        inputs, plan = self.inputs, self.plan
        without = plan.check, inputs.memory is not None, inputs.controls is None
        return (
            native.wanted()
            and self.world is None
            and not any(without)
            and self.wrenches is None
            and plan.steps > 0
            and plan.integrator in INTEGRATORS_AT_ONCE
            and not self.model.topology.has_loops
        )

    def by_steps(self) -> tuple[Trajectory, Report | None]:
        """The trajectory by a loop over steps."""
        inputs, plan, start = self.inputs, self.plan, self.inputs.start
        every, intervals, batch = plan.save_every, plan.steps // plan.save_every, self.inputs.start.q.ndim - 1
        xs = (jnp.arange(plan.steps), *self.rows())
        if every > 1:
            xs = jax.tree.map(lambda x: x.reshape(intervals, every, *x.shape[1:]), xs)
        loop = _Loop(start, inputs.memory, Report.of_start(start) if plan.check else None)
        # Segments are of steps; their ends are at samples where these are close, otherwise within the intervals.
        outer = None if plan.segment is None or plan.segment < every else plan.segment // every
        loop, (states, given, readings, contact) = scan_in_segments(self.interval, loop, xs, intervals, outer)
        states = jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), start, states)
        t = self.time(jnp.arange(0, plan.steps + 1, every))
        readings = self.own_readings(states, given, readings) if plan.sensed else self.readings(states, t)

        def samples_last(tree):
            return jax.tree.map(lambda x: jnp.moveaxis(x, 0, batch), tree)

        q, v, control, contact = samples_last((states.q, states.v, given.control, contact))
        world: dict[str, Any] = {}
        if self.world is not None:
            world = {"activation": samples_last(states.activation), "control": control, "end": loop.state}
        tau, loop_error = control if self.world is None else None, self.loop_error(states.q)
        return Trajectory(t, q, v, tau, loop.memory, readings, contact, loop_error, **world), loop.report

    def rows(self) -> _Inputs:
        """The arrays that have a row for each step, with the axis of the steps first. None stands for a function, and
        for wrenches and torques that are the same in all steps."""
        inputs = self.inputs

        def first(x, axis: int):
            return None if x is None else jnp.moveaxis(x, axis, 0)

        def unless_held(x, axis: int):
            return None if x is None or x.shape[axis] == 1 else first(x, axis)

        return _Inputs(first(inputs.controls, -2), unless_held(inputs.f_ext, -3), unless_held(inputs.torques, -2))

    def time(self, k):
        return k.astype(self.inputs.dt.dtype) * self.inputs.dt

    def acting(self, loop: _Loop, x) -> tuple[Any, _Inputs]:
        """The memory of the policy after it was called, and what acts in a step."""
        inputs, (k, control, f_ext, torque), memory = self.inputs, x, loop.memory
        dtype = inputs.dt.dtype
        if self.policy is not None:
            memory, control = self.policy(memory, loop.state, self.time(k))
            memory = jax.tree.map(strongly_typed, memory)
        control = jnp.broadcast_to(jnp.asarray(control, dtype), (*loop.state.v.shape[:-1], self.width))
        if self.wrenches is not None:
            f_ext = jnp.asarray(self.wrenches(inputs.model, loop.state, self.time(k)), dtype)
        elif f_ext is None and inputs.f_ext is not None:
            f_ext = inputs.f_ext[..., 0, :, :]
        if torque is None and inputs.torques is not None:
            torque = inputs.torques[..., 0, :]
        return memory, _Inputs(control, f_ext, torque)

    def step(self, loop: _Loop, x) -> tuple[_Loop, _Inputs, Any, SolverReport | None]:
        """The loop after a step, what acted in it, the readings at its start, and how its contacts were solved."""
        inputs, plan, k = self.inputs, self.plan, x[0]
        memory, given = self.acting(loop, x)
        readings = contact = None
        if self.world is None:
            scheme = plan.integrator, plan.substeps
            state = advance(self.model, loop.state, given.control, inputs.dt, given.f_ext, *scheme)
        else:
            acting = given.control, given.torque, given.f_ext
            sensed = self.reads_in_steps
            state, readings, contact = self.world.advance(loop.state, *acting, sensed=sensed, substeps=plan.substeps)
        # Zero controls are finite: a world may have none.
        report = None if loop.report is None else loop.report.after(state, given.control, given.f_ext, k, contact)
        return _Loop(state, memory, report), given, readings, contact

    @property
    def reads_in_steps(self) -> bool:
        """Whether steps read the sensors of a world: where not every step begins at a sample, that would be in vain."""
        return self.plan.sensed and self.plan.save_every == 1

    def interval(self, loop: _Loop, xs):
        """The steps from one sample to the next; also returns the sample, what acted in the first step, the readings at
        its start, and how the contacts of all of them were solved."""
        every, segment = self.plan.save_every, self.plan.segment
        if every == 1:
            loop, given, readings, contact = self.step(loop, xs)
            return loop, (loop.state, given, readings, contact)

        def step(carry, x):
            loop, held, before = carry
            j, *x = x
            loop, given, _, contact = self.step(loop, x)
            contact = None if contact is None or before is None else _worst(before, contact)
            held = jax.tree.map(lambda new, old: jnp.where(j == 0, new, old), given, held)
            return (loop, held, contact), None

        first = jax.tree.map(lambda x: x[0], xs)
        held = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: self.acting(loop, first)[1]))
        inner = None if segment is None or segment >= every else segment
        carry = loop, held, None if self.world is None else self.world.no_report(self.inputs.start)
        (loop, given, contact), _ = scan_in_segments(step, carry, (jnp.arange(every), *xs), every, inner)
        return loop, (loop.state, given, None, contact)

    def own_readings(self, states: State, given: _Inputs, readings: Any) -> Any:
        """The readings of a world's sensors at all samples `[*batch, samples, n]`, from those in steps, if there are
        any. The last sample has what acted in the last step."""
        world, intervals = self.world, self.plan.steps // self.plan.save_every
        assert world is not None
        batch = states.q.ndim - 2

        def read(_, x):
            state, given = x
            return None, world.advance(state, given.control, given.torque, given.f_ext, sensed=True).readings

        zero = jnp.zeros((*states.v.shape[1:-1], world.nu), states.v.dtype)
        acted = jax.tree.map(lambda x: x[-1], given) if intervals else _Inputs(zero, None, None)
        last = read(None, (jax.tree.map(lambda x: x[-1], states), acted))[1]
        if readings is None:
            segment = None if self.plan.segment is None else 1
            earlier = jax.tree.map(lambda x: x[:intervals], states), given
            readings = scan_in_segments(read, None, earlier, intervals, segment)[1]
        return jax.tree.map(lambda x, y: jnp.moveaxis(jnp.concatenate([x, y[None]]), 0, batch), readings, last)

    def loop_error(self, q):
        """The largest error of the loops at configurations `[samples, *batch, nq]`, `[*batch, samples]`; None without
        loops."""
        if not self.model.topology.has_loops or not self.model.topology.nc:
            return None
        model, q = lax.stop_gradient((self.model, q))
        errors = lax.scan(lambda _, q: (None, jnp.abs(constraint_error(model, q)).max(axis=-1)), None, q)[1]
        return jnp.moveaxis(errors, 0, -1)

    def readings(self, states: State, t):
        """The sensors' arrays `[*batch, samples, ...]`, or None."""
        if self.sensors is None:
            return None
        batch = states.q.shape[1:-1]

        def read(_, x):
            return None, self.sensors(self.inputs.model, *x)

        def samples_after_batch(x):
            n = len(batch)
            if x.shape[1 : 1 + n] != batch:
                raise ShapeError(
                    f"sensors returned an array of shape {x.shape[1:]}, but it must begin with the batch axes of the "
                    f"state, {list(batch)}"
                )
            return jnp.moveaxis(x, 0, n)

        # A segment of one sample: the reverse pass keeps nothing of a sensor's computation.
        segment = None if self.plan.segment is None else 1
        return jax.tree.map(samples_after_batch, scan_in_segments(read, None, (states, t), len(t), segment)[1])

    def check_functions(self) -> None:
        """**Raises** `ModelError` if a function takes other arguments, and `ShapeError` if the policy or the function
        of wrenches does not return what the loop needs."""
        model, start, dt, first = self.inputs.model, self.inputs.start, self.inputs.dt, self.inputs.memory
        batch, kind = start.q.shape[:-1], "model" if self.world is None else "world"
        for function, what, before in (
            (self.policy, "the policy", "carry"), (self.sensors, "sensors", kind), (self.wrenches, "f_ext", kind)
        ):  # fmt: skip
            if function is not None:
                _require_parameters(function, (before, "state", "t"), what)
        if self.wrenches is not None:
            f_ext = jax.eval_shape(self.wrenches, model, start, dt)
            _require_axes(
                f_ext, (self.model.nb, 6), "the array of f_ext", f"[*batch, nb, 6], nb = {self.model.nb}", batch
            )
        if self.policy is None:
            return
        returned = jax.eval_shape(self.policy, first, start, dt)
        if not isinstance(returned, tuple) or len(returned) != 2:
            word = "tau" if self.world is None else "control"
            raise ShapeError(f"a policy returns the pair (carry, {word}), not {type(returned).__name__}")
        memory, control = returned
        word, size = ("tau", "nv") if self.world is None else ("control", "nu")
        _require_axes(
            control, (self.width,), f"the policy's {word}", f"[*batch, {size}] with {size} = {self.width}", batch
        )
        before, after = (jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", x) for x in (first, memory))
        if before != after:
            raise ShapeError(
                f"the policy returns the carry {after}, but policy_state is {before}: structure, shapes and dtypes "
                "must stay the same"
            )


def _worst(x: SolverReport, y: SolverReport) -> SolverReport:
    """The report of two steps."""
    both = jnp.maximum(x.error, y.error), x.iterations + y.iterations
    out = eqx.tree_at(lambda r: (r.error, r.iterations), x, both)
    if x.crowded is None or y.crowded is None:
        return out
    return eqx.tree_at(lambda r: r.crowded, out, jnp.maximum(x.crowded, y.crowded))


def _states_at_once(inputs: RolloutInputs, plan: RolloutPlan) -> State:
    """The configurations and velocities, `[*batch, samples, ...]`, of a roll-out that is one function. Derivatives are
    those of the loop over steps, with its checkpoints."""

    def by_steps(inputs: RolloutInputs) -> State:
        trajectory, _ = _Simulation(inputs, plan).by_steps()
        return State(trajectory.q, trajectory.v)

    return differentiated_as(by_steps, lambda inputs: _states_of(inputs, plan), inputs)


def _states_of(inputs: RolloutInputs, plan: RolloutPlan) -> State:
    f_ext, fixed, rows = inputs.f_ext, {}, {"tau": inputs.controls}
    if f_ext is not None and f_ext.shape[-3] == 1:
        fixed["f_ext"] = f_ext[..., 0, :, :]
    elif f_ext is not None:
        rows["f_ext"] = f_ext
    start, held, model = inputs.start, plan.substeps, inputs.model
    assert isinstance(model, Model)
    every = plan.save_every * held
    return steps_at_once(model, start, inputs.dt / held, plan.integrator, fixed, rows, every, held)


def _require_parameters(function: Callable, arguments: tuple[str, ...], what: str) -> None:
    """Raise `ModelError` unless a function of the user can be called with these positional arguments."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Some functions that are written in C do not say what they take.
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        call = f"({', '.join(arguments)})"
        raise ModelError(f"{what} is called with {call}, but the function that was given takes {signature}") from None


def _require_axes(x, axes: tuple[int, ...], what: str, meaning: str, batch: tuple[int, ...]) -> None:
    """Raise `ShapeError` unless `x` ends with `axes` and its batch axes broadcast to `batch`."""
    x = jax.eval_shape(jnp.asarray, x)
    require_last_axes(x, axes, what, meaning)
    if jnp.broadcast_shapes(x.shape[: x.ndim - len(axes)], batch) != batch:
        raise ShapeError(f"{what} has shape {x.shape}, but the batch axes are {list(batch)}")
