"""Worlds: a model and what is attached to it, or what a file describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, checking_arguments, naming_arguments, require_floating, require_time_step
from jaxdyn._types import Array, ArrayLike, Configuration, Float, Torque, Velocity
from jaxdyn.contact import ContactForces, ContactLaw, ContactPair, ContactShape, MujocoLaw
from jaxdyn.geometry import AbstractSurface
from jaxdyn.model import LEAVES, Actuator, Model
from jaxdyn.simulate import AbstractWorld, Advance, RolloutOptions, State, Trajectory, roll_out_world
from jaxdyn.simulate.integrators import require_closed
from jaxdyn.solve import SolverOptions, SolverReport
from jaxdyn.worlds import _steps
from jaxdyn.worlds._actuator_blocks import Paths
from jaxdyn.worlds._appearance import Appearance, VisualFile
from jaxdyn.worlds._bodies import BodyMotion
from jaxdyn.worlds._control_steps import advanced, control_step
from jaxdyn.worlds._description import facts_of
from jaxdyn.worlds._from_model import Attached, parts_of_model
from jaxdyn.worlds._inertia_constants import derived_from, look_at_constants, with_inertias_of
from jaxdyn.worlds._model_actuators import with_named_paths
from jaxdyn.worlds._model_constraints import Touching
from jaxdyn.worlds._model_sensors import Sensor
from jaxdyn.worlds._states import (
    KEY_AXES,
    BodyWrenches,
    Controls,
    Keyframe,
    given_of,
    make_state,
    motion_of_bodies,
    start_of,
)
from jaxdyn.worlds._world_parts import WorldParts
from jaxdyn.worlds._world_velocities import body_velocity, world_velocity


class World(AbstractWorld):
    """A model and what is attached to it: contacts, limits, actuators and sensors, each with its law. `load_world`
    makes one of a file.

    All numbers are arrays, which gradients reach and which may have leading batch axes; new values compile nothing
    again. `q` is MuJoCo's `qpos` number for number; `v` is `qvel`, but for the linear velocity of free joints, which
    stands in body axes here and in world axes there.
    """

    model: Model
    """The tree: placements, inertias, armature, gravity. In a world that is made of a model, all that the model has,
    such as the damping of joints; in the world of an MJCF file other forces are among `parts`."""
    parts: WorldParts
    """Constraints, tendons, actuators, and passive forces."""
    start: Float[Array, "*batch nq"]
    """The configuration in which the file has the world (`qpos0`), or the neutral one of the model."""
    keys: Keyframe
    """All keyframes."""
    key_names: tuple[str, ...] = eqx.field(static=True)
    options: SolverOptions = eqx.field(static=True)
    appearance: Appearance | VisualFile | None
    """The geoms that pictures show of it, or a file that has them; None: shapes that touch, or its model alone."""

    @checking_arguments
    def __init__(
        self,
        model: Model,
        contacts: Sequence[ContactShape] = (),
        surface: AbstractSurface | Literal["ground"] | None = "ground",
        pairs: Sequence[ContactPair | tuple[str, str]] | Literal["all"] = (),
        apart: Sequence[str | tuple[str, str]] = (),
        *,
        law: ContactLaw | MujocoLaw | None = None,
        limits: bool | ContactLaw | MujocoLaw = False,
        actuators: Sequence[Actuator] = (),
        sensors: Sequence[Sensor] = (),
        timestep: float = 1e-3,
        integrator: str | None = None,
        options: SolverOptions | None = None,
    ):
        """The world of a model, in which nothing is attached by default.

        **Arguments**

        - `contacts`: shapes on links, which touch the `surface`: `"ground"` for the plane `z = 0`, or None for no
          surface. Shapes that are fixed in the world, such as a table, only touch those that they have pairs with.
        - `pairs`: which links touch each other: a `ContactPair` for each two links, or their names; `"all"` for all
          shapes on different bodies that no joint connects, other than a free one or one of the world, as in Drake.
          `apart` names links that touch no other link all the same, and pairs of links that do not touch each other.
        - `law`: how contacts push, and with that how the world moves. With a `ContactLaw`, the default, it moves as
          `jaxdyn.step` moves the model, and in a world with contacts their forces and joint friction are those at the
          end of the step, so that stiff contacts do not limit the time step; with a `MujocoLaw` it moves as in MuJoCo.
          A shape or a pair may have its own law of the same class. The constants that MuJoCo derives from inertias
          (`invweight0`) are arrays, which follow in `with_model`; where inertias are replaced in the model itself,
          calls warn.
        - `limits`: whether joints stop at `Model.position_lower` and `position_upper`, by the default law of the class
          of `law`, or that law, whose numbers are in N m/rad and s/rad where a coordinate is an angle.
        - `actuators`, `sensors`: what drives and what is read. `Model.effort_limit` limits the sum of the actuators'
          forces on a joint.
        - `timestep`: s.
        - `integrator`: one of `jaxdyn.step`, by default `"implicit_velocity"`, which takes the damping of actuators on
          joints with one axis at the end of the step, with contacts that or `"semi_implicit_euler"`; with MuJoCo's law
          `"implicitfast"`, the default, `"euler"`, `"implicit"` or `"rk4"`, as MuJoCo has them.
        - `options`: how contacts and constraints are solved.

        Loops, couplings and joints that mimic others hold exactly with either law, as in `jaxdyn.aba`; MuJoCo's soft
        constraints are in the world of `to_mjcf(model)`. With MuJoCo's law, Coulomb friction of joints is MuJoCo's
        friction loss, without `friction_velocity`, and points of `Points` are spheres without size.

        **Raises** `ModelError` for what does not fit together, by name: a shape that touches nothing, pairs of one
        body, of two fixed links, or of shapes that have no pairs, links of `pairs` and `apart` without shapes, and as
        in `Actuator` and `Sensor`; with MuJoCo's law for springs of ball joints and numbers of free joints that differ
        by axis, for loops with the integrator `"implicit"`, for other surfaces than planes, and for pairs of shapes
        that are not built; `UnknownNameError`; `ShapeError`.
        """
        self.model, self.options = model, SolverOptions() if options is None else options
        touching = Touching(contacts, surface, pairs, apart)
        given = Attached(touching, law, limits, actuators, sensors, timestep, integrator, self.options)
        self.parts = parts_of_model(model, given)
        self.start, self.key_names, self.appearance = model.neutral(), (), None
        self.keys = Keyframe.none(model, self.na, self.nu)

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        return facts_of(self)

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table

    @property
    def timestep(self):
        """The time step, s."""
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
        """The number of activations, with what blocks of actuators remember."""
        return self.parts.actuators.activations

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

    @property
    def contact_names(self) -> tuple[str, ...]:
        """The link of each contact, or both links of a pair; with MuJoCo's law both geoms: the order of
        `contact_forces`."""
        touching = self.parts.touching
        return self.parts.constraints.contacts.candidate_names() if touching is None else touching.names

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
        for a keyframe, and `ModelError` for a model whose loops are open.
        """
        state = make_state(self, q, v, activation, keyframe, mocap, active)
        require_closed(self.model, state)
        return state

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
        accelerations solve. Without MuJoCo's law, accelerations with contacts are those of a time step. **Raises**
        `ShapeError` where a shape does not fit, `ModelError` where a mocap body that carries joints is moved.
        """
        given = given_of(self, state, control, torque, wrenches)
        return _steps.solved(given, "acceleration").results["acceleration"]

    @compiled()
    def rate(self, t: Any, state: State, control: Controls | None = None) -> State:
        """The rate of a state, as a `State`, for solvers of ordinary differential equations: in `diffrax` the term
        is `ODETerm(world.rate)`, and `args` is the control `[*batch, nu]`.

        The law does not depend on the time `t`. A quaternion follows `q (0, w) / 2`, whose norm a solver changes by its
        error; the world takes it for its direction. With a `ContactLaw` contacts and stops of joints push by the law at
        the state: an explicit solver needs steps below `2 m stiction_velocity / (friction f)` for the normal force `f`
        on a mass `m`. Errors as for `accelerations`, and `ModelError` for blocks of actuators that remember something,
        which act in steps only.
        """
        return _steps.rate_of(given_of(self, state, control, None, None))

    @compiled("substeps")
    def step(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
        substeps: int = 1,
    ) -> State:
        """The state after `substeps` time steps, with MuJoCo's law as `mj_step`, else as `jaxdyn.step`; what is given
        is held, without MuJoCo's law `wrenches` as the torques that they have at the start of each step. Arguments and
        errors as for `accelerations`, and `ModelError` for a number of `substeps` below one."""
        return control_step(self, state, control, torque, wrenches, substeps=substeps).state

    @compiled("names", "substeps")
    def step_and_read(
        self, state: State, control: Controls | None = None, *, names: tuple[str, ...], substeps: int = 1
    ) -> tuple[State, dict[str, Any]]:
        """The state after `substeps` time steps, and quantities of the last solution of the constraints by their names:
        at the start of the last step, or with RK4 at its last stage. There MuJoCo's `mjData` has them after `mj_step`.

        `names` are some of

        - `"q"` `[*batch, nq]` and `"v"` `[*batch, nv]`: where that was;
        - `"sensors"`: the values of the sensors by their names, `[*batch, n]` each;
        - `"actuator_torque"` `[*batch, nv]`: the forces of the actuators on the degrees of freedom, N m and N;
        - `"body_wrenches"` `[*batch, nbody, 6]`: the sums of the forces of contacts, connections and welds on each
          body, N, and of their moments about its center of mass, N m: MuJoCo's `cfrc_ext` about other points.

        Wrenches are along axes of the world. Arguments and errors as for `accelerations`; `UnknownNameError` for other
        names, and `ModelError` for the last two without MuJoCo's law and for a number of `substeps` below one.
        """
        after = control_step(self, state, control, substeps=substeps, reads=names)
        return after.state, after.readings

    @compiled()
    def body_motion(self, state: State) -> BodyMotion:
        """The centers of mass, the principal axes and the velocities of the bodies in a state (`BodyMotion`). Errors as
        for `accelerations`."""
        return motion_of_bodies(self, state)

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
        - `steps`: their number; needed without an array of controls or torques. `policy_state`: the carry of a policy's
          first call.
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
        return self.parts.actuators.control_bounds

    @naming_arguments
    def with_timestep(self, dt: ArrayLike) -> Self:
        """Return the world with another time step `dt`, s. Time constants of contacts stay at least two time steps
        where the file says so. **Raises** `ModelError` for one that is known and not positive."""
        require_time_step(dt)
        return eqx.tree_at(lambda w: w.parts.timestep, self, jnp.asarray(dt, self.parts.timestep.dtype))

    def axes(self) -> list[int]:
        """Return for each array, in the order of the leaves, the number of axes that are not batch axes."""
        model = [LEAVES[name].axes for name in LEAVES if getattr(self.model, name) is not None]
        drawn = self.appearance.axes() if isinstance(self.appearance, Appearance) else []
        return [*model, *self.parts.axes(), 1, *(n + 1 for n in KEY_AXES), *drawn]

    def start_of(self, state: State, arrays: dict[str, tuple[Any, int]]) -> State:
        """See `AbstractWorld`."""
        return start_of(self, state, arrays)

    def advance(
        self, state: State, control: Any, torque: Any, wrenches: Any, *, sensed: bool = False, substeps: int = 1
    ) -> Advance:
        """See `AbstractWorld`."""
        return advanced(self, state, control, torque, wrenches, sensed, substeps)

    def no_report(self, state: State) -> SolverReport:
        """See `AbstractWorld`."""
        return _steps.empty_report(self, state)

    @compiled()
    def sensors(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
    ) -> dict[str, Float[Array, "*batch n"]]:
        """The values of the sensors by their names, `[*batch, n]` each: MuJoCo's `sensordata`. Arguments and errors as
        for `accelerations`."""
        given = given_of(self, state, control, torque, wrenches)
        sensors = self.parts.sensors
        return _steps.by_name(sensors, _steps.solved(given, "sensors").results["sensors"]) if sensors.names else {}

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
        return _steps.report_of(given, _steps.solved(given, "deep"))

    @compiled()
    def constraint_forces(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
    ) -> Float[Array, "*batch nv"]:
        """The forces `[*batch, nv]` of all constraints on the degrees of freedom, N m and N: MuJoCo's
        `qfrc_constraint`, but for the axes of free joints. Those that hold loops, couplings and joints that mimic
        others are left out. Arguments and errors as for `accelerations`, and `ModelError` without MuJoCo's law."""
        return _steps.constraint_torque_of(given_of(self, state, control, torque, wrenches))

    @compiled("of_step")
    def contact_forces(
        self,
        state: State,
        control: Controls | None = None,
        torque: Torque | None = None,
        wrenches: BodyWrenches | None = None,
        *,
        of_step: bool = True,
    ) -> ContactForces:
        """The gaps, normals, points and forces of all contacts, `[*batch, nc]`, in the order of `contact_names`.

        With MuJoCo's law they are those at the state. With a `ContactLaw` the forces are those that act for the time
        step from this state, and the others those at its start; with `of_step=False` the forces are those of the law at
        this configuration and velocity, as in `rate`, whatever drives the robot. Arguments and errors as for
        `accelerations`.
        """
        return _steps.contacts_of(given_of(self, state, control, torque, wrenches), of_step)

    @naming_arguments
    def from_qvel(self, q: Configuration, qvel: Velocity) -> Float[Array, "*batch nv"]:
        """Return the velocity `v` that is MuJoCo's `qvel` `[*batch, nv]` at the configuration `q` `[*batch, nq]`."""
        return body_velocity(self.model.topology, jnp.asarray(q), jnp.asarray(qvel))

    @naming_arguments
    def to_qvel(self, q: Configuration, v: Velocity) -> Float[Array, "*batch nv"]:
        """Return MuJoCo's `qvel` for the velocity `v` `[*batch, nv]` at the configuration `q` `[*batch, nq]`."""
        return world_velocity(self.model.topology, jnp.asarray(q), jnp.asarray(v))

    @naming_arguments
    def with_actuator_paths(self, control: Paths | None = None, force: Paths | None = None) -> Self:
        """Return the world with blocks on the ways of the controls and forces of its actuators, by their names, as
        `Actuator` has them: motors' limits for actuators of an MJCF file, for one. They replace those that were there.
        **Raises** `UnknownNameError`; `ModelError` for what is no block."""
        parts, keys = with_named_paths(self.parts, self.keys, control or {}, force or {})
        return eqx.tree_at(lambda world: (world.parts, world.keys), self, (parts, keys))

    def with_model(self, model: Model) -> Self:
        """Return the world with another model of the same tree: other inertias, armature, placements or gravity.

        The constants that MuJoCo derives from them at the file's configuration, which weigh its soft constraints
        (`invweight0`) and muscles (`actuator_acc0`), and the masses that gravity compensation lifts, change with them.
        The boxes that stand for bodies in a fluid and the masses that sensors read stay those of the file. **Raises**
        `ModelError` for a model of another tree.
        """
        if model.topology != self.model.topology:
            raise ModelError("the model has another tree than the world's; give one that was made from world.model")
        # Only MuJoCo's law has constants of that kind.
        parts = self.parts
        if parts.as_mujoco:
            parts = with_inertias_of(parts, self.model, model, self.start)
            parts = eqx.tree_at(lambda parts: parts.derived_from, parts, derived_from(model))
        return eqx.tree_at(lambda world: (world.model, world.parts), self, (model, parts))

    _look_at_itself = look_at_constants

    def astype(self, dtype: Any) -> Self:
        """Return the world with all numbers in a precision. **Raises** `ShapeError` for a type that is not one of
        floating-point numbers."""
        require_floating(dtype)
        return jax.tree.map(lambda x: x.astype(dtype) if hasattr(x, "astype") else x, self)
