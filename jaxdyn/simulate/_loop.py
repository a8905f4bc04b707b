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
from jaxdyn.contact import Contacts
from jaxdyn.model import Model
from jaxdyn.simulate._checkpointed_scan import scan_in_segments
from jaxdyn.simulate._divergence import Report
from jaxdyn.simulate._native_steps import INTEGRATORS_AT_ONCE, steps_at_once
from jaxdyn.simulate._sharding import Split
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.simulate.integrators import advance, differentiated_as, worst
from jaxdyn.solve import SolverReport


class RolloutInputs(NamedTuple):
    """All arrays of a roll-out."""

    model: Model
    start: State
    controls: Any
    """`[*batch, steps, nv]`, or None with a policy."""
    f_ext: Any
    """`[*batch, steps, nb, 6]`, `[*batch, 1, nb, 6]` for all steps, or None."""
    damping: Any
    dt: Any
    memory: Any = None
    """The carry of the policy's first call."""
    functions: Any = None
    """The arrays in the policy, the sensors and the function of wrenches."""
    contacts: Contacts | None = None


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
        model=split.of_model(inputs.model),
        start=split.specs(inputs.start, 1),
        controls=split.specs(inputs.controls, 2),
        f_ext=split.specs(inputs.f_ext, 3),
        damping=split.specs(inputs.damping, 1),
        dt=PartitionSpec(),
        memory=split.of_leading(inputs.memory),
        functions=jax.tree.map(lambda _: PartitionSpec(), inputs.functions),
        contacts=None if inputs.contacts is None else split.of_contacts(inputs.contacts),
    )


class _Loop(NamedTuple):
    """The carry of the loop over steps."""

    state: State
    memory: Any
    report: Report | None


class _Simulation:
    """A roll-out of one device."""

    def __init__(self, inputs: RolloutInputs, plan: RolloutPlan):
        self.inputs, self.plan = inputs, plan
        self.policy, self.sensors, self.wrenches = _join_arrays(inputs.functions, plan.functions)

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
        without = plan.check, inputs.memory is not None, inputs.contacts is not None, inputs.controls is None
        return (
            native.wanted()
            and not any(without)
            and self.wrenches is None
            and plan.steps > 0
            and plan.integrator in INTEGRATORS_AT_ONCE
            and not inputs.model.topology.has_loops
        )

    def by_steps(self) -> tuple[Trajectory, Report | None]:
        """The trajectory by a loop over steps."""
        inputs, plan, start = self.inputs, self.plan, self.inputs.start
        every, intervals = plan.save_every, plan.steps // plan.save_every
        controls = None if inputs.controls is None else jnp.moveaxis(inputs.controls, -2, 0)
        # The loop does not run over wrenches with one row for all steps.
        f_ext = None if inputs.f_ext is None or inputs.f_ext.shape[-3] == 1 else jnp.moveaxis(inputs.f_ext, -3, 0)
        xs = (jnp.arange(plan.steps), controls, f_ext)
        if every > 1:
            xs = jax.tree.map(lambda x: x.reshape(intervals, every, *x.shape[1:]), xs)
        loop = _Loop(start, inputs.memory, Report.of_start(start) if plan.check else None)
        # Segments are of steps; their ends are at samples where these are close, otherwise within the intervals.
        outer = None if plan.segment is None or plan.segment < every else plan.segment // every
        loop, (states, tau, contact) = scan_in_segments(self.interval, loop, xs, intervals, outer)
        states = jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), start, states)
        t = self.time(jnp.arange(0, plan.steps + 1, every))
        q, v, tau = (jnp.moveaxis(x, 0, -2) for x in (states.q, states.v, tau))
        contact = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), contact)
        readings, loop_error = self.readings(states, t), self.loop_error(states.q)
        return Trajectory(t, q, v, tau, loop.memory, readings, contact, loop_error), loop.report

    def time(self, k):
        return k.astype(self.inputs.dt.dtype) * self.inputs.dt

    def step(self, loop: _Loop, x) -> tuple[_Loop, Any, SolverReport | None]:
        """The loop after a step, the step's torques, and how its contacts were solved."""
        inputs, plan = self.inputs, self.plan
        (k, tau, f_ext), memory, dtype = x, loop.memory, inputs.dt.dtype
        if self.policy is not None:
            memory, tau = self.policy(memory, loop.state, self.time(k))
            memory = jax.tree.map(strongly_typed, memory)
        tau = jnp.broadcast_to(jnp.asarray(tau, dtype), loop.state.v.shape)
        if self.wrenches is not None:
            f_ext = jnp.asarray(self.wrenches(inputs.model, loop.state, self.time(k)), dtype)
        elif f_ext is None and inputs.f_ext is not None:
            f_ext = inputs.f_ext[..., 0, :, :]
        scheme = plan.integrator, plan.substeps, inputs.damping
        state, contact = advance(inputs.model, loop.state, tau, inputs.dt, f_ext, *scheme, inputs.contacts)
        report = None if loop.report is None else loop.report.after(state, tau, f_ext, k, contact)
        return _Loop(state, memory, report), tau, contact

    def interval(self, loop: _Loop, xs):
        """The steps from one sample to the next; also returns the sample, the torques of the first step, and how the
        contacts of all of them were solved."""
        every, segment = self.plan.save_every, self.plan.segment
        if every == 1:
            loop, tau, contact = self.step(loop, xs)
            return loop, (loop.state, tau, contact)

        def step(carry, x):
            loop, held, before = carry
            j, *x = x
            loop, tau, contact = self.step(loop, x)
            contact = None if contact is None or before is None else worst(before, contact)
            return (loop, jnp.where(j == 0, tau, held), contact), None

        carry = loop, jnp.zeros_like(loop.state.v), self.no_contact()
        inner = None if segment is None or segment >= every else segment
        (loop, tau, contact), _ = scan_in_segments(step, carry, (jnp.arange(every), *xs), every, inner)
        return loop, (loop.state, tau, contact)

    def no_contact(self) -> SolverReport | None:
        """The report of no step; None without contacts."""
        contacts, start = self.inputs.contacts, self.inputs.start
        if contacts is None:
            return None
        zero = jnp.zeros(start.v.shape[:-1], start.v.dtype)
        return SolverReport(zero, zero.astype(jnp.int32), contacts.options.tolerance_of(zero.dtype))

    def loop_error(self, q):
        """The largest error of the loops at configurations `[samples, *batch, nq]`, `[*batch, samples]`; None without
        loops."""
        if not self.inputs.model.topology.has_loops or not self.inputs.model.topology.nc:
            return None
        model, q = lax.stop_gradient((self.inputs.model, q))
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
        batch = start.q.shape[:-1]
        for function, what, before in (
            (self.policy, "the policy", "carry"), (self.sensors, "sensors", "model"), (self.wrenches, "f_ext", "model")
        ):  # fmt: skip
            if function is not None:
                _require_parameters(function, (before, "state", "t"), what)
        if self.wrenches is not None:
            f_ext = jax.eval_shape(self.wrenches, model, start, dt)
            _require_axes(f_ext, (model.nb, 6), "the array of f_ext", f"[*batch, nb, 6], nb = {model.nb}", batch)
        if self.policy is None:
            return
        returned = jax.eval_shape(self.policy, first, start, dt)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise ShapeError(f"a policy returns the pair (carry, tau), not {type(returned).__name__}")
        memory, tau = returned
        _require_axes(tau, (model.nv,), "the policy's tau", f"[*batch, nv] with nv = {model.nv}", batch)
        before, after = (jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", x) for x in (first, memory))
        if before != after:
            raise ShapeError(
                f"the policy returns the carry {after}, but policy_state is {before}: structure, shapes and dtypes "
                "must stay the same"
            )


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
    if inputs.damping is not None:
        fixed["damping"] = inputs.damping
    start, held = inputs.start, plan.substeps
    every = plan.save_every * held
    return steps_at_once(inputs.model, start, inputs.dt / held, plan.integrator, fixed, rows, every, held)


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
