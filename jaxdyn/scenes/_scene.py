"""Scenes: what an MJCF file describes, moving as in MuJoCo."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn import joints
from jaxdyn._compile import compiled
from jaxdyn._errors import ShapeError, broadcast_batches, look_up, require_last_axes, warn
from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot, RobotAndParts
from jaxdyn.contact import straight_motion
from jaxdyn.io import LeftOutWarning
from jaxdyn.io.mjcf import compile_mjcf, enum_name, is_disabled, object_name
from jaxdyn.model import Model
from jaxdyn.scenes import _equations as rows
from jaxdyn.scenes import _sensed
from jaxdyn.scenes._actuators import Actuators
from jaxdyn.scenes._constraints import Constraints
from jaxdyn.scenes._free_bodies import free_bodies
from jaxdyn.scenes._newton import Pattern
from jaxdyn.scenes._parts import Part
from jaxdyn.scenes._passive import Passive
from jaxdyn.scenes._refusals import refuse_what_is_not_built
from jaxdyn.scenes._sensors import Sensors, reasons_against_sensors
from jaxdyn.scenes._solver import SceneOptions, Solved, solve
from jaxdyn.scenes._tendons import Tendons
from jaxdyn.scenes._tree_of_file import tree_of
from jaxdyn.scenes._world_velocities import body_velocity, rates_of_rotation_vectors, world_velocity

_ENDLESS = 1e30
"""The bound that stands for infinite ranges, whose products with zero would be NaN."""


class SceneState(eqx.Module):
    """The state of a scene."""

    q: Float[Array, "*batch nq"]
    v: Float[Array, "*batch nv"]
    activation: Float[Array, "*batch na"]
    """The states of actuators with dynamics."""
    time: Float[Array, "*batch"]
    """s"""


class SceneReport(eqx.Module):
    """How well the constraints of a state were solved."""

    error: Float[Array, "*batch"]
    """The relative error of the accelerations before the last step of Newton's method: their distance to the solution,
    to first order, over the larger of the accelerations with and without constraints, in the metric of the mass
    matrix; zero where that step was exact."""
    iterations: Float[Array, "*batch"]
    """The steps of Newton's method."""
    tolerance: float = eqx.field(static=True)

    @property
    def converged(self) -> Any:
        """Whether the error was at most the tolerance; false where it is not a number."""
        return self.error <= self.tolerance


class SceneParts(Part):
    """All that a scene has besides its tree."""

    constraints: Constraints
    tendons: Tendons
    actuators: Actuators
    passive: Passive
    sensors: Sensors
    timestep: Float[Array, "*batch"]
    """s"""
    integrator: str = eqx.field(static=True)
    """`"euler"`, `"implicitfast"` or `"rk4"`."""
    damped: bool = eqx.field(static=True)
    """Whether Euler steps take the damping of joints implicitly."""
    free_bodies: tuple[int, ...] = eqx.field(static=True)
    """The first degrees of freedom of free bodies that carry nothing."""
    pattern: Pattern | None = eqx.field(static=True)


class Scene(eqx.Module):
    """A scene of an MJCF file, with MuJoCo's laws: made by `load_scene`.

    All numbers of the file are arrays, which gradients reach and which may have leading batch axes; new values compile
    nothing again. `q` is MuJoCo's `qpos` number for number; `v` is `qvel`, but for the linear velocity of free joints,
    which stands in body axes here and in world axes there.
    """

    model: Model
    """The tree: placements, inertias, armature, gravity."""
    parts: SceneParts
    """Constraints, tendons, actuators, and passive forces."""
    start: Float[Array, "*batch nq"]
    """The configuration in which the file has the scene (`qpos0`)."""
    keyframes: dict[str, tuple[Any, Any, Any, Any]]
    """For each keyframe `q`, `v`, activations and controls."""
    options: SceneOptions = eqx.field(static=True)

    @property
    def timestep(self):
        """The time step of the file, s."""
        return self.parts.timestep

    @property
    def actuator_names(self) -> tuple[str, ...]:
        """The names of the actuators, in the order of controls."""
        return self.parts.actuators.names

    @property
    def nu(self) -> int:
        """The number of controls."""
        return len(self.parts.actuators.names)

    @property
    def na(self) -> int:
        """The number of activations."""
        return sum(x >= 0 for x in self.parts.actuators.states)

    def state(self, q: Any = None, v: Any = None, activation: Any = None, *, keyframe: str | None = None) -> SceneState:
        """Return a state; what is not given is that of the keyframe, or at rest in the file's configuration.

        **Raises** `ShapeError` where a shape does not fit, `UnknownNameError` for a keyframe.
        """
        return _state(self, q, v, activation, keyframe)

    @compiled()
    def accelerations(self, state: SceneState, control: Any = None, torque: Any = None) -> Float[Array, "*batch nv"]:
        """The accelerations `[*batch, nv]` in a state, rad/s^2 and m/s^2: MuJoCo's `qacc` with the constraints solved
        to the end, but for the axes of free joints, whose velocities are in body axes.

        `control` `[*batch, nu]` are the inputs of the actuators, zero by default; `torque` `[*batch, nv]` are further
        forces on the degrees of freedom (N m, N). Derivatives of every order are those of the equations that the
        accelerations solve. **Raises** `ShapeError` where a shape does not fit.
        """
        arguments = _arguments(self, state, control, torque)
        bound, operands = _bound(self, arguments)
        return bound.call(rows.natural, operands, _solved(self, arguments).a, arguments.v)

    @compiled()
    def rate(self, t: Any, state: SceneState, control: Any = None) -> SceneState:
        """The rate of a state, as a `SceneState`, for solvers of ordinary differential equations: in `diffrax` the term
        is `ODETerm(scene.rate)`, and `args` is the control `[*batch, nu]`.

        The law does not depend on the time `t`. A quaternion follows `q (0, w) / 2`, whose norm a solver changes by its
        error; the scene takes it for its direction. Errors as for `accelerations`.
        """
        arguments = _arguments(self, state, control, None)
        bound, operands = _bound(self, arguments)
        turned = joints.apply_to_rows(joints.coordinate_rate, self.model.topology, arguments.q, arguments.v)
        activation = bound.call(rows.rates, operands, **arguments.named())
        a = self.accelerations(state, control)
        return SceneState(turned, a, activation, jnp.ones_like(state.time))

    @compiled()
    def step(self, state: SceneState, control: Any = None, torque: Any = None) -> SceneState:
        """The state after one time step, as `mj_step` with the file's integrator; control and torque are held.

        Arguments and errors as for `accelerations`.
        """
        return _stepped(self, state, control, torque)

    @compiled()
    def rollout(self, state: SceneState, controls: Any, torques: Any = None) -> SceneState:
        """The states `[*batch, steps + 1, ...]` at the start and after each step.

        `controls` `[*batch, steps, nu]` and `torques` `[*batch, steps, nv]`, zero by default, are held in each step.
        Errors as for `accelerations`.
        """
        return _rolled_out(self, state, controls, torques)

    @compiled()
    def sensors(
        self, state: SceneState, control: Any = None, torque: Any = None
    ) -> dict[str, Float[Array, "*batch n"]]:
        """The values of the file's sensors by their names, `[*batch, n]` each: MuJoCo's `sensordata`. Arguments and
        errors as for `accelerations`."""
        arguments = _arguments(self, state, control, torque)
        bound, operands = _bound(self, arguments)
        time = jnp.broadcast_to(state.time, arguments.q.shape[:-1])[..., None]
        solved = _solved(self, arguments).a
        values = bound.call(_sensed.sensor_rows, operands, solved, time, **arguments.named())
        sensors = self.parts.sensors
        ends = np.cumsum(sensors.sizes)
        return {
            name: values[..., end - n : end] for name, n, end in zip(sensors.names, sensors.sizes, ends, strict=True)
        }

    @compiled()
    def report(self, state: SceneState, control: Any = None, torque: Any = None) -> SceneReport:
        """How well the constraints are solved in a state. Arguments and errors as for `accelerations`."""
        arguments = _arguments(self, state, control, torque)
        solved = _solved(self, arguments)
        return SceneReport(solved.error, solved.iterations, self.options.tolerance_of(arguments.q.dtype))

    @compiled()
    def constraint_forces(
        self, state: SceneState, control: Any = None, torque: Any = None
    ) -> Float[Array, "*batch nv"]:
        """The forces `[*batch, nv]` of all constraints on the degrees of freedom, N m and N: MuJoCo's
        `qfrc_constraint`, but for the axes of free joints. Arguments and errors as for `accelerations`."""
        arguments = _arguments(self, state, control, torque)
        bound, operands = _bound(self, arguments)
        return bound.call(rows.constraint_torque, operands, _solved(self, arguments).a, **arguments.named())

    def from_qvel(self, q: Any, qvel: Any) -> Float[Array, "*batch nv"]:
        """Return the velocity `v` that is MuJoCo's `qvel` `[*batch, nv]` at the configuration `q` `[*batch, nq]`."""
        return body_velocity(self.model, jnp.asarray(q), jnp.asarray(qvel))

    def to_qvel(self, q: Any, v: Any) -> Float[Array, "*batch nv"]:
        """Return MuJoCo's `qvel` for the velocity `v` `[*batch, nv]` at the configuration `q` `[*batch, nq]`."""
        return world_velocity(self.model, jnp.asarray(q), jnp.asarray(v))

    def astype(self, dtype: Any) -> Self:
        """Return the scene with all numbers in a precision."""
        return jax.tree.map(lambda x: x.astype(dtype) if hasattr(x, "astype") else x, self)


def load_scene(path_or_text: Any, *, options: SceneOptions | None = None) -> Scene:
    """Return the scene that an MJCF file, the text of one, or a compiled `mujoco.MjModel` describes.

    It moves as in MuJoCo: contacts, limits, friction losses and equality constraints are MuJoCo's soft constraints, and
    `step` is the integrator of the file (Euler, implicitfast or RK4) with its time step. `options` say how the
    constraints are solved; MuJoCo's own solver settings have no part here, because they are solved to the end.

    What a file has and scenes do not have is refused by name.

    **Raises** `RobotFileError` for these and for a file that cannot be read; `ModelError` for a model without a moving
    body; `ImportError` without MuJoCo.
    """
    m, source = compile_mjcf(path_or_text)
    refuse_what_is_not_built(m, source)
    model = tree_of(m)
    passive = Passive.of(m)
    integrator = enum_name("mjtIntegrator", m.opt.integrator)
    parts = SceneParts(
        Constraints.of(m),
        Tendons.of(m),
        Actuators.of(m),
        passive,
        _sensors(m, source),
        float_leaf(float(m.opt.timestep)),
        integrator,
        passive.damped and not is_disabled(m, "eulerdamp"),
        free_bodies(m),
        None,
    )
    parts = jax.tree.map(lambda x: jnp.clip(x, -_ENDLESS, _ENDLESS), parts)
    parts = dataclasses.replace(parts, pattern=_pattern_of(model, parts))
    keyframes = {object_name(m, "key", i): _keyframe(model, m, i) for i in range(m.nkey)}
    return Scene(model, parts, float_leaf(np.array(m.qpos0)), keyframes, SceneOptions() if options is None else options)


def _sensors(m, source: str) -> Sensors:
    """Return the sensors that are built, with a warning of the others."""
    against = reasons_against_sensors(m)
    if against:
        lines = "\n".join(f"- {name!r}: {reason}" for name, reason in against.items())
        warn(f"{source}: the scene leaves out sensors that are not built:\n{lines}", LeftOutWarning)
    names = [object_name(m, "sensor", i) for i in range(m.nsensor)]
    return Sensors.of(m, [name for name in names if name not in against], source)


def _keyframe(model: Model, m, i: int) -> tuple:
    q = float_leaf(np.array(m.key_qpos[i]))
    v = body_velocity(model, q, float_leaf(np.array(m.key_qvel[i])))
    return q, v, float_leaf(np.array(m.key_act[i])), float_leaf(np.array(m.key_ctrl[i]))


def _pattern_of(model: Model, parts: SceneParts) -> Pattern:
    """Return the structure of the constraints' rows, which tracing finds."""
    found: list[Pattern] = []

    def look(robot: Robot, scene, q, v, control, activation):
        now = rows.acting(robot, scene, q, v, control, activation, robot.zeros())
        all_rows = rows.rows_at(robot, scene, now)
        found.append(Pattern.of(all_rows.kinds, all_rows.moves, robot.topology.dof_ancestors))
        return all_rows.aref

    na = sum(x >= 0 for x in parts.actuators.states)
    sizes = model.nq, model.nv, len(parts.actuators.names), na
    dtype = model.dtype
    bound, operands = RobotAndParts.of(model, parts, dtype, "load_scene")
    jax.eval_shape(lambda *x: bound.call(look, operands, *x), *(jax.ShapeDtypeStruct((n,), dtype) for n in sizes))
    return found[0]


def _state(scene: Scene, q: Any, v: Any, activation: Any, keyframe: str | None) -> SceneState:
    model = scene.model
    if keyframe is None:
        given = scene.start, jnp.zeros(model.nv, model.dtype), jnp.zeros(scene.na, model.dtype)
    else:
        given = list(scene.keyframes.values())[look_up(keyframe, scene.keyframes, "keyframe")][:3]
    # Copies, because arrays of `mjData`, for one, change while JAX may still read them.
    q, v, activation = (
        a if x is None else jnp.array(x, model.dtype) for x, a in zip((q, v, activation), given, strict=True)
    )
    batch = broadcast_batches({"q": q.shape[:-1], "v": v.shape[:-1], "activation": activation.shape[:-1]})
    q, v, activation = (jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in (q, v, activation))
    return SceneState(q, v, activation, jnp.zeros(batch, q.dtype))


class _Arguments(eqx.Module):
    """The arguments of functions of rows, with all batch axes."""

    q: Array
    v: Array
    control: Array
    activation: Array
    applied: Array

    def named(self) -> dict[str, Array]:
        """Return them by name."""
        return {
            "q": self.q,
            "v": self.v,
            "control": self.control,
            "activation": self.activation,
            "applied": self.applied,
        }


def _arguments(scene: Scene, state: SceneState, control: Any, torque: Any) -> _Arguments:
    model = scene.model
    dtype = state.q.dtype
    control = jnp.zeros(scene.nu, dtype) if control is None else jnp.asarray(control, dtype)
    torque = jnp.zeros(model.nv, dtype) if torque is None else jnp.asarray(torque, dtype)
    wanted = {
        "state.q": (state.q, model.nq),
        "state.v": (state.v, model.nv),
        "control": (control, scene.nu),
        "state.activation": (state.activation, scene.na),
        "torque": (torque, model.nv),
    }
    for name, (x, n) in wanted.items():
        require_last_axes(x, (n,), name, "batch axes may stand in front")
    batch = broadcast_batches({name: x.shape[:-1] for name, (x, _) in wanted.items()})
    return _Arguments(*(jnp.broadcast_to(x.astype(dtype), (*batch, n)) for x, n in wanted.values()))


def _bound(scene: Scene, arguments: _Arguments) -> tuple[RobotAndParts, list[Any]]:
    return RobotAndParts.of(scene.model, scene.parts, arguments.q.dtype, "scene", arguments)


def _solved(scene: Scene, arguments: _Arguments) -> Solved:
    bound, operands = _bound(scene, arguments)
    return solve(bound, operands, arguments.named(), scene.options)


def _rolled_out(scene: Scene, state: SceneState, controls: Any, torques: Any) -> SceneState:
    controls = jnp.asarray(controls)
    if controls.ndim < 2:
        raise ShapeError(f"controls has shape {controls.shape}; [*batch, steps, {scene.nu}] is needed")
    torques = None if torques is None else jnp.asarray(torques)
    batches = {"state": state.q.shape[:-1], "controls": controls.shape[:-2]}
    batch = broadcast_batches(batches if torques is None else batches | {"torques": torques.shape[:-2]})
    axes = SceneState(1, 1, 1, 0)  # type: ignore[reportArgumentType]
    state = jax.tree.map(lambda x, n: jnp.broadcast_to(x, (*batch, *x.shape[x.ndim - n :])), state, axes)

    def one(state: SceneState, given):
        after = _stepped(scene, state, *given)
        return after, after

    inputs = jax.tree.map(lambda x: jnp.moveaxis(x, -2, 0), (controls, torques))
    _, states = lax.scan(one, state, inputs, length=controls.shape[-2])

    def joined(first, rest):
        return jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, len(batch))

    return jax.tree.map(joined, state, states)


def _stepped(scene: Scene, state: SceneState, control: Any, torque: Any) -> SceneState:
    arguments = _arguments(scene, state, control, torque)
    if scene.parts.integrator == "rk4":
        q, v, activation = _runge_kutta(scene, arguments)
    else:
        bound, operands = _bound(scene, arguments)
        a = _solved(scene, arguments).a
        a, activation = bound.call(rows.step_accelerations, operands, a, **arguments.named())
        after = arguments.v + _times(scene.timestep, a)
        q, v = _moved(scene, arguments.q, after, after)
    time = jnp.broadcast_to(state.time + scene.timestep.astype(state.time.dtype), q.shape[:-1])
    return SceneState(q, v, activation, time)


def _times(dt, x):
    return dt.astype(x.dtype)[..., None] * x


def _moved(scene: Scene, q, rate, after) -> tuple[Any, Any]:
    """Return the configuration after a step at the velocity `rate`, and the velocity `after` in the axes of its end;
    both are given in the axes of the start."""
    model, dt = scene.model, scene.timestep.astype(q.dtype)
    end = model.integrate(q, dt[..., None] * straight_motion(model, rate, dt))
    return end, body_velocity(model, end, world_velocity(model, q, after))


def _runge_kutta(scene: Scene, arguments: _Arguments) -> tuple[Any, Any, Any]:
    """Return the configuration, velocity and activations after a step of RK4, of Munthe-Kaas's kind: the stages add up
    displacements from the start, of positions along the world's axes and of rotations as rotation vectors (Munthe-Kaas,
    Runge-Kutta methods on Lie groups, BIT 1998)."""
    model, q0 = scene.model, arguments.q
    bound, operands = _bound(scene, arguments)
    start = world_velocity(model, q0, arguments.v)

    def reached(velocity, acceleration, rate) -> _Arguments:
        displaced = body_velocity(model, q0, velocity)
        q, _ = _moved(scene, q0, displaced, displaced)
        v = body_velocity(model, q, start + _times(scene.timestep, acceleration))
        activation = arguments.activation + _times(scene.timestep, rate)
        return dataclasses.replace(arguments, q=q, v=v, activation=activation)

    def slopes(at: _Arguments, velocity):
        a = world_velocity(model, at.q, _solved(scene, at).a)
        turned = _times(scene.timestep, velocity)
        own = rates_of_rotation_vectors(model, turned, world_velocity(model, at.q, at.v))
        return own, a, bound.call(rows.rates, operands, **at.named())

    stages = [slopes(arguments, jnp.zeros_like(start))]
    for share in (0.5, 0.5, 1.0):
        velocity, acceleration, rate = (share * x for x in stages[-1])
        stages.append(slopes(reached(velocity, acceleration, rate), velocity))
    weights = 1 / 6, 1 / 3, 1 / 3, 1 / 6
    velocity, acceleration, rate = (
        sum(w * x for w, x in zip(weights, parts, strict=True)) for parts in zip(*stages, strict=True)
    )
    end = reached(velocity, acceleration, rate)
    after = bound.call(rows.activations, operands, arguments.activation, rate)
    return end.q, end.v, after
