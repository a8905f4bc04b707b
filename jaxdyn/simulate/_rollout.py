"""Roll-outs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxdyn._errors import ModelError, ShapeError, require_last_axes
from jaxdyn._types import Array, Float, Velocity
from jaxdyn.model import Model
from jaxdyn.simulate._divergence import Report, checked
from jaxdyn.simulate._segments import scan_in_segments, segment_length
from jaxdyn.simulate._sharding import Split, sharding_of
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.simulate.integrators._step import Integrator, advance, checked_dt, checked_scheme, common_batch, positive

type Policy = Callable[[Any, State, Any], tuple[Any, Any]]
"""Of what it carries, the state and the time (s): what it carries on, and the torques `[*batch, nv]`."""
type Sensors = Callable[[Model, State, Any], Any]
"""Of the model, the state and the time (s): a pytree of arrays with the state's batch axes in front."""


def rollout(
    model: Model,
    state: State,
    controls: Float[Array | np.ndarray, "*batch steps nv"] | Policy,
    dt: float,
    *,
    steps: int | None = None,
    policy_state: Any = None,
    integrator: Integrator = "semi_implicit_euler",
    substeps: int = 1,
    save_every: int = 1,
    sensors: Sensors | None = None,
    checkpoint: Literal["none", "sqrt"] | int = "none",
    check: bool = False,
    sharding: NamedSharding | None = None,
    actuator_damping: Velocity | None = None,
) -> Trajectory:
    """The trajectory from `state` under actuator torques that are held for `dt` (s) each.

    One compiled loop; differentiable, forward and reverse, in the state, the controls or the policy's arrays, and every
    array of the model. New values of any array compile nothing again.

    **Arguments**

    - `state`: `q` `[*batch, nq]`, `v` `[*batch, nv]`. Batch axes of the state, the controls and the model broadcast.
    - `controls`: torques `[*batch, steps, nv]` in N m or N, one row a step; or a policy, a function
      `(carry, state, t) -> (carry, tau)` of the whole batch at once: `state.q` is `[*batch, nq]`, `t` one number (s),
      `tau` `[*batch, nv]` or fewer batch axes. Arrays in a policy that is a pytree (an `equinox.Module`) may change
      without compiling again; a plain function is known by its identity, so define it once.
    - `steps`: their number; needed with a policy.
    - `policy_state`: what the policy first carries: a pytree of arrays, which keep their shapes and dtypes.
    - `integrator`, `substeps`, `actuator_damping`: as in `step`.
    - `save_every`: keeps every so many-th state, and the last; must divide `steps`.
    - `sensors`: a function `(model, state, t) -> pytree`, evaluated at every sample.
    - `checkpoint`: what the reverse pass keeps. `"none"`: what every step needs. `"sqrt"`, or a number of segments: the
      states between segments, from which one segment at a time is computed anew, for about half as much time again.
    - `check`: raise where a state is NaN or infinite, naming the element of the batch and the step after which it first
      was. Under `jit` and other transformations this is an error of JAX at run time, with the same text.
    - `sharding`: how devices share the batch: its spec has an entry for each leading batch axis. Every device rolls out
      its part, nothing is exchanged, and what is returned stays where it is. By default as `state.q` is, if it has a
      `NamedSharding` already (not within `jit`, where that is not known). Policy and sensors then see the device's
      part alone. What the policy carries is split where it begins with all batch axes, and is the same everywhere
      otherwise, as are the arrays in the policy: what belongs to single elements of the batch must be carried.

    **Returns** `steps / save_every + 1` samples, the first of them `state`.

    **Raises** `ShapeError` and `ModelError` while tracing; `DivergenceError` with `check`.
    """
    checked_scheme(integrator, substeps, actuator_damping is not None)
    positive(save_every, "save_every")
    h = checked_dt(dt)
    model = jax.tree.map(jnp.asarray, model)
    q, v = jnp.asarray(state.q), jnp.asarray(state.v)
    require_last_axes(q, (model.nq,), "state.q", f"nq = {model.nq} for this model")
    require_last_axes(v, (model.nv,), "state.v", f"nv = {model.nv} for this model")
    batches = {"state.q": q.shape[:-1], "state.v": v.shape[:-1]}
    dtype = jnp.result_type(model.dtype, q, v)
    policy = None
    if callable(controls):
        policy = controls
        if steps is None:
            raise ModelError("a policy was given, but no steps: say how many")
        steps = positive(steps, "steps")
        rows = None
    else:
        rows = jnp.asarray(controls)
        if rows.ndim < 2:
            raise ShapeError(f"controls have shape {rows.shape}, but [..., steps, nv] is needed: one row a step")
        require_last_axes(rows, (model.nv,), "controls", f"[..., steps, nv] with nv = {model.nv}")
        if steps is not None and steps != rows.shape[-2]:
            raise ShapeError(f"steps is {steps}, but controls have {rows.shape[-2]} rows; leave steps out")
        if policy_state is not None:
            raise ModelError("policy_state was given, but controls are an array: only a policy carries something")
        steps = rows.shape[-2]
        batches["controls"] = rows.shape[:-2]
        dtype = jnp.result_type(dtype, rows)
    if steps % save_every:
        raise ModelError(f"save_every is {save_every}, which does not divide the {steps} steps")
    segment = segment_length(checkpoint, max(steps, 1))
    damping = None if actuator_damping is None else jnp.asarray(actuator_damping)
    if damping is not None:
        require_last_axes(damping, (model.nv,), "actuator_damping", f"nv = {model.nv} for this model")
        batches["actuator_damping"] = damping.shape[:-1]
    batch = common_batch(model, **batches)
    memory = jax.tree.map(_strong, policy_state)
    # A trajectory begins with its start, so dtypes are those of the dynamics from the start.
    start = State(*(jnp.broadcast_to(x, (*batch, x.shape[-1])).astype(dtype) for x in (q, v)))
    cast = lambda x: None if x is None else x.astype(dtype)  # noqa: E731
    if sharding is None:
        sharding = sharding_of(state.q, q.ndim - 1) if q.shape[:-1] == batch else None
    split = None if sharding is None else Split.of(sharding, batch)
    functions, shape_of_functions = _arrays_of((policy, sensors))
    given = _Given(model, start, cast(rows), memory, cast(damping), functions, h.astype(dtype))
    if split is not None:
        given = split.put(given, _specs(split, given))
    plan = _Plan(steps, integrator, substeps, save_every, segment, check, split, shape_of_functions)
    # Compiled by itself, for eager use; inside a user's `jit` it is inlined.
    trajectory, report = _compiled(given, plan)
    return checked(trajectory, report, h) if report is not None else trajectory


class _Given(NamedTuple):
    """All arrays of a roll-out."""

    model: Model
    start: State
    controls: Any
    """`[*batch, steps, nv]`, or None with a policy."""
    memory: Any
    """What the policy carries."""
    damping: Any
    functions: Any
    """The arrays in the policy and the sensors."""
    dt: Any


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What else a roll-out is: hashable, part of what a program is compiled for."""

    steps: int
    integrator: str
    substeps: int
    save_every: int
    segment: int | None
    check: bool
    split: Split | None
    functions: Any


def _strong(x):
    """An array that keeps its dtype in a loop."""
    x = jnp.asarray(x)
    return lax.convert_element_type(x, x.dtype)


def _arrays_of(tree) -> tuple[list, tuple]:
    """The arrays in a pytree, and the rest of it, which is hashable."""
    leaves, structure = jax.tree.flatten(tree)
    is_array = tuple(isinstance(x, jax.Array | np.ndarray) for x in leaves)
    rest = tuple(None if a else x for x, a in zip(leaves, is_array, strict=True))
    return [x for x, a in zip(leaves, is_array, strict=True) if a], (structure, is_array, rest)


def _with_arrays(arrays: list, rest: tuple):
    structure, is_array, others = rest
    given = iter(arrays)
    return jax.tree.unflatten(structure, [next(given) if a else x for a, x in zip(is_array, others, strict=True)])


@functools.partial(jax.jit, static_argnums=1, inline=True)
def _compiled(given: _Given, plan: _Plan):
    split = plan.split
    if split is None:
        return _simulate(given, plan)
    _, sensors = _with_arrays(given.functions, plan.functions)
    batch = PartitionSpec(*split.entries)
    samples = PartitionSpec(*split.entries, None, None)
    sensed = None
    if sensors is not None:
        one = jax.eval_shape(sensors, given.model, given.start, given.dt)
        sensed = split.of_leading(jax.eval_shape(lambda x: jax.tree.map(_with_samples(split.batch, 2), x), one))
    specs: Any = (PartitionSpec(), samples, samples, samples, split.of_leading(given.memory), sensed)
    report = Report(batch, batch) if plan.check else None
    # The parts are independent: the program of each device is the one for a batch of that size, chunks included, and
    # the compiler has nothing to partition.
    return jax.shard_map(
        lambda given: _simulate(given, plan),
        mesh=split.mesh,
        in_specs=(_specs(split, given),),
        out_specs=(Trajectory(*specs), report),
        check_vma=False,
    )(given)


def _with_samples(batch: tuple[int, ...], samples: int):
    return lambda x: jnp.zeros((*batch, samples, *x.shape[len(batch) :]), x.dtype)


def _specs(split: Split, given: _Given) -> _Given:
    return _Given(
        model=split.of_model(given.model),
        start=split.specs(given.start, 1),
        controls=split.specs(given.controls, 2),
        memory=split.of_leading(given.memory),
        damping=split.specs(given.damping, 1),
        functions=split.whole(given.functions),
        dt=PartitionSpec(),
    )


class _Loop(NamedTuple):
    """What a roll-out carries from step to step."""

    state: State
    memory: Any
    report: Report | None


def _simulate(given: _Given, plan: _Plan) -> tuple[Trajectory, Report | None]:
    model, start, dt = given.model, given.start, given.dt
    policy, sensors = _with_arrays(given.functions, plan.functions)
    batch, dtype = start.q.shape[:-1], start.q.dtype
    every, intervals = plan.save_every, plan.steps // plan.save_every
    if policy is not None:
        _check_policy(policy, given)

    def one(loop: _Loop, x) -> tuple[_Loop, Any]:
        k, row = x
        if policy is None:
            memory, tau = loop.memory, row
        else:
            memory, tau = policy(loop.memory, loop.state, k.astype(dtype) * dt)
            memory, tau = jax.tree.map(_strong, memory), jnp.asarray(tau, dtype)
        tau = jnp.broadcast_to(tau, loop.state.v.shape)
        state = advance(model, loop.state, tau, dt, plan.integrator, plan.substeps, given.damping)
        report = None if loop.report is None else loop.report.after(state, tau, k)
        return _Loop(state, memory, report), tau

    # Segments are of steps; they stand between the samples where these are close, and within the intervals otherwise.
    outer = None if plan.segment is None or plan.segment < every else plan.segment // every
    inner = None if plan.segment is None or plan.segment >= every else plan.segment

    def interval(loop: _Loop, xs):
        if every == 1:
            loop, tau = one(loop, xs)
            return loop, (loop.state, tau)

        def within(carry, x):
            loop, held = carry
            j, *x = x
            loop, tau = one(loop, x)
            return (loop, jnp.where(j == 0, tau, held)), None

        first = jnp.zeros_like(loop.state.v)
        (loop, tau), _ = scan_in_segments(within, (loop, first), (jnp.arange(every), *xs), every, inner)
        return loop, (loop.state, tau)

    number = jnp.arange(plan.steps)
    rows = None if given.controls is None else jnp.moveaxis(given.controls, -2, 0)
    xs = (number, rows)
    if every > 1:
        xs = jax.tree.map(lambda x: x.reshape(intervals, every, *x.shape[1:]), xs)
    loop = _Loop(start, given.memory, Report.of_start(start) if plan.check else None)
    loop, (states, tau) = scan_in_segments(interval, loop, xs, intervals, outer)
    states = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, states)
    t = jnp.arange(0, plan.steps + 1, every).astype(dtype) * dt
    sensed = None
    if sensors is not None:

        def sense(_, x):
            return None, sensors(model, *x)

        # A segment of one sample: nothing of how a sensor computes is kept.
        _, sensed = scan_in_segments(sense, None, (states, t), intervals + 1, None if plan.segment is None else 1)
        sensed = jax.tree.map(lambda x: _samples_after_batch(x, batch), sensed)
    q, v, tau = (jnp.moveaxis(x, 0, -2) for x in (states.q, states.v, tau))
    return Trajectory(t, q, v, tau, loop.memory, sensed), loop.report


def _samples_after_batch(x, batch: tuple[int, ...]):
    n = len(batch)
    if x.shape[1 : 1 + n] != batch:
        raise ShapeError(
            f"sensors gave an array of shape {x.shape[1:]} where the state has the batch axes {list(batch)}: these "
            "must come first"
        )
    return jnp.moveaxis(x, 0, n)


def _check_policy(policy: Policy, given: _Given) -> None:
    """**Raises** `ShapeError` where a policy does not give what a loop can carry."""
    v = given.start.v
    out = jax.eval_shape(policy, given.memory, given.start, given.dt)
    if not isinstance(out, tuple) or len(out) != 2:
        raise ShapeError(f"a policy returns the pair (carry, tau), not {type(out).__name__}")
    memory, tau = out
    tau = jax.eval_shape(jnp.asarray, tau)
    require_last_axes(tau, v.shape[-1:], "the policy's tau", f"[*batch, nv] with nv = {v.shape[-1]}")
    if np.broadcast_shapes(tau.shape, v.shape) != v.shape:
        raise ShapeError(f"the policy's tau has shape {tau.shape}, but the batch has {v.shape}")
    shown = [jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", x) for x in (given.memory, memory)]
    if shown[0] != shown[1]:
        raise ShapeError(
            f"the policy carries on {shown[1]}, but was given {shown[0]} (policy_state): structure, shapes and dtypes "
            "must stay"
        )
