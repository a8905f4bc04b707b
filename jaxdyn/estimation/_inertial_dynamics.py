"""Dynamics of a robot whose base carries an inertial measurement unit: its readings are the controls."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import (
    ModelError,
    ShapeError,
    naming_arguments,
    require_kind,
    require_positive,
    require_shape,
    require_time_step,
)
from jaxdyn._types import Array, ArrayLike, Float, float_leaf
from jaxdyn.model import Model, pose_in_body
from jaxdyn.spatial import Quaternion, Vec3, quaternion_to_rotation
from jaxdyn.trajopt.problem import AbstractRobotDynamics


class InertialDynamics(AbstractRobotDynamics):
    """The motion of a robot with a free base from the readings of an inertial measurement unit (IMU), without forces:
    `x = [q, v, gyroscope bias(3), accelerometer bias(3)]`, displacements `[dq, dv, biases]` of length `2 nv + 6`.

    The control is `[angular velocity(3), specific force(3), joint accelerations]` of length `nv`: the readings of the
    gyroscope (rad/s) and the accelerometer (m/s^2, which at rest shows `-gravity`), averages over the step along the
    axes of the IMU, and what is known of the joints, by default zero accelerations, whose noise lets joints follow
    their encoders. After the step the base turns as in it. `noise` makes covariances of the numbers of data sheets.

    States begin with `[q, v]`, so all residuals of robots are measurements: encoders (`JointMeasurement`), poses of
    frames, and feet that do not move, `Selected(FrameVelocityResidual(foot, reference="local"), (0, 1, 2))`. Biases as
    states, and feet that correct them, are those of Bloesch et al., State estimation for legged robots, RSS 2012, whose
    positions of feet are states, too; here contact holds velocities. Errors are along the axes of the base, so neither
    the position nor the heading of the base, which such sensors do not show, changes what is learned of the others.
    """

    model: Model
    dt: Float[Array, ""]
    t0: Float[Array, ""]
    placement: Float[Array, "7"]
    """The pose of the IMU in the base: position (m) and quaternion `w x y z`."""
    nx: int = eqx.field(static=True)
    ndx: int = eqx.field(static=True)
    nu: int = eqx.field(static=True)

    @naming_arguments
    def __init__(self, model: Model, dt: ArrayLike, *, imu: str | None = None, t0: ArrayLike = 0.0):
        """`dt`: the period of the IMU, s. `imu`: the frame of the IMU, fixed in the base; by default the base itself.

        **Raises** `ModelError` unless the first joint of the model is a free one that nothing else moves, for a frame
        of another body, and for closed loops; `UnknownNameError` for a frame.
        """
        require_kind(model, Model, "the first argument", error=ModelError)
        topology = model.topology
        if topology.joint_types[0] != "free" or topology.parents[0] != -1:
            raise ModelError(
                f"InertialDynamics need a base that moves freely, but the first joint, {topology.joint_names[0]!r}, is "
                f"{topology.joint_types[0]}: load the robot with a free base"
            )
        if topology.has_loops:
            raise ModelError("InertialDynamics do not keep loops closed; measure the open robot, model.without_loops()")
        base = topology.body_names[0]
        body, pose = pose_in_body(model, base if imu is None else imu, None, "the placement of the IMU")
        if body != 0:
            raise ModelError(f"the IMU {imu!r} must be fixed in the base, {base!r}")
        require_time_step(dt)
        self.model, self.placement = model, jnp.asarray(pose, model.dtype)
        self.dt, self.t0 = (float_leaf(a).astype(model.dtype) for a in (dt, t0))
        self.nx, self.ndx, self.nu = model.nq + model.nv + 6, 2 * model.nv + 6, model.nv

    @naming_arguments
    def join(
        self,
        q: Float[Array | np.ndarray, "*#batch nq"],
        v: Float[Array | np.ndarray, "*#batch nv"],
        gyroscope_bias: ArrayLike = 0.0,
        accelerometer_bias: ArrayLike = 0.0,
    ) -> Float[Array, "*batch nx"]:
        """The state `[*batch, nx]` from its parts."""
        q = jnp.asarray(q)
        biases = (jnp.asarray(b, q.dtype) for b in (gyroscope_bias, accelerometer_bias))
        parts = [q, jnp.asarray(v), *(jnp.broadcast_to(b, (*b.shape[:-1], 3)) for b in biases)]
        batch = jnp.broadcast_shapes(*(a.shape[:-1] for a in parts))
        return jnp.concatenate([jnp.broadcast_to(a, (*batch, a.shape[-1])) for a in parts], axis=-1)

    @naming_arguments
    def controls(
        self,
        gyroscope: Float[Array | np.ndarray, "*#batch 3"],
        accelerometer: Float[Array | np.ndarray, "*#batch 3"],
        joint_accelerations: Float[Array | np.ndarray, "*#batch joints"] | None = None,
    ) -> Float[Array, "*batch nu"]:
        """The controls `[*batch, nu]` from the readings of the IMU, and the accelerations of the joints, zero by
        default. **Raises** `ShapeError`."""
        readings = jnp.concatenate([jnp.asarray(gyroscope), jnp.asarray(accelerometer)], axis=-1)
        shape = (*readings.shape[:-1], self.nu - 6)
        joints = jnp.zeros(shape, readings.dtype) if joint_accelerations is None else jnp.asarray(joint_accelerations)
        if readings.shape[-1] != 6:
            raise ShapeError("the gyroscope and the accelerometer have 3 components each")
        require_shape(joints, shape, "joint_accelerations", "those of all degrees of freedom but the base's")
        return jnp.concatenate([readings, joints], axis=-1)

    @naming_arguments
    def noise(
        self,
        *,
        gyroscope: ArrayLike,
        accelerometer: ArrayLike,
        gyroscope_bias: ArrayLike,
        accelerometer_bias: ArrayLike,
        joint_acceleration: ArrayLike = 0.0,
    ) -> dict[str, Any]:
        """The `process_noise` and the `control_noise` of a `StateSpaceModel`, from noise densities as data sheets have
        them; numbers, or one for each axis.

        - `gyroscope` (rad/s/sqrt(Hz)), `accelerometer` (m/s^2/sqrt(Hz)): of the readings.
        - `gyroscope_bias` (rad/s^2/sqrt(Hz)), `accelerometer_bias` (m/s^3/sqrt(Hz)): of the random walks of biases.
        - `joint_acceleration`: rad/s^2 or m/s^2, a number or `[nv - 6]`: the standard deviation of the accelerations,
          held for a step, that the controls do not have.

        **Raises** `ModelError` for a negative number.
        """
        given = gyroscope, accelerometer, gyroscope_bias, accelerometer_bias, joint_acceleration
        names = "gyroscope", "accelerometer", "gyroscope_bias", "accelerometer_bias", "joint_acceleration"
        for name, value in zip(names, given, strict=True):
            if not isinstance(value, Tracer):
                require_positive(value, name, zero=True)
        sizes = (3, 3, 3, 3, self.nu - 6)
        dtype = self.model.dtype
        squares = [jnp.broadcast_to(jnp.asarray(a, dtype) ** 2, (n,)) for a, n in zip(given, sizes, strict=True)]
        of_readings = jnp.concatenate(squares[:2]) / self.dt
        of_biases = jnp.concatenate(squares[2:4]) * self.dt
        return {
            "process_noise": jnp.concatenate([jnp.zeros(2 * self.model.nv, dtype), of_biases]),
            "control_noise": jnp.concatenate([of_readings, squares[4]]),
        }

    def step(self, x, u, k):
        model, dt, nq = self.model, self.dt.astype(x.dtype), self.model.nq
        q, v, biases = x[:nq], x[nq : nq + model.nv], x[nq + model.nv :]
        arm, of_imu, of_world = (
            a.astype(x.dtype)
            for a in (
                self.placement[:3],
                quaternion_to_rotation(self.placement[3:]),
                quaternion_to_rotation(model.joint_placement[0, 3:]).T,
            )
        )
        turn, force = of_imu @ (u[:3] - biases[:3]), of_imu @ (u[3:6] - biases[3:])
        before = quaternion_to_rotation(q[3:7])
        # The specific force turns with the base: its mean over the step is along the axes at half of the step.
        middle = before @ Quaternion.exp(Vec3(*(turn * dt / 2))).to_rotation().to_array()
        acceleration = middle @ force + of_world @ model.gravity.astype(x.dtype)
        # The point whose acceleration is measured moves as a point mass, whatever the angular acceleration is.
        velocity = before @ (v[:3] + jnp.cross(v[3:6], arm))
        shift = before @ arm + velocity * dt + acceleration * dt**2 / 2
        joints = v[6:] * dt + u[6:] * dt**2 / 2
        turned = model.integrate(q, jnp.concatenate([jnp.zeros_like(turn), turn * dt, joints]))
        after = quaternion_to_rotation(turned[3:7])
        position = q[:3] + shift - after @ arm
        linear = after.T @ (velocity + acceleration * dt) - jnp.cross(turn, arm)
        return jnp.concatenate([position, turned[3:], linear, turn, v[6:] + u[6:] * dt, biases])
