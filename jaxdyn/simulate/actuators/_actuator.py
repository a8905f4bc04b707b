"""Actuators between a policy and the dynamics: the interface of blocks, chains of blocks, and the policy they make.

A block turns a command into an effort, and may have a memory: `(carry, command, state, t) -> (carry, effort)`. Blocks
are equinox modules whose gains are array leaves: gradients reach them, `jax.vmap` maps over them, and new values do not
recompile. All compute in the precision of the state.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.simulate._state import State


class AbstractActuator(eqx.Module):
    """A block between a command and the joints' torques."""

    @abc.abstractmethod
    def init(self, command: Any, state: State) -> Any:
        """The memory of the block at the start. `command`: arrays or `jax.ShapeDtypeStruct`; only shapes count."""

    @abc.abstractmethod
    def __call__(self, carry: Any, command: Any, state: State, t: Any) -> tuple[Any, Float[Array, "*batch n"]]:
        """The next memory of the block and its output, for a `command` in the `state` at the time `t` (s)."""

    def gains(self, n: int, state: State, *names: str) -> list[jax.Array]:
        """The named fields in the precision of the state. **Raises** `ShapeError` unless each has 1 or `n` numbers."""
        fields = {name: getattr(self, name) for name in names}
        for name, x in fields.items():
            if x.ndim and x.shape[-1] not in (1, n):
                raise ShapeError(
                    f"{name} of {type(self).__name__} has shape {x.shape}, but [] or [..., {n}] is needed: one number, "
                    f"or one for each of the {n} signals or degrees of freedom of the block"
                )
        return [x.astype(state.v.dtype) for x in fields.values()]


class AbstractMemorylessActuator(AbstractActuator):
    """A block whose output depends on the present command and state alone."""

    @abc.abstractmethod
    def apply(self, command: Any, state: State) -> Float[Array, "*batch n"]:
        """The output of the block."""

    def init(self, command: Any, state: State) -> None:
        return None

    def __call__(self, carry: Any, command: Any, state: State, t: Any) -> tuple[Any, Float[Array, "*batch n"]]:
        return carry, self.apply(command, state)


class Actuation(AbstractActuator):
    """Blocks in a row, each of which takes the output of the one before as its command; itself a block.

        actuation = Actuation(
            PositionServo(model, kp=100.0, kd=10.0), FirstOrderLag(0.02, dt), EffortLimits(model.effort_limit)
        )
        policy = actuation.driven_by(commands)
        rollout(model, state, policy, dt, steps=n)

    The order is physical: a limit does not apply to the blocks behind it, so friction and soft limits, which the motor
    does not produce, stand last.

    **Raises** `ModelError` if a block is not an actuator.
    """

    blocks: tuple[AbstractActuator, ...]

    def __init__(self, *blocks: AbstractActuator):
        for i, block in enumerate(blocks):
            if not isinstance(block, AbstractActuator):
                raise ModelError(
                    f"block {i} of the actuation is {type(block).__name__!r}, but an actuator such as PositionServo or "
                    "EffortLimits is needed; commands and policies go into Actuation(...).driven_by(...)"
                )
        self.blocks = blocks

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        facts = {}
        for i, block in enumerate(self.blocks):
            fields = {x.name: getattr(block, x.name) for x in dataclasses.fields(block)}
            known = [
                f"{name} {printing.number(x)}" for name, x in fields.items() if printing.is_concrete(x) and np.size(x)
            ]
            facts[f"{i} {type(block).__name__}"] = ", ".join(known)
        return f"{len(self.blocks)} blocks: " + ", ".join(type(x).__name__ for x in self.blocks), facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table

    def init(self, command: Any, state: State) -> tuple:
        """The memories of the blocks at the start, for commands shaped like `command`. **Raises** `ShapeError` where a
        command or a gain does not fit, before anything is simulated."""
        carries, t = [], jax.ShapeDtypeStruct((), state.v.dtype)
        for block in self.blocks:
            carries.append(block.init(command, state))
            _, command = eqx.filter_eval_shape(block, carries[-1], command, state, t)
        return tuple(carries)

    def __call__(self, carry: tuple, command: Any, state: State, t: Any) -> tuple[tuple, Any]:
        after = []
        for block, memory in zip(self.blocks, carry, strict=True):
            memory, command = block(memory, command, state, t)
            after.append(memory)
        return tuple(after), command

    def driven_by(self, source: Any = None) -> "ActuatedPolicy":
        """The policy, for `rollout` or step by step, in which the blocks follow `source`:

        - commands: an array `[*batch, steps, nu]`, or a pytree of such (`ServoCommand`), one row a step; after the last
          row the last one is held;
        - a policy `(carry, state, t) -> (carry, command)`, such as a neural one;
        - None: no command, so that only passive effects act: zero torque `[*batch, nv]` goes in.
        """
        return ActuatedPolicy(source if callable(source) else _Schedule(source), self)


class ActuatedPolicy(eqx.Module):
    """A policy whose commands pass through an actuation: `(carry, state, t) -> (carry, tau)`.

    Built by `Actuation.driven_by`. Step by step:

        carry = policy.init(state)
        for i in range(n):
            carry, tau = policy(carry, state, i * dt)
            state = step(model, state, tau, dt)
    """

    source: Any
    actuation: Actuation

    def init(self, state: State, source_state: Any = None) -> tuple:
        """The carry at the start: `source_state`, the carry of a source that is a policy, and the memories of the
        blocks. `state` has all batch axes of the roll-out. **Raises** `ShapeError`."""
        state = State(jnp.asarray(state.q), jnp.asarray(state.v))
        if isinstance(self.source, _Schedule):
            source_state = self.source.init()
        t = jax.ShapeDtypeStruct((), state.v.dtype)
        _, command = eqx.filter_eval_shape(self.source, source_state, state, t)
        return source_state, self.actuation.init(command, state)

    def __call__(self, carry: tuple, state: State, t: Any) -> tuple[tuple, Float[Array, "*batch nv"]]:
        if carry is None:
            raise ModelError("the carry is None, but that of an actuation begins with policy.init(state)")
        source_carry, carry = carry
        source_carry, command = self.source(source_carry, state, t)
        carry, tau = self.actuation(carry, command, state, t)
        return (source_carry, carry), tau


class _Schedule(eqx.Module):
    """Commands from an array, one row a step; the carry counts the steps.

    In single precision `round(t / dt)` would be off by a row after some 1e7 steps, and needs the time step."""

    rows: Any

    def __init__(self, rows: Any):
        self.rows = jax.tree.map(float_leaf, rows)
        for x in jax.tree.leaves(self.rows):
            if x.ndim < 2 or not x.shape[-2]:
                raise ShapeError(
                    f"commands have shape {x.shape}, but [..., steps, nu] is needed: one row a step, at least one; "
                    "for a constant command give commands[..., None, :]"
                )

    def init(self) -> Any:
        return None if self.rows is None else jnp.zeros((), jnp.int32)

    def __call__(self, step: Any, state: State, t: Any) -> tuple[Any, Any]:
        if self.rows is None:
            return step, jnp.zeros_like(state.v)
        rows = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, jnp.minimum(step, x.shape[-2] - 1), -2, keepdims=False), self.rows
        )
        return step + 1, rows


def signal(x: Any, n: int | None, block: str, meaning: str, state: State) -> jax.Array:
    """A command in the precision of the state, with a last axis of `n`. **Raises** `ShapeError`."""
    x = jnp.asarray(x)
    if x.ndim < 1 or (n is not None and x.shape[-1] != n):
        raise ShapeError(
            f"the command of {block} has shape {x.shape}, but [..., {'n' if n is None else n}] is needed: {meaning}"
        )
    return x.astype(state.v.dtype)


def require_values(ok: Callable[[np.ndarray], Any], x: Any, name: str, needed: str) -> None:
    """Raise `ModelError` unless all of `x` is `ok`. Under a JAX transformation values are unknown and not checked."""
    if not isinstance(x, Tracer) and not np.all(ok(np.asarray(x))):
        raise ModelError(f"{name} is {np.array2string(np.asarray(x), threshold=8)}, but it must be {needed}")
