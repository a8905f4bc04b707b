"""Worlds: what an MJCF file describes, moving as in MuJoCo."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn import joints
from jaxdyn._compile import compiled
from jaxdyn._errors import naming_arguments, require_floating, require_time_step, warn
from jaxdyn._types import Array, ArrayLike, Configuration, Float, Torque, Velocity, float_leaf
from jaxdyn.io import LeftOutWarning
from jaxdyn.io.mjcf import compile_mjcf, enum_name, is_disabled, object_name
from jaxdyn.model import LEAVES, Model
from jaxdyn.simulate import AbstractWorld, Advance, RolloutOptions, State, Trajectory, roll_out_world
from jaxdyn.solve import SolverOptions, SolverReport
from jaxdyn.worlds._actuators import Actuators
from jaxdyn.worlds._bodies import Bodies
from jaxdyn.worlds._constraints import Constraints
from jaxdyn.worlds._free_bodies import free_bodies
from jaxdyn.worlds._no_slip import NoSlip
from jaxdyn.worlds._parts import Part
from jaxdyn.worlds._passive import Passive
from jaxdyn.worlds._refusals import refuse_what_is_not_built, warn_of_what_differs
from jaxdyn.worlds._sensors import Sensors, reasons_against_sensors
from jaxdyn.worlds._states import (
    KEY_AXES,
    BodyWrenches,
    Controls,
    Keyframe,
    given_of,
    keyframes_of,
    make_state,
    start_of,
)
from jaxdyn.worlds._steps import advanced, by_name, report_of, solved, stepped
from jaxdyn.worlds._tendons import Tendons
from jaxdyn.worlds._tree_of_file import tree_of
from jaxdyn.worlds._world_velocities import body_velocity, world_velocity

_ENDLESS = 1e30
"""The bound that stands for infinite ranges, whose products with zero would be NaN."""


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
    no_slip: NoSlip | None = None
    """MuJoCo's sweeps against slip, if the file has them."""


class World(AbstractWorld):
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
        return solved(given, "acceleration").results["acceleration"]

    @compiled()
    def rate(self, t: Any, state: State, control: Controls | None = None) -> State:
        """The rate of a state, as a `State`, for solvers of ordinary differential equations: in `diffrax` the term
        is `ODETerm(world.rate)`, and `args` is the control `[*batch, nu]`.

        The law does not depend on the time `t`. A quaternion follows `q (0, w) / 2`, whose norm a solver changes by its
        error; the world takes it for its direction. Errors as for `accelerations`.
        """
        given = given_of(self, state, control, None, None)
        state, arguments = given.state, given.arguments
        turned = joints.apply_to_rows(joints.coordinate_rate, self.model.topology, arguments.q, arguments.v)
        found = solved(given, "acceleration", "rates").results
        held = (None if x is None else jnp.zeros_like(x) for x in (state.mocap, state.active))
        return State(turned, found["acceleration"], found["rates"], jnp.ones_like(state.time), *held)

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

    @naming_arguments
    def rollout(
        self,
        state: State,
        controls: Float[Array | np.ndarray, "*#batch steps nu"]
        | Callable[[Any, State, Any], tuple[Any, Any]]
        | None = None,
        *,
        steps: int | None = None,
        policy_state: Any = None,
        substeps: int = 1,
        sensors: bool | Callable[[World, State, Any], Any] = False,
        torques: Float[Array | np.ndarray, "*#batch steps nv"] | None = None,
        wrenches: Float[Array | np.ndarray, "*#batch steps nbody 6"] | None = None,
        options: RolloutOptions | None = None,
    ) -> Trajectory:
        """The trajectory from `state`, `steps + 1` samples with the first of them: one compiled loop, differentiable in
        the state, the controls or the arrays of a policy, and every array of the world.

        - `controls`: the inputs of the actuators, `[*batch, steps, nu]`, one row a step; or a policy, a function
          `(carry, state, t) -> (carry, control)` of the whole batch, as in `jaxdyn.rollout`; zero by default.
        - `steps`: their number; needed without an array of controls. `policy_state`: the carry of a policy's first
          call.
        - `substeps`: the time steps of the world for which a control is held; a sample is taken after them.
        - `sensors`: True for those of the world: `Trajectory.sensors` then has their values by name,
          `[*batch, samples, n]`. They are read at the start of the step that follows a sample, with its control and
          from the same solution of the constraints; the last sample has the control of the last step. Or a function
          `(world, state, t)` that returns a pytree of arrays.
        - `torques` `[*batch, steps, nv]` and `wrenches` `[*batch, steps, nbody, 6]`, zero by default, are held like
          controls: see `accelerations`.
        - `options`: memory of the reverse pass, checks, devices, samples, as in `jaxdyn.rollout`.

        Errors as for `accelerations` and `jaxdyn.rollout`.
        """
        scheme = steps, policy_state, substeps, sensors
        return roll_out_world(self, state, controls, *scheme, torques=torques, wrenches=wrenches, options=options)

    @property
    def control_bounds(self) -> tuple[Float[Array, "*batch nu"], Float[Array, "*batch nu"]]:
        """The least and the greatest controls; infinite where the file has no range."""
        lower, upper = jnp.moveaxis(self.parts.actuators.control_range, -1, 0)
        return jnp.where(lower <= -_ENDLESS, -jnp.inf, lower), jnp.where(upper >= _ENDLESS, jnp.inf, upper)

    @naming_arguments
    def with_timestep(self, dt: ArrayLike) -> Self:
        """Return the world with another time step `dt`, s. Time constants of contacts stay at least two time steps
        where the file says so. **Raises** `ModelError` for one that is known and not positive."""
        require_time_step(dt)
        parts = dataclasses.replace(self.parts, timestep=jnp.asarray(dt, self.parts.timestep.dtype))
        return dataclasses.replace(self, parts=parts)

    def axes(self) -> list[int]:
        """For each array, in the order of the leaves, the number of axes that are not batch axes."""
        model = [LEAVES[name].axes for name in LEAVES if getattr(self.model, name) is not None]
        return [*model, *self.parts.axes(), 1, *(n + 1 for n in KEY_AXES)]

    def start_of(self, state: State, arrays: dict[str, tuple[Any, int]]) -> State:
        """See `AbstractWorld`."""
        return start_of(self, state, arrays)

    def advance(self, state: State, control: Any, torque: Any, wrenches: Any, *, sensed: bool = False) -> Advance:
        """See `AbstractWorld`."""
        return advanced(self, state, control, torque, wrenches, sensed)

    def no_report(self, state: State) -> SolverReport:
        """See `AbstractWorld`."""
        zero = jnp.zeros(state.v.shape[:-1], state.v.dtype)
        return SolverReport(zero, zero.astype(jnp.int32), self.options.tolerance_of(zero.dtype))

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
        return by_name(self.parts.sensors, solved(given, "sensors").results["sensors"])

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
        return report_of(given, solved(given, "deep"))

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
        return solved(given, "torque").results["torque"]

    @naming_arguments
    def from_qvel(self, q: Configuration, qvel: Velocity) -> Float[Array, "*batch nv"]:
        """Return the velocity `v` that is MuJoCo's `qvel` `[*batch, nv]` at the configuration `q` `[*batch, nq]`."""
        return body_velocity(self.model, jnp.asarray(q), jnp.asarray(qvel))

    @naming_arguments
    def to_qvel(self, q: Configuration, v: Velocity) -> Float[Array, "*batch nv"]:
        """Return MuJoCo's `qvel` for the velocity `v` `[*batch, nv]` at the configuration `q` `[*batch, nq]`."""
        return world_velocity(self.model, jnp.asarray(q), jnp.asarray(v))

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
        NoSlip.of(m, constraints.contacts),
    )
    parts = jax.tree.map(lambda x: jnp.clip(x, -_ENDLESS, _ENDLESS), parts)
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
