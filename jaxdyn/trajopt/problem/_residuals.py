"""Residuals: vectors of a stage's state and control that costs make small and constraints bound."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError, ShapeError, require_shape
from jaxdyn._types import Array, Float, leaf_of
from jaxdyn.algorithms import center_of_mass, frame_jacobian, frame_pose, frame_velocity
from jaxdyn.model import Model
from jaxdyn.spatial import SE3, Vec3, se3_log_jacobian
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics


class Linear(NamedTuple):
    """A residual and its derivatives; None stands for a derivative that is zero."""

    value: Float[Array, "m"]
    by_x: Float[Array, "m ndx"] | None
    by_u: Float[Array, "m nu"] | None


class AbstractResidual(eqx.Module):
    """A vector `[m]` that depends on the state `x`, the control `u` (None at the end of the horizon) and the stage.

    It is called with the dynamics, so a problem holds a robot's model once and gradients reach it from every term.
    """

    of_state: ClassVar[bool] = False
    """Whether it is known not to depend on the control; constraints on it then do not act on the fixed `x0`."""

    @abc.abstractmethod
    def __call__(self, dynamics: AbstractDynamics, x, u, k) -> Float[Array, "m"]:
        """The residual at stage `k`."""

    def linearize(self, dynamics: AbstractDynamics, x, u, k) -> Linear:
        """The residual and its derivatives by the displacement of the state and by the control. **Raises** `ModelError`
        where the residual uses the control although `of_state` says that it does not."""
        if self.of_state and u is not None:
            require_no_use(lambda u: self(dynamics, x, u, k), u, type(self).__name__)
        by_x = jax.jacfwd(lambda x: self(dynamics, x, u, k))(x)
        if not dynamics.euclidean:
            by_x = by_x @ dynamics.displacement_rates(x)
        by_u = None if u is None or self.of_state else jax.jacfwd(lambda u: self(dynamics, x, u, k))(u)
        return Linear(self(dynamics, x, u, k), by_x, by_u)


class StateOnlyResidual(AbstractResidual):
    """A residual that does not depend on the control."""

    of_state: ClassVar[bool] = True


class StateResidual(StateOnlyResidual):
    """The displacement `[ndx]` from `target` `[nx]` to the state; the target is the neutral state by default."""

    target: Float[Array, "nx"] | None = eqx.field(
        default=None, converter=leaf_of("StateResidual: `target`", optional=True)
    )

    def __call__(self, dynamics, x, u, k):
        return dynamics.difference(self._target(dynamics, x), x)

    def _target(self, dynamics, x):
        target = dynamics.neutral() if self.target is None else self.target
        require_shape(target, (dynamics.nx,), "the target of a StateResidual", f"nx = {dynamics.nx}")
        return target.astype(x.dtype)

    def linearize(self, dynamics, x, u, k):
        return Linear(self(dynamics, x, u, k), dynamics.difference_jacobian(self._target(dynamics, x), x), None)


class ControlResidual(AbstractResidual):
    """`u - target` `[nu]`; the target is zero by default."""

    target: Float[Array, "nu"] | None = eqx.field(
        default=None, converter=leaf_of("ControlResidual: `target`", optional=True)
    )

    def __call__(self, dynamics, x, u, k):
        if u is None:
            raise ModelError("a ControlResidual cannot stand at the end of the horizon, which has no control")
        if self.target is None:
            return u
        require_shape(self.target, (dynamics.nu,), "the target of a ControlResidual", f"nu = {dynamics.nu}")
        return u - self.target.astype(u.dtype)

    def linearize(self, dynamics, x, u, k):
        return Linear(self(dynamics, x, u, k), None, jnp.eye(dynamics.nu, dtype=x.dtype))


class FramePoseResidual(StateOnlyResidual):
    """The twist `log(target^-1 pose)`, `[linear(3), angular(3)]`, from the target's pose to the frame's, m and rad.
    **Raises** `ModelError` unless the target is an `SE3`."""

    frame: str = eqx.field(static=True)
    target: SE3

    def __check_init__(self):
        if not isinstance(self.target, SE3):
            raise ModelError(f"the target of a FramePoseResidual is {type(self.target).__name__}; an SE3 is needed")

    def __call__(self, dynamics, x, u, k):
        model, q, _ = robot_state(dynamics, self, x)
        return self._relative_to_target(frame_pose(model, q, self.frame)).log()

    def linearize(self, dynamics, x, u, k):
        model, q, _ = robot_state(dynamics, self, x)
        pose = self._relative_to_target(frame_pose(model, q, self.frame))
        twist = pose.log()
        log = se3_log_jacobian(Vec3(*twist[3:]), Vec3(*jnp.asarray(pose.translation)))
        J = log.to_array() @ frame_jacobian(model, q, self.frame, "local")
        return Linear(twist, jacobian_by_state(dynamics, J), None)

    def _relative_to_target(self, pose: SE3) -> SE3:
        return jax.tree.map(lambda a: a.astype(pose.translation.dtype), self.target).inverse() @ pose


class UprightResidual(StateOnlyResidual):
    """How much a frame leans: the x and y components `[2]` of the world's vertical in the axes of the frame, which are
    zero where its z axis is vertical, and for small angles the pitch with its sign changed and the roll, rad. A turn
    about the vertical changes nothing, so a robot may head anywhere."""

    frame: str = eqx.field(static=True)

    def __call__(self, dynamics, x, u, k):
        return self._vertical(dynamics, x)[:2]

    def linearize(self, dynamics, x, u, k):
        vertical = self._vertical(dynamics, x)
        model, q, _ = robot_state(dynamics, self, x)
        # The vertical turns against the frame.
        J = jnp.cross(vertical, frame_jacobian(model, q, self.frame, "local")[3:].T).T
        return Linear(vertical[:2], jacobian_by_state(dynamics, J[:2]), None)

    def _vertical(self, dynamics, x):
        model, q, _ = robot_state(dynamics, self, x)
        return frame_pose(model, q, self.frame).rotation[2]


class FramePositionResidual(StateOnlyResidual):
    """The position of a frame's origin minus `target` `[3]`, m, world axes."""

    frame: str = eqx.field(static=True)
    target: Float[Array, "3"] = eqx.field(converter=leaf_of("FramePositionResidual: `target`"))

    def __check_init__(self):
        require_shape(self.target, (3,), "the target of a FramePositionResidual", "a position in m")

    def __call__(self, dynamics, x, u, k):
        model, q, _ = robot_state(dynamics, self, x)
        return jnp.asarray(frame_pose(model, q, self.frame).translation) - self.target.astype(x.dtype)

    def linearize(self, dynamics, x, u, k):
        model, q, _ = robot_state(dynamics, self, x)
        J = frame_jacobian(model, q, self.frame)[:3]
        return Linear(self(dynamics, x, u, k), jacobian_by_state(dynamics, J), None)


class FrameVelocityResidual(StateOnlyResidual):
    """The velocity `[linear(3), angular(3)]` of a frame minus `target` `[6]`, m/s and rad/s; `reference` as in
    `jaxdyn.frame_velocity`."""

    frame: str = eqx.field(static=True)
    target: Float[Array, "6"] = eqx.field(default=(0.0,) * 6, converter=leaf_of("FrameVelocityResidual: `target`"))
    reference: str = eqx.field(default="local_world_aligned", static=True)

    def __check_init__(self):
        require_shape(self.target, (6,), "the target of a FrameVelocityResidual", "linear (3) and angular (3)")

    def __call__(self, dynamics, x, u, k):
        velocity = frame_velocity(*robot_state(dynamics, self, x), self.frame, self.reference)  # type: ignore[arg-type]
        return velocity - self.target.astype(x.dtype)


class RollingVelocityResidual(StateOnlyResidual):
    """The velocity `[3]` of the lowest point of a ball around a frame's origin, m/s, along the axes of the frame: zero
    where the ball rolls on level ground, as a round foot does that holds. Its center then moves by `radius` (m) times
    the rate at which it turns, which `FrameVelocityResidual` would take for a slip."""

    frame: str = eqx.field(static=True)
    radius: Float[Array, ""] = eqx.field(converter=leaf_of("RollingVelocityResidual: `radius`"))

    def __call__(self, dynamics, x, u, k):
        model, q, v = robot_state(dynamics, self, x)
        velocity = frame_velocity(model, q, v, self.frame, "local")
        lowest = -self.radius.astype(x.dtype) * frame_pose(model, q, self.frame).rotation[2]
        return velocity[:3] + jnp.cross(velocity[3:], lowest)


class CenterOfMassResidual(StateOnlyResidual):
    """The center of mass of all moving bodies minus `target` `[3]`, m, world axes."""

    target: Float[Array, "3"] = eqx.field(converter=leaf_of("CenterOfMassResidual: `target`"))

    def __check_init__(self):
        require_shape(self.target, (3,), "the target of a CenterOfMassResidual", "a position in m")

    def __call__(self, dynamics, x, u, k):
        model, q, _ = robot_state(dynamics, self, x)
        return center_of_mass(model, q) - self.target.astype(x.dtype)


class FunctionResidual(AbstractResidual):
    """A user's residual `function(x, u, t, params)`, `[m]`; `t` in s; `u` is None at the end of the horizon."""

    function: Callable[[Any, Any, Any, Any], Any] = eqx.field(static=True)
    params: Any = None
    of_state: bool = eqx.field(default=False, kw_only=True, static=True)
    """Whether the function ignores `u`, and gets None for it."""

    def __call__(self, dynamics, x, u, k):
        """The residual at stage `k`. **Raises** `ShapeError` unless the function returns a vector, `ModelError` for one
        that uses `u` although `of_state` says that it does not, also where it accepts None."""
        try:
            r = jnp.asarray(self.function(x, None if self.of_state else u, dynamics.time(k), self.params))
        except (TypeError, AttributeError) as error:
            if not self.of_state:
                raise
            raise ModelError(
                f"a FunctionResidual has of_state=True, so its function gets None as u, and fails: {error}. Leave "
                "of_state out if the function uses the control"
            ) from error
        if self.of_state and u is not None:
            require_no_use(lambda u: self.function(x, u, dynamics.time(k), self.params), u, "FunctionResidual")
        if r.ndim != 1:
            raise ShapeError(f"a FunctionResidual returned the shape {r.shape}; a vector [m] is needed")
        return r


def require_no_use(function: Callable, u, what: str) -> None:
    """Raise `ModelError` if the result of `function(u)` depends on `u`. What fails is left to the call itself."""
    try:
        jaxpr = jax.make_jaxpr(function)(u).jaxpr
    except Exception:
        return
    used = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        # Constants have no identity.
        if any(not hasattr(v, "val") and v in used for v in equation.invars):
            used.update(equation.outvars)
    if any(not hasattr(v, "val") and v in used for v in jaxpr.outvars):
        raise ModelError(
            f"a {what} has of_state=True, but its value depends on the control u: the derivative by u would be lost. "
            "Leave of_state out"
        )


class Selected(AbstractResidual):
    """Some components of another residual."""

    residual: AbstractResidual
    indices: tuple[int, ...] = eqx.field(static=True, converter=lambda indices: tuple(int(i) for i in indices))

    @property
    def of_state(self) -> bool:
        return self.residual.of_state

    def __call__(self, dynamics, x, u, k):
        return self._take(self.residual(dynamics, x, u, k))

    def linearize(self, dynamics, x, u, k):
        r, by_x, by_u = self.residual.linearize(dynamics, x, u, k)
        return Linear(self._take(r), *(None if J is None else self._take(J) for J in (by_x, by_u)))

    def _take(self, rows):
        bad = [i for i in self.indices if not -len(rows) <= i < len(rows)]
        if bad:
            raise ShapeError(f"Selected has the indices {bad}, but its residual has {len(rows)} components")
        return rows[jnp.asarray(self.indices, int)]


def jacobian_by_state(dynamics: AbstractDynamics, J):
    """The Jacobian by the state, which begins with `[q, v]`, from `J` by the configuration."""
    return jnp.pad(J, ((0, 0), (0, dynamics.ndx - J.shape[1])))


def robot_state(dynamics: AbstractDynamics, residual: AbstractResidual, x) -> tuple[Model, Array, Array]:
    """The robot's model, `q` and `v`. **Raises** `ModelError` for dynamics without a robot, `UnknownNameError` for an
    unknown frame."""
    model = dynamics.robot
    if model is None:
        kind, hint = type(dynamics).__name__, ""
        if getattr(dynamics, "state_changes_inner", False):
            hint = "; put it into an InnerResidual, which gives it the robot with its parameters"
        raise ModelError(f"{type(residual).__name__} needs ModelDynamics, not {kind}{hint}")
    frame = getattr(residual, "frame", None)
    if frame is not None:
        # While the problem is made: kinematics look names up when they are compiled.
        model.topology.frame(frame)
    return model, x[: model.nq], x[model.nq : model.nq + model.nv]
