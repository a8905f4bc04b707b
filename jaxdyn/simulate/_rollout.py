"""Roll-outs: their arguments, checked and brought to one form."""

import contextlib
import inspect
import math
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxdyn._errors import (
    ModelError,
    ShapeError,
    naming_arguments,
    require_last_axes,
    require_positive_integer,
)
from jaxdyn._types import Array, Float
from jaxdyn._waits import saying
from jaxdyn.algorithms import loop_opening
from jaxdyn.model import Model
from jaxdyn.simulate._checkpointed_scan import segment_length
from jaxdyn.simulate._divergence import raise_divergence, warn_of_divergence
from jaxdyn.simulate._loop import RolloutInputs, RolloutPlan, run, separate_arrays, shard_specs, strongly_typed
from jaxdyn.simulate._sharding import Split, sharding_of
from jaxdyn.simulate._state import State, Trajectory
from jaxdyn.simulate._systems import AbstractWorld
from jaxdyn.simulate.integrators import (
    CLOSED,
    OPEN_START,
    Integrator,
    common_form,
    require_closed,
    require_integrator,
    time_step,
    warn_of_long_step,
)

type Policy = Callable[[Any, State, Any], tuple[Any, Any]]
"""Called as `policy(carry, state, t)` (s); returns the next carry and the torques `[*batch, nv]`."""
type Sensors = Callable[[Model, State, Any], Any]
"""Called as `sensors(model, state, t)`; returns a pytree of arrays that begin with the state's batch axes."""
type WrenchFunction = Callable[[Model, State, Any], Any]
"""Called as `f_ext(model, state, t)`; returns the external wrenches `[*batch, nb, 6]`."""


class RolloutOptions(eqx.Module):
    """The rarer options of `rollout`: samples, memory of the reverse pass, checks, and devices."""

    checkpoint: Literal["none", "sqrt"] | int = eqx.field(static=True, default="none")
    """The states that the reverse pass keeps. `"none"`: those of all steps. `"sqrt"`, or a number of segments: those
    between segments. Then one segment at a time is computed again, which takes about half as much time again."""
    check: bool = eqx.field(static=True, default=False)
    """Whether to raise if a state is NaN or infinite, naming the element of the batch and the step after which it first
    was, or if loops are open at the start. Under `jit` and other transformations this is an error of JAX at run time,
    with the same text."""
    sharding: NamedSharding | None = eqx.field(static=True, default=None)
    """The devices that share the batch; its spec has an entry for each leading batch axis. Every device rolls out its
    part without communication, and the results stay where they are. By default the sharding of `state.q`, if that is a
    `NamedSharding` (inside `jit` it is not known). Where axes of its mesh are explicit, as `jax.make_mesh` makes them
    by default, JAX takes gradients inside `jit` or `jax.set_mesh(mesh)` only. Policies, sensors and functions of
    wrenches then see the device's part alone. Leaves of `policy_state` that begin with all batch axes are split; other
    leaves and the arrays in the policy are the same on every device. So arrays of single elements of the batch must be
    in `policy_state`."""
    save_every: int = eqx.field(static=True, default=1)
    """The number of steps between samples; must divide that of all steps."""


@naming_arguments
def rollout(
    model: Model | AbstractWorld,
    state: State,
    controls: Float[Array | np.ndarray, "*#batch steps nv"] | Policy,
    dt: float | None = None,
    *,
    steps: int | None = None,
    policy_state: Any = None,
    f_ext: Float[Array | np.ndarray, "... nb 6"] | WrenchFunction | None = None,
    integrator: Integrator = "implicit_velocity",
    substeps: int = 1,
    sensors: Sensors | None = None,
    options: RolloutOptions | None = None,
) -> Trajectory:
    """The trajectory from `state` under actuator torques that are held for `dt` (s) each.

    One compiled loop; differentiable, forward and reverse, in the state, the controls or the policy's arrays, the
    wrenches, and every array of the model. New values of any array do not compile again.

    **Arguments**

    - `model`: a world has a time step, an integrator, contacts and sensors of its own: `rollout(world, state, controls,
      ...)` is `World.rollout`.
    - `state`: `q` `[*batch, nq]`, `v` `[*batch, nv]`. Batch axes of all arguments broadcast.
    - `controls`: torques `[*batch, steps, nv]` in N m or N, one row a step; or a policy, a function
      `(carry, state, t) -> (carry, tau)` of the whole batch at once: `state.q` is `[*batch, nq]`, `t` one number (s),
      `tau` `[*batch, nv]` or fewer batch axes. Arrays in a policy that is a pytree (an `equinox.Module`) may change
      without compiling again; a plain function is known by its identity, so define it once.
    - `steps`: the number of steps; needed with a policy.
    - `policy_state`: the carry of the policy's first call: a pytree of arrays, which keep their shapes and dtypes.
    - `f_ext`: external wrenches `[force, moment]` on the bodies in N and N m, in world axes at the origins of the
      bodies: `[nb, 6]` or `[*batch, 1, nb, 6]` for all steps, or `[*batch, steps, nb, 6]`, one row a step; or a
      function `(model, state, t)` that returns `[*batch, nb, 6]` and is evaluated at the start of each step.
    - `integrator`, `substeps`: as in `step`.
    - `sensors`: a function `(model, state, t) -> pytree`, evaluated at every sample.
    - `options`: see `RolloutOptions`.

    **Returns** `steps + 1` samples, the first of them `state`; `RolloutOptions.save_every` has fewer.

    **Raises** `ShapeError` and `ModelError` while tracing, also for a `dt` that is not positive and finite (inside
    `jit`, where it may be unknown, only if it is a Python number), and for a start with open loops, as `step`, inside
    `jit` with `RolloutOptions.check`; `DivergenceError` with `RolloutOptions.check`. **Warns** `DivergenceWarning` of a
    long `dt` as `step` does, and, called outside of transformations on a CPU, of roll-outs that are not finite at their
    end.
    """
    options = RolloutOptions() if options is None else options
    if isinstance(model, AbstractWorld):
        own = {"dt": dt, "f_ext": f_ext}
        _require_world_arguments(own, integrator)
        return roll_out_world(model, state, controls, steps, policy_state, substeps, sensors or False, options=options)
    if dt is None:
        raise ModelError("rollout of a model needs dt, the time (s) for which each row of the controls is held")
    require_integrator(integrator, substeps)
    require_positive_integer(options.save_every, "save_every")
    steps = _number_of_steps(controls, steps, policy_state)
    if steps % options.save_every:
        raise ModelError(f"save_every is {options.save_every}, which does not divide the {steps} steps")
    policy, rows = (controls, None) if callable(controls) else (None, controls)
    function, wrenches = (f_ext, None) if callable(f_ext) else (None, f_ext)
    arrays, static = separate_arrays((policy, sensors, function))
    inputs = _inputs(model, state, rows, wrenches, dt, steps)
    warn_of_long_step(model, dt, integrator, substeps)
    inputs = inputs._replace(memory=jax.tree.map(strongly_typed, policy_state), functions=arrays)
    require_closed(model, inputs.start)
    if options.check and model.topology.has_loops:
        opening = loop_opening(model, inputs.start.q)
        q = eqx.error_if(inputs.start.q, opening > CLOSED, f"state.q has loops that are open, and {OPEN_START}")
        inputs = inputs._replace(start=State(q, inputs.start.v))
    split = _split_of(state, options.sharding, inputs.start.q.shape[:-1])
    if split is not None:
        inputs = split.put(inputs, shard_specs(split, inputs))
    segment = segment_length(options.checkpoint, max(steps, 1))
    plan = RolloutPlan(steps, integrator, substeps, options.save_every, segment, options.check, split, static)
    return _run(inputs, plan)


_LONG = 10**6
"""The steps of all elements of a batch together that a few seconds are needed for; a watch of the time costs 0.1 ms."""


def _run(inputs: RolloutInputs, plan: RolloutPlan) -> Trajectory:
    """Run a roll-out, with a word if that takes long, and say what is wrong with its states."""
    batch = inputs.start.q.shape[:-1]
    long = plan.steps * plan.substeps * math.prod(batch) >= _LONG
    with saying(f"rolling out {plan.steps} steps") if long else contextlib.nullcontext():
        trajectory, report = run(inputs, plan)
        if report is not None:
            return raise_divergence(trajectory, report, inputs.dt)
        # On a CPU this waits for the program.
        warn_of_divergence(trajectory, inputs.dt, plan.save_every)
        return trajectory


_DEFAULT_INTEGRATOR = inspect.signature(rollout).parameters["integrator"].default


def _require_world_arguments(own: dict[str, Any], integrator: str) -> None:
    """Raise `ModelError` for arguments of a roll-out that a world has itself."""
    given = [name for name, x in own.items() if x is not None]
    given += [] if integrator == _DEFAULT_INTEGRATOR else ["integrator"]
    if given:
        instead = {
            "dt": "its time step is world.timestep; `substeps` holds each control for several",
            "f_ext": "give `wrenches` to World.rollout",
            "integrator": "a world has its integrator",
        }
        raise ModelError(f"a roll-out of a world takes no {given[0]}: {instead[given[0]]}")


def roll_out_world(
    world: AbstractWorld,
    state: State,
    controls: Any,
    steps: int | None,
    policy_state: Any,
    substeps: int,
    sensors: Any,
    *,
    torques: Any = None,
    wrenches: Any = None,
    options: RolloutOptions | None = None,
) -> Trajectory:
    """The roll-out of a world: see `World.rollout`."""
    options = RolloutOptions() if options is None else options
    require_positive_integer(substeps, "substeps")
    require_positive_integer(options.save_every, "save_every")
    if controls is None:
        steps = np.shape(torques)[-2] if steps is None and np.ndim(torques) > 1 else steps
        if steps is None:
            raise ModelError("controls are None, but so is steps: give the number of steps")
        require_positive_integer(steps, "steps")
        controls = jnp.zeros((steps, world.nu), world.model.dtype)
    steps = _number_of_steps(controls, steps, policy_state, "nu")
    if steps % options.save_every:
        raise ModelError(f"save_every is {options.save_every}, which does not divide the {steps} steps")
    policy, rows = (controls, None) if callable(controls) else (None, controls)
    read = sensors if callable(sensors) else None
    arrays, static = separate_arrays((policy, read, None))
    inputs = _world_inputs(world, state, {"controls": rows, "torques": torques, "wrenches": wrenches}, steps, substeps)
    inputs = inputs._replace(memory=jax.tree.map(strongly_typed, policy_state), functions=arrays)
    split = _split_of(state, options.sharding, inputs.start.q.shape[:-1])
    if split is not None:
        inputs = split.put(inputs, shard_specs(split, inputs))
    segment = segment_length(options.checkpoint, max(steps, 1))
    scheme = "", substeps, options.save_every, segment, options.check, split
    return _run(inputs, RolloutPlan(steps, *scheme, static, read is None and bool(sensors)))


def _world_inputs(world: AbstractWorld, state: State, rows: dict[str, Any], steps: int, substeps: int) -> RolloutInputs:
    """The arrays of a roll-out of a world in one dtype, the start with all batch axes. **Raises** `ShapeError`."""
    world = jax.tree.map(jnp.asarray, world)
    bodies = len(world.body_names)
    axes = {"controls": (world.nu,), "torques": (world.model.nv,), "wrenches": (bodies, 6)}
    arrays: dict[str, Any] = {}
    for name, x in rows.items():
        if x is None:
            continue
        x = jnp.asarray(x)
        x = x[None] if name == "wrenches" and x.ndim == 2 else x
        some = 1 if name != "controls" and x.ndim > len(axes[name]) and x.shape[-len(axes[name]) - 1] == 1 else steps
        require_last_axes(x, (some, *axes[name]), name, "one row a step, and batch axes may stand in front")
        arrays[name] = x
    start = world.start_of(state, {name: (x, 1 + len(axes[name])) for name, x in arrays.items()})
    controls, torques, wrenches = (
        x.astype(start.v.dtype) if (x := arrays.get(name)) is not None else None for name in axes
    )
    dt = world.timestep.astype(start.v.dtype) * substeps
    if dt.ndim:
        raise ShapeError(f"the world has {dt.shape} time steps; all elements of a batch share one in a roll-out")
    return RolloutInputs(world, start, controls, wrenches, dt, torques=torques)


def _number_of_steps(controls, steps: int | None, policy_state, size: str = "nv") -> int:
    if callable(controls):
        if steps is None:
            raise ModelError("controls are a policy, but steps is None: give the number of steps")
        require_positive_integer(steps, "steps")
        return steps
    shape = np.shape(controls)
    if len(shape) < 2:
        raise ShapeError(f"controls have shape {shape}, but [..., steps, {size}] is needed: one row a step")
    if steps is not None and steps != shape[-2]:
        raise ShapeError(f"steps is {steps}, but controls have {shape[-2]} rows; leave steps out")
    if policy_state is not None:
        raise ModelError("policy_state was given, but controls are an array: only a policy carries something")
    return shape[-2]


def _inputs(model: Model, state: State, controls, f_ext, dt, steps: int) -> RolloutInputs:
    """The arrays of a roll-out in one dtype, the start with all batch axes. **Raises** `ShapeError`."""
    model = jax.tree.map(jnp.asarray, model)
    wrench = (model.nb, 6)
    if f_ext is not None:
        f_ext = jnp.asarray(f_ext)
        require_last_axes(f_ext, wrench, "f_ext", f"[..., steps, nb, 6] or [nb, 6] with nb = {model.nb}")
        f_ext = f_ext[None] if f_ext.ndim == 2 else f_ext
        wrench = (1 if f_ext.shape[-3] == 1 else steps, *wrench)
    inputs = {"controls": (controls, (steps, model.nv)), "f_ext": (f_ext, wrench)}
    start, (controls, f_ext) = common_form(model, state, inputs)
    return RolloutInputs(model, start, controls, f_ext, time_step(dt, start))


def _split_of(state: State, sharding: NamedSharding | None, batch: tuple[int, ...]) -> Split | None:
    """How devices share the batch: by `sharding`, or as `state.q` is shared already."""
    if sharding is None and np.shape(state.q)[:-1] == batch:
        sharding = sharding_of(state.q, len(batch))
    return None if sharding is None else Split.of(sharding, batch)
