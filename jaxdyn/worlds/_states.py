"""States of a world, and the arguments of its functions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, broadcast_batches, look_up, require_last_axes
from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import RobotAndParts
from jaxdyn.model import Model, independent_forces, spanning_coordinates, tree_forces
from jaxdyn.simulate import State
from jaxdyn.worlds._bodies import BodyMotion, applied_torque, body_motion, with_mocap_bodies
from jaxdyn.worlds._equalities import with_active
from jaxdyn.worlds._world_velocities import body_velocity, world_velocity

if TYPE_CHECKING:
    from jaxdyn.worlds._world import World

type Controls = Float[Array | np.ndarray, "*#batch nu"]
"""The inputs of the actuators."""
type BodyWrenches = Float[Array | np.ndarray, "*#batch nbody 6"]
"""Forces (N) and moments (N m) on the bodies of the file."""


class Keyframe(NamedTuple):
    """A keyframe of a world's file; or all of them, with an axis in front."""

    q: Any
    v: Any
    activation: Any
    control: Any
    time: Any
    mocap: Any
    """`[nmocap, 7]`"""

    @classmethod
    def none(cls, model: Model, na: int, nu: int) -> Keyframe:
        """Return no keyframes of a world."""
        sizes = (model.nq,), (model.nv,), (na,), (nu,), (), (0, 7)
        return cls(*(float_leaf(np.zeros((0, *size))) for size in sizes))

    def take(self, i: int) -> Keyframe:
        """Return one of all keyframes."""
        return Keyframe(*(jnp.take(x, i, axis=x.ndim - 1 - k) for x, k in zip(self, KEY_AXES, strict=True)))


KEY_AXES = 1, 1, 1, 1, 0, 2
"""The axes of the arrays of a keyframe."""


def keyframes_of(model, m) -> Keyframe:
    """Return all keyframes of an `mjModel`."""
    q = float_leaf(np.array(m.key_qpos))
    v = float_leaf(np.array(m.key_qvel))
    # Keyframes are at rest as a rule, and the first operations of JAX take half a second.
    v = body_velocity(model.topology, q, v) if np.any(m.key_qvel) else v
    poses = [x.reshape(m.nkey, m.nmocap, k) for x, k in ((m.key_mpos, 3), (m.key_mquat, 4))]
    others = (np.array(x) for x in (m.key_act, m.key_ctrl, np.ravel(m.key_time), np.concatenate(poses, axis=2)))
    return Keyframe(q, v, *map(float_leaf, others))


def make_state(world: World, q: Any, v: Any, activation: Any, keyframe: str | None, mocap: Any, active: Any):
    """Return a state of a world: see `World.state`."""
    model, bodies = world.model, world.parts.bodies
    time = jnp.zeros((), model.dtype)
    if keyframe is None:
        given = world.start, jnp.zeros(model.nv, model.dtype), world.parts.actuators.at_rest(model.dtype)
    else:
        key = world.keys.take(look_up(keyframe, world.key_names, "keyframe"))
        given, time = key[:3], key.time
        if mocap is None and bodies.mocap_names:
            mocap = key.mocap
    # Copies, because arrays of `mjData`, for one, change while JAX may still read them.
    q, v, activation = (
        a if x is None else jnp.array(x, model.dtype) for x, a in zip((q, v, activation), given, strict=True)
    )
    mocap, active = (None if x is None else jnp.array(x, model.dtype) for x in (mocap, active))
    state = State(q, v, activation, time, mocap, active)
    return with_batch(state, _batch_of(world, {name: getattr(state, name) for name in _AXES}))


_AXES = {"q": 1, "v": 1, "activation": 1, "time": 0, "mocap": 2, "active": 1}
"""The axes of the arrays of a state that are not batch axes."""


def completed(world: World, state: State) -> State:
    """Return the state with zeros in place of a velocity and a time that it lacks, and activations at rest."""
    dtype = jnp.result_type(world.model.dtype, state.q)
    zeros = {"v": world.model.nv, "time": ()}
    lacking = {name: jnp.zeros(shape, dtype) for name, shape in zeros.items() if getattr(state, name) is None}
    lacking |= {"activation": world.parts.actuators.at_rest(dtype)} if state.activation is None else {}
    return dataclasses.replace(state, **lacking) if lacking else state


def start_of(world: World, state: State, arrays: dict[str, tuple[Any, int]]) -> State:
    """Return the start of a roll-out with all batch axes: see `AbstractWorld.start_of`."""
    state = completed(world, state)
    _batch_of(world, {name: jnp.asarray(x) for name in _AXES if (x := getattr(state, name)) is not None})
    leaves = zip(jax.tree.leaves(world), world.axes(), strict=True)
    batches: dict[str, Any] = {"world": jnp.broadcast_shapes(*(x.shape[: x.ndim - n] for x, n in leaves))}
    batches["state"] = jnp.broadcast_shapes(jnp.shape(state.q)[:-1], jnp.shape(state.v)[:-1])
    batches |= {name: x.shape[: x.ndim - n] for name, (x, n) in arrays.items()}
    dtype = jnp.result_type(world.model.dtype, state.q, state.v)
    return with_batch(jax.tree.map(lambda x: jnp.asarray(x, dtype), state), broadcast_batches(batches))


def with_batch(state: State, batch: tuple[int, ...]) -> State:
    """Return a state whose arrays all have these batch axes."""
    given: dict[str, Any] = {name: getattr(state, name) for name in _AXES}
    for name, x in given.items():
        if x is not None:
            given[name] = jnp.broadcast_to(x, (*batch, *x.shape[x.ndim - _AXES[name] :]))
    return State(**given)


def _batch_of(world: World, given: dict[str, Any]) -> tuple[int, ...]:
    """Return the batch axes of arrays that must have the right shapes, by their names; None is left out."""
    model, bodies = world.model, world.parts.bodies
    wanted = {
        "q": (model.nq,),
        "v": (model.nv,),
        "activation": (world.na,),
        "time": (),
        "mocap": (len(bodies.mocap_names), 7),
        "active": (len(world.parts.constraints.equalities.names),),
        "control": (world.nu,),
        "torque": (model.nv,),
        "wrenches": (len(bodies.names), 6),
    }
    batches = {}
    for name, x in given.items():
        if x is not None:
            shape = wanted[name]
            require_last_axes(x, shape, name, "batch axes may stand in front")
            batches[name] = x.shape[: x.ndim - len(shape)]
    return broadcast_batches(batches)


class Arguments(eqx.Module):
    """The arguments of functions of rows, with all batch axes."""

    q: Array
    v: Array
    control: Array
    activation: Array
    applied: Array
    """The forces on the degrees of freedom from outside."""

    def named(self) -> dict[str, Array]:
        """Return them by name."""
        return {name: getattr(self, name) for name in ("q", "v", "control", "activation", "applied")}


class Solved(NamedTuple):
    """The solution of a state."""

    a: Any
    """`[*batch, nv]`"""
    error: Any
    iterations: Any
    """As in `SolverReport`."""
    results: dict[str, Any]
    """The quantities that were asked for."""
    found: Any = None
    """The contacts that were found, where the world searches for them."""


class Given(NamedTuple):
    """The arguments of a function of a world, with the world as they change it."""

    world: World
    """With mocap bodies and equality constraints as the state has them."""
    state: State
    """Without anything that is missing."""
    arguments: Arguments
    torque: Any
    """The forces on the degrees of freedom that were given, or None."""
    wrenches: Any
    """Rows `[*batch, 6 nbody]`, or None."""

    def bound(self) -> tuple[RobotAndParts, list[Any]]:
        """Return the world for functions of rows."""
        return RobotAndParts.of(self.world.model, self.world.parts, self.arguments.q.dtype, "world", self.arguments)

    def on_tree(self) -> dict[str, Any]:
        """Return the arguments by name, on the tree of all joints, also of those that mimic others."""
        model, named = self.world.model, self.arguments.named()
        for name in ("q", "v"):
            named[name] = spanning_coordinates(model, named[name], velocity=name == "v")
        named["applied"] = tree_forces(model, named["applied"]) if model.topology.mimics else named["applied"]
        return named

    def at(self, q: Any, v: Any, activation: Any) -> Given:
        """Return the same at another state, with the forces from outside held along the axes of the world."""
        topology, torque = self.world.model.topology, self.torque
        if torque is not None:
            torque = body_velocity(topology, q, world_velocity(topology, self.arguments.q, torque))
        return self._with_forces(dataclasses.replace(self.arguments, q=q, v=v, activation=activation), torque)

    def _with_forces(self, arguments: Arguments, torque: Any) -> Given:
        applied = jnp.zeros_like(arguments.v) if torque is None else torque
        if self.wrenches is not None:
            (bound, operands), model = self.bound(), self.world.model
            q = spanning_coordinates(model, arguments.q, velocity=False)
            applied = applied + independent_forces(model, bound.call(applied_torque, operands, q, self.wrenches))
        return self._replace(arguments=dataclasses.replace(arguments, applied=applied))


def given_of(world: World, state: State, control: Any, torque: Any, wrenches: Any) -> Given:
    """Return the arguments of a function of a world with all batch axes. **Raises** `ShapeError`, and `ModelError`
    where mocap bodies cannot be moved."""
    state, model, dtype = completed(world, state), world.model, state.q.dtype
    control = jnp.zeros(world.nu, dtype) if control is None else jnp.asarray(control, dtype)
    # Without a torque there is none to turn, or to differentiate, in the stages of a step.
    torque = None if torque is None else jnp.asarray(torque, dtype)
    wrenches = None if wrenches is None else jnp.asarray(wrenches, dtype)
    batch = _batch_of(
        world,
        {name: getattr(state, name) for name in _AXES if name != "time"}
        | {"control": control, "torque": torque, "wrenches": wrenches},
    )
    rows = (state.q, state.v, control, state.activation, jnp.zeros(model.nv, dtype) if torque is None else torque)
    q, v, control, activation, applied = (jnp.broadcast_to(x.astype(dtype), (*batch, x.shape[-1])) for x in rows)
    if wrenches is not None:
        flat = wrenches.reshape(*wrenches.shape[:-2], -1)
        wrenches = jnp.broadcast_to(flat, (*batch, flat.shape[-1]))
    torque = None if torque is None else applied
    given = Given(as_in(world, state), state, Arguments(q, v, control, activation, applied), torque, wrenches)
    return given if wrenches is None else given._with_forces(given.arguments, torque)


def motion_of_bodies(world: World, state: State) -> BodyMotion:
    """Return the motion of the bodies of a world: see `World.body_motion`."""
    given = given_of(world, state, None, None, None)
    bound, operands = given.bound()
    q = spanning_coordinates(world.model, given.arguments.q, velocity=False)
    v = spanning_coordinates(world.model, given.arguments.v, velocity=True)
    found = bound.call(body_motion, operands, q, v)
    return BodyMotion(*(x.reshape(*x.shape[:-1], -1, *n) for x, n in zip(found, ((3,), (3, 3), (6,)), strict=True)))


def as_in(world: World, state: State) -> World:
    """Return a world with mocap bodies and equality constraints as a state has them."""
    parts = world.parts
    if state.mocap is not None and parts.bodies.mocap_names:
        if parts.bodies.mocap_carries:
            raise ModelError(
                "mocap bodies of this world carry bodies with joints and cannot be moved; connect these by a weld"
            )
        parts = with_mocap_bodies(parts, state.mocap)
    if state.active is not None:
        equalities = with_active(parts.constraints.equalities, state.active)
        parts = eqx.tree_at(lambda x: x.constraints.equalities, parts, equalities)
    return world if parts is world.parts else eqx.tree_at(lambda x: x.parts, world, parts)
