"""Measurements: the readings that sensors would have at a state, and how far readings are from these."""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, look_up, naming_arguments, require_choice
from jaxdyn._types import Array, Float
from jaxdyn.simulate import State
from jaxdyn.spatial import SE3, Quaternion
from jaxdyn.trajopt import (
    AbstractDynamics,
    AbstractResidual,
    FramePoseResidual,
    InnerResidual,
    Selected,
    StateResidual,
    WorldDynamics,
)


class AbstractMeasurement(eqx.Module):
    """A reading `[ny]` that depends on the state, the control and the stage, with noise `[m]` in its tangent space.

    Where no component is part of a rotation, `m` is `ny`; a quaternion has four components and three of noise.
    """

    @abc.abstractmethod
    def predict(self, dynamics: AbstractDynamics, x, u, k) -> Float[Array, "ny"]:
        """The reading at the state `x` of stage `k` without noise."""

    @abc.abstractmethod
    def innovation(self, dynamics: AbstractDynamics, x, u, k, y) -> Float[Array, "m"]:
        """The displacement from the reading predicted at `x` to the reading `y`."""

    def linearize(self, dynamics: AbstractDynamics, x, u, k, y) -> tuple[Float[Array, "m"], Float[Array, "m ndx"]]:
        """The innovation, and its decrease by a displacement of the state: for vectors the derivative of `predict`."""

        def displaced(dx):
            e = self.innovation(dynamics, dynamics.integrate(x, dx), u, k, y)
            return e, e

        slope, e = jax.jacfwd(displaced, has_aux=True)(jnp.zeros(dynamics.ndx, x.dtype))
        return e, -slope


class ResidualMeasurement(AbstractMeasurement):
    """A measurement of the value of a residual. A residual stands for its measurement wherever one is needed.

    - The reading is the value `[m]` of the residual, so with a target of zero the quantity itself; a reading of zero
      says that the state is at the target. `Selected(FrameVelocityResidual(foot, reference="local"), (0, 1, 2))` with
      readings of zero is a foot that does not move.
    - A `FramePoseResidual` reads the pose `[7]` of the frame relative to the target (position, quaternion `w x y z`);
      its noise is the body twist `[linear, angular]`. A `StateResidual` without target reads the state `[nx]`; its
      noise is a displacement. `Selected` of these has the same readings, and uses the selected components of the
      displacement.
    - `angles`: the components that are angles (rad), whose readings are the same after whole turns.
    - `quaternions`: the first components of those that are quaternions `w x y z`, as a function may return them; the
      noise of each is a rotation vector in the axes of the rotated frame, in its place.

    **Raises** `ModelError` for a pose or a state inside of an `InnerResidual`, for selected components of these out of
    their order, for a `StateResidual` with a target, and for `angles` and `quaternions` of poses and states.
    """

    residual: AbstractResidual
    angles: tuple[int, ...] = eqx.field(default=(), static=True, converter=tuple)
    quaternions: tuple[int, ...] = eqx.field(default=(), static=True, converter=tuple)

    def __check_init__(self):
        if not isinstance(self.residual, AbstractResidual):
            raise ModelError(f"a ResidualMeasurement needs a residual, not {type(self.residual).__name__}")
        base, chain = self.residual, []
        while isinstance(base, Selected | InnerResidual):
            chain.append(base)
            base = base.residual
        if not isinstance(base, FramePoseResidual | StateResidual):
            return
        name = type(base).__name__
        if any(isinstance(each, InnerResidual) for each in chain):
            raise ModelError(
                f"{name} inside of an InnerResidual is not a measurement; measure it by a FunctionResidual"
            )
        if isinstance(base, StateResidual) and base.target is not None:
            raise ModelError("a StateResidual reads the state itself; leave out its target")
        if any(isinstance(x, Selected) and list(x.indices) != sorted(set(x.indices)) for x in chain):
            raise ModelError(f"the indices of a Selected {name} must rise: its reading keeps the order of components")
        if self.angles or self.quaternions:
            raise ModelError(f"{name} is on its manifold already; leave out angles and quaternions")

    def predict(self, dynamics, x, u, k):
        base, _ = self._manifold()
        if isinstance(base, StateResidual):
            return x
        if isinstance(base, FramePoseResidual):
            return SE3.exp(base(dynamics, x, u, k)).to_vector()
        return self.residual(dynamics, x, u, k)

    def innovation(self, dynamics, x, u, k, y):
        base, indices = self._manifold()
        if base is not None:
            return -_target_at(base, y)(dynamics, x, u, k)[indices]
        return _difference(self.residual(dynamics, x, u, k), y, self.angles, self.quaternions)

    def linearize(self, dynamics, x, u, k, y):
        base, indices = self._manifold()
        if base is None and self.quaternions:
            return super().linearize(dynamics, x, u, k, y)
        used = self.residual if base is None else _target_at(base, y)
        value, by_x, _ = used.linearize(dynamics, x, u, k)
        by_x = jnp.zeros((len(value), dynamics.ndx), x.dtype) if by_x is None else by_x
        if base is None:
            return _difference(value, y, self.angles, ()), by_x
        return -value[indices], by_x[indices]

    def _manifold(self) -> tuple[FramePoseResidual | StateResidual | None, np.ndarray | slice]:
        """The residual whose reading is on a manifold, and its components that are used; None for vectors."""
        base, indices = self.residual, slice(None)
        while isinstance(base, Selected):
            own = np.array(base.indices, int)
            base, indices = base.residual, own if isinstance(indices, slice) else own[indices]
        return (base, indices) if isinstance(base, FramePoseResidual | StateResidual) else (None, indices)


def _target_at(residual, y) -> AbstractResidual:
    """The residual whose target is the reading: its value is the displacement from the reading to the state."""
    if isinstance(residual, StateResidual):
        return StateResidual(y)
    return FramePoseResidual(residual.frame, residual.target @ SE3.from_vector(y))


class JointMeasurement(AbstractMeasurement):
    """Encoders: the coordinates of joints in the order of their names, rad or m, quaternions `w x y z` of ball joints,
    or their velocities, rad/s or m/s. Turns of continuous joints are not counted. The noise of coordinates is a
    displacement of the joints.

    `of`: `"position"`, `"velocity"`, or `"both"`, first all coordinates and then all velocities. **Raises**
    `ModelError` for other words, and dynamics without a robot; `UnknownNameError` for a joint.
    """

    joints: tuple[str, ...] = eqx.field(static=True, converter=tuple)
    of: str = eqx.field(default="position", static=True)

    def __check_init__(self):
        require_choice(self.of, ("position", "velocity", "both"), "`of` of a JointMeasurement")

    def predict(self, dynamics, x, u, k):
        return x[jnp.asarray(np.concatenate(self._components(dynamics)[0]))]

    def innovation(self, dynamics, x, u, k, y):
        (coordinates, velocities), dofs = self._components(dynamics)
        model: Any = dynamics.robot
        q, count = x[: model.nq], len(coordinates)
        e = y[count:] - x[velocities]
        if count:
            e = jnp.concatenate([model.difference(q, q.at[coordinates].set(y[:count]))[dofs], e])
        return e

    def _components(self, dynamics) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """The indices of the coordinates and of the velocities in the state, and of the coordinates' displacements."""
        model = dynamics.robot
        if model is None:
            raise ModelError(f"a JointMeasurement needs dynamics of a robot, not {type(dynamics).__name__}")
        nothing = [np.zeros(0, int)]
        q = np.concatenate([*nothing, *(np.arange(model.nq)[model.q_index(joint)] for joint in self.joints)])
        v = np.concatenate([*nothing, *(np.arange(model.nv)[model.v_index(joint)] for joint in self.joints)])
        q, dofs = (q[:0], v[:0]) if self.of == "velocity" else (q, v)
        return (q, v[:0] if self.of == "position" else model.nq + v), dofs


class SensorMeasurement(AbstractMeasurement):
    """Sensors of a world by name, in this order, under `WorldDynamics`: IMUs, encoders, forces, touch, and all others.

    The noise of a quaternion is a rotation vector in the axes of the frame; turns of continuous joints are not
    counted. `stack` makes readings of arrays by name, such as `Trajectory.sensors`. **Raises** `ModelError` for other
    dynamics, `UnknownNameError` for a sensor.
    """

    names: tuple[str, ...] = eqx.field(static=True, converter=lambda names: tuple(names))

    def __check_init__(self):
        if not self.names:
            raise ModelError("a SensorMeasurement needs the name of a sensor")

    @naming_arguments
    def stack(self, values: dict[str, Float[Array, "*batch n"]]) -> Float[Array, "*batch ny"]:
        """The readings from the values of sensors by name. **Raises** `UnknownNameError`."""
        for name in self.names:
            look_up(name, values, "sensor")
        return jnp.concatenate([jnp.asarray(values[name]) for name in self.names], axis=-1)

    def predict(self, dynamics, x, u, k):
        world = _world_of(dynamics)
        for name in self.names:
            look_up(name, world.parts.sensors.names, "sensor")
        q, v, activation = jnp.split(x, (world.model.nq, world.model.nq + world.model.nv))
        return self.stack(world.sensors(State(q, v, activation, dynamics.time(k).astype(x.dtype)), u))

    def innovation(self, dynamics, x, u, k, y):
        return _difference(self.predict(dynamics, x, u, k), y, *self._rotations(dynamics))

    def _rotations(self, dynamics) -> tuple[list[int], list[int]]:
        """The components that are angles without turns, and the first components of quaternions."""
        world = _world_of(dynamics)
        sensors, topology = world.parts.sensors, world.model.topology
        kinds = dict(zip(topology.q_starts, topology.joint_types, strict=False))
        angles, quaternions, start = [], [], 0
        for name in self.names:
            i = sensors.names.index(name)
            if sensors.types[i] in ("ballquat", "framequat"):
                quaternions.append(start)
            if sensors.types[i] == "jointpos" and kinds.get(sensors.joints[sensors.objects[i]][1]) == "continuous":
                angles.append(start)
            start += sensors.sizes[i]
        return angles, quaternions


def _world_of(dynamics) -> Any:
    if not isinstance(dynamics, WorldDynamics):
        raise ModelError(f"a SensorMeasurement reads a world: it needs WorldDynamics, not {type(dynamics).__name__}")
    return dynamics.world


def _difference(y0, y1, angles: Sequence[int], quaternions: Sequence[int]) -> Float[Array, "m"]:
    """The displacement from the reading `y0` to `y1`, whose `quaternions` have three components each, in their
    place."""
    e = y1 - y0
    if angles:
        whole = np.zeros(len(e), bool)
        whole[list(angles)] = True
        e = jnp.where(whole, e - 2 * np.pi * jnp.round(e / (2 * np.pi)), e)
    if not quaternions:
        return e
    rows = np.array(quaternions)[:, None] + np.arange(4)
    before, after = (Quaternion(*y[rows].T).normalized() for y in (y0, y1))
    turn = before.conjugate().multiply(after).log()
    # The vector part's places hold the rotation vector, and the place of the scalar part is left out.
    e = e.at[rows[:, 1:]].set(jnp.stack([turn.x, turn.y, turn.z], axis=1))
    return e[np.setdiff1d(np.arange(len(e)), rows[:, 0])]


def as_measurements(given) -> tuple[AbstractMeasurement, ...]:
    """The measurements from one, or a sequence, of measurements and residuals. **Raises** `ModelError`."""
    several = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not several:
        raise ModelError("there are no measurements; give one, or a list")
    return tuple(x if isinstance(x, AbstractMeasurement) else ResidualMeasurement(x) for x in several)
