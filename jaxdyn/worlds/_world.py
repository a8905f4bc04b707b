"""Worlds: what an MJCF file describes, moving as in MuJoCo."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn import joints
from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, naming_arguments, require_floating, warn
from jaxdyn._types import Array, Configuration, Float, Torque, Velocity, float_leaf
from jaxdyn.algorithms.recursions import Robot, RobotAndParts
from jaxdyn.io import LeftOutWarning
from jaxdyn.io.mjcf import compile_mjcf, enum_name, is_disabled, object_name
from jaxdyn.model import Model
from jaxdyn.simulate import State
from jaxdyn.worlds import _equations as rows
from jaxdyn.worlds._actuators import Actuators
from jaxdyn.worlds._bodies import Bodies
from jaxdyn.worlds._constraints import Constraints
from jaxdyn.worlds._contact_rows import deep_contacts
from jaxdyn.worlds._free_bodies import free_bodies
from jaxdyn.worlds._inertia_constants import with_inertias_of
from jaxdyn.worlds._newton import Pattern, SolverOptions
from jaxdyn.worlds._no_slip import NoSlip
from jaxdyn.worlds._parts import Part
from jaxdyn.worlds._passive import Passive
from jaxdyn.worlds._refusals import refuse_what_is_not_built, warn_of_what_differs
from jaxdyn.worlds._sensors import Sensors, reasons_against_sensors
from jaxdyn.worlds._states import (
    BodyWrenches,
    Controls,
    Keyframe,
    given_of,
    keyframes_of,
    make_state,
)
from jaxdyn.worlds._steps import rolled_out, sensed, solved, stepped
from jaxdyn.worlds._tendons import Tendons
from jaxdyn.worlds._tree_of_file import tree_of
from jaxdyn.worlds._world_velocities import body_velocity, world_velocity

_ENDLESS = 1e30
"""The bound that stands for infinite ranges, whose products with zero would be NaN."""


class SolverReport(eqx.Module):
    """How well the constraints of a state were solved, and what of it is not MuJoCo's."""

    error: Float[Array, "*batch"]
    """The relative error of the accelerations before the last step of Newton's method: their distance to the solution,
    to first order, over the larger of the accelerations with and without constraints, in the metric of the mass
    matrix; zero where that step was exact."""
    iterations: Float[Array, "*batch"]
    """The steps of Newton's method."""
    deep: Float[Array, "*batch"]
    """The number of contacts that overlap so deeply that their places and directions may not be those of MuJoCo, of
    pairs of types for which it has only its general routine: by more than the smallest half size of their ellipsoids,
    cylinders and boxes, or half of it for cylinders with ellipsoids, cylinders and boxes."""
    tolerance: float = eqx.field(static=True)

    @property
    def converged(self) -> Any:
        """Whether the error was at most the tolerance; false where it is not a number."""
        return self.error <= self.tolerance


class WorldParts(Part):
    """All that a world has besides its tree."""

    bodies: Bodies
    constraints: Constraints
    tendons: Tendons
    actuators: Actuators
    passive: Passive
    sensors: Sensors
    timestep: Float[Array, "*batch"]
    """s"""
    integrator: str = eqx.field(static=True)
    """`"euler"`, `"implicitfast"`, `"implicit"` or `"rk4"`."""
    damped: bool = eqx.field(static=True)
    """Whether Euler steps take the damping of joints implicitly."""
    free_bodies: tuple[int, ...] = eqx.field(static=True)
    """The first degrees of freedom of free bodies that carry no joints."""
    pattern: Pattern | None = eqx.field(static=True)
    no_slip: NoSlip | None = None
    """MuJoCo's sweeps against slip, if the file has them."""


class World(eqx.Module):
    """A world of an MJCF file, with MuJoCo's laws: made by `load_world`.

    All numbers of the file are arrays, which gradients reach and which may have leading batch axes; new values compile
    nothing again. `q` is MuJoCo's `qpos` number for number; `v` is `qvel`, but for the linear velocity of free joints,
    which stands in body axes here and in world axes there.
    """

    model: Model
    """The tree: placements, inertias, armature, gravity."""
    parts: WorldParts
    """Constraints, tendons, actuators, and passive forces."""
    start: Float[Array, "*batch nq"]
    """The configuration in which the file has the world (`qpos0`)."""
    keys: Keyframe
    """All keyframes."""
    key_names: tuple[str, ...] = eqx.field(static=True)
    options: SolverOptions = eqx.field(static=True)

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        parts, batch = self.parts, self.start.shape[:-1]
        first = f"{self.model.nb} moving bodies, nq = {self.model.nq}, nv = {self.model.nv}"
        lists = {
            "bodies": self.body_names[1:],
            "actuators": self.actuator_names,
            "equalities": self.equality_names,
            "tendons": parts.tendons.names,
            "sensors": parts.sensors.names,
            "keyframes": tuple(self.keyframes),
        }
        facts = {name: printing.names(words) for name, words in lists.items() if words}
        limits, pairs = parts.constraints.limits, parts.constraints.contacts.pairs
        facts["limits"] = f"of {len(limits.joints) + len(limits.balls)} joints and {len(limits.tendons)} tendons"
        facts["contacts"] = f"{sum(len(x.first) for x in pairs)} pairs of geoms may touch"
        facts["step"] = f"{printing.number(self.timestep, 's')}, {parts.integrator}"
        return first + (f", batch {batch}" if batch else ""), facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table

    @property
    def timestep(self):
        """The time step of the file, s."""
        return self.parts.timestep

    @property
    def keyframes(self) -> dict[str, Keyframe]:
        """The keyframes by their names: `q`, `v`, `activation`, `control`, `time` and `mocap`."""
        return {name: self.keys.take(i) for i, name in enumerate(self.key_names)}

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

    @property
    def body_names(self) -> tuple[str, ...]:
        """The names of MuJoCo's bodies, the world first: the order of `wrenches`."""
        return self.parts.bodies.names

    @property
    def mocap_names(self) -> tuple[str, ...]:
        """The names of the mocap bodies, in the order of `State.mocap`."""
        return self.parts.bodies.mocap_names

    @property
    def equality_names(self) -> tuple[str, ...]:
        """The names of the equality constraints, in the order of `State.active`."""
        return self.parts.constraints.equalities.names

    @naming_arguments
    def state(
        self,
        q: Configuration | None = None,
        v: Velocity | None = None,
        activation: Float[Array | np.ndarray, "*#batch na"] | None = None,
        *,
        keyframe: str | None = None,
        mocap: Float[Array | np.ndarray, "*#batch nmocap 7"] | None = None,
        active: Float[Array | np.ndarray, "*#batch neq"] | None = None,
    ) -> State:
        """Return a state; what is not given is that of the keyframe, or at rest in the file's configuration.

        `mocap` `[*batch, nmocap, 7]` and `active` `[*batch, neq]`, where given, are the poses of mocap bodies and which
        equality constraints act (`State`). **Raises** `ShapeError` where a shape does not fit, `UnknownNameError`
        for a keyframe.
        """
        return make_state(self, q, v, activation, keyframe, mocap, active)

    @compiled()
    def accelerations(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
    ) -> Float[Array, "*batch nv"]:
        """The accelerations `[*batch, nv]` in a state, rad/s^2 and m/s^2: MuJoCo's `qacc` with the constraints solved
        to the end, but for the axes of free joints, whose velocities are in body axes.

        `control` `[*batch, nu]` are the inputs of the actuators; `torque` `[*batch, nv]` are further forces on the
        degrees of freedom (N m, N), MuJoCo's `qfrc_applied` but for the axes of free joints; `wrenches` `[*batch,
        nbody, 6]` are a force (N) and a moment (N m) at the center of mass of each body, along the axes of the world:
        MuJoCo's `xfrc_applied`. All are zero by default. Derivatives of every order are those of the equations that the
        accelerations solve. **Raises** `ShapeError` where a shape does not fit, `ModelError` where a mocap body that
        carries joints is moved.
        """
        given = given_of(self, state, control, torque, wrenches)
        bound, operands = given.bound()
        return bound.call(rows.natural, operands, solved(given).a, given.arguments.v)

    @compiled()
    def rate(self, t: Any, state: State, control: Controls | None = None) -> State:
        """The rate of a state, as a `State`, for solvers of ordinary differential equations: in `diffrax` the term
        is `ODETerm(world.rate)`, and `args` is the control `[*batch, nu]`.

        The law does not depend on the time `t`. A quaternion follows `q (0, w) / 2`, whose norm a solver changes by its
        error; the world takes it for its direction. Errors as for `accelerations`.
        """
        given = given_of(self, state, control, None, None)
        state, arguments = given.state, given.arguments
        bound, operands = given.bound()
        turned = joints.apply_to_rows(joints.coordinate_rate, self.model.topology, arguments.q, arguments.v)
        activation = bound.call(rows.rates, operands, **arguments.named())
        a = self.accelerations(state, control)
        held = (None if x is None else jnp.zeros_like(x) for x in (state.mocap, state.active))
        return State(turned, a, activation, jnp.ones_like(state.time), *held)

    @compiled()
    def step(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
    ) -> State:
        """The state after one time step, as `mj_step` with the file's integrator; what is given is held.

        Arguments and errors as for `accelerations`.
        """
        return stepped(self, state, control, torque, wrenches)

    @compiled()
    def rollout(
        self,
        state: State,
        controls: Float[Array | np.ndarray, "*#batch steps nu"],
        torques: Float[Array | np.ndarray, "*#batch steps nv"] | None = None,
        wrenches: Float[Array | np.ndarray, "*#batch steps nbody 6"] | None = None,
    ) -> State:
        """The states `[*batch, steps + 1, ...]` at the start and after each step.

        `controls` `[*batch, steps, nu]`, and `torques` `[*batch, steps, nv]` and `wrenches` `[*batch, steps, nbody,
        6]`, zero by default, are held in each step. Errors as for `accelerations`.
        """
        return rolled_out(self, state, controls, torques, wrenches)

    @compiled()
    def sensors(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
    ) -> dict[str, Float[Array, "*batch n"]]:
        """The values of the file's sensors by their names, `[*batch, n]` each: MuJoCo's `sensordata`. Arguments and
        errors as for `accelerations`."""
        given = given_of(self, state, control, torque, wrenches)
        values, sensors = sensed(given, solved(given)), self.parts.sensors
        ends = np.cumsum(sensors.sizes)
        return {
            name: values[..., end - n : end] for name, n, end in zip(sensors.names, sensors.sizes, ends, strict=True)
        }

    @compiled()
    def report(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
    ) -> SolverReport:
        """How well the constraints are solved in a state. Arguments and errors as for `accelerations`."""
        given = given_of(self, state, control, torque, wrenches)
        bound, operands = given.bound()
        found = solved(given)
        deep = bound.call(deep_contacts, operands, given.arguments.q)[..., 0]
        tolerance = self.options.tolerance_of(given.arguments.q.dtype)
        return SolverReport(found.error, found.iterations.astype(jnp.int32), deep, tolerance)

    @compiled()
    def constraint_forces(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
    ) -> Float[Array, "*batch nv"]:
        """The forces `[*batch, nv]` of all constraints on the degrees of freedom, N m and N: MuJoCo's
        `qfrc_constraint`, but for the axes of free joints. Arguments and errors as for `accelerations`."""
        given = given_of(self, state, control, torque, wrenches)
        bound, operands = given.bound()
        found = solved(given)
        named = given.arguments.named() | found.given_pushes()
        return bound.call(rows.constraint_torque, operands, found.a, **named)

    @naming_arguments
    def from_qvel(self, q: Configuration, qvel: Velocity) -> Float[Array, "*batch nv"]:
        """Return the velocity `v` that is MuJoCo's `qvel` `[*batch, nv]` at the configuration `q` `[*batch, nq]`."""
        return body_velocity(self.model, jnp.asarray(q), jnp.asarray(qvel))

    @naming_arguments
    def to_qvel(self, q: Configuration, v: Velocity) -> Float[Array, "*batch nv"]:
        """Return MuJoCo's `qvel` for the velocity `v` `[*batch, nv]` at the configuration `q` `[*batch, nq]`."""
        return world_velocity(self.model, jnp.asarray(q), jnp.asarray(v))

    def with_model(self, model: Model) -> Self:
        """Return the world with another model of the same tree: other inertias, armature, placements or gravity.

        The constants that MuJoCo derives from them at the file's configuration, which weigh its soft constraints
        (`invweight0`) and muscles (`actuator_acc0`), and the masses that gravity compensation lifts, change with them.
        The boxes that stand for bodies in a fluid and the masses that sensors read stay those of the file. **Raises**
        `ModelError` for a model of another tree.
        """
        if model.topology != self.model.topology:
            raise ModelError("the model has another tree than the world's; give one that was made from world.model")
        parts = with_inertias_of(self.parts, self.model, model, self.start)
        return dataclasses.replace(self, model=model, parts=parts)

    def astype(self, dtype: Any) -> Self:
        """Return the world with all numbers in a precision. **Raises** `ShapeError` for a type that is not one of
        floating-point numbers."""
        require_floating(dtype)
        return jax.tree.map(lambda x: x.astype(dtype) if hasattr(x, "astype") else x, self)


def load_world(path_or_text: Any, *, options: SolverOptions | None = None) -> World:
    """Return the world that an MJCF file, the text of one, or a compiled `mujoco.MjModel` describes.

    It moves as in MuJoCo: contacts, limits, friction losses and equality constraints are MuJoCo's soft constraints, and
    `step` is the integrator of the file (Euler, implicit, implicitfast or RK4) with its time step. `options` say how
    the constraints are solved; MuJoCo's own solver settings have no part here, because they are solved to the end.

    What a file has and worlds do not have is refused by name.

    **Warns** `LeftOutWarning` of sensors that are not built, and `RobotFileWarning` of boxes that touch height fields
    without a margin, for which MuJoCo's contacts are off the geometry.

    **Raises** `RobotFileError` for what it refuses and for a file that cannot be read; `ModelError` for a model without
    a moving body; `ImportError` without MuJoCo.
    """
    m, source = compile_mjcf(path_or_text)
    refuse_what_is_not_built(m, source)
    warn_of_what_differs(m, source)
    model = tree_of(m)
    passive = Passive.of(m)
    integrator = enum_name("mjtIntegrator", m.opt.integrator)
    constraints = Constraints.of(m)
    parts = WorldParts(
        Bodies.of(m),
        constraints,
        Tendons.of(m),
        Actuators.of(m),
        passive,
        _sensors(m, source),
        float_leaf(float(m.opt.timestep)),
        integrator,
        passive.damped and not is_disabled(m, "eulerdamp"),
        free_bodies(m),
        None,
        NoSlip.of(m, constraints.contacts),
    )
    parts = jax.tree.map(lambda x: jnp.clip(x, -_ENDLESS, _ENDLESS), parts)
    parts = dataclasses.replace(parts, pattern=_pattern_of(model, parts))
    start, options = float_leaf(np.array(m.qpos0)), SolverOptions() if options is None else options
    names = tuple(object_name(m, "key", i) for i in range(m.nkey))
    return World(model, parts, start, keyframes_of(model, m), names, options)


def _sensors(m, source: str) -> Sensors:
    """Return the sensors that are built, with a warning of the others."""
    against = reasons_against_sensors(m)
    if against:
        lines = "\n".join(f"- {name!r}: {reason}" for name, reason in against.items())
        warn(f"{source}: the world leaves out sensors that are not built:\n{lines}", LeftOutWarning)
    names = [object_name(m, "sensor", i) for i in range(m.nsensor)]
    return Sensors.of(m, [name for name in names if name not in against], source)


def _pattern_of(model: Model, parts: WorldParts) -> Pattern:
    """Return the structure of the constraints' rows, which tracing finds."""
    found: list[Pattern] = []

    def look(robot: Robot, world, q, v, control, activation):
        now = rows.acting(robot, world, q, v, control, activation, robot.zeros())
        all_rows = rows.rows_at(robot, world, now)
        found.append(Pattern.of(all_rows.kinds, all_rows.moves(robot), robot.topology.dof_ancestors))
        return all_rows.aref

    na = sum(x >= 0 for x in parts.actuators.states)
    sizes = model.nq, model.nv, len(parts.actuators.names), na
    dtype = model.dtype
    bound, operands = RobotAndParts.of(model, parts, dtype, "load_world")
    jax.eval_shape(lambda *x: bound.call(look, operands, *x), *(jax.ShapeDtypeStruct((n,), dtype) for n in sizes))
    return found[0]
