"""Residuals: what costs make small and constraints bound, as vectors of a stage's state and control."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.algorithms import center_of_mass, frame_jacobian, frame_pose, frame_velocity
from jaxdyn.spatial import SE3, Vec3, so3_left_jacobian_solve
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics, ModelDynamics


class Linear(NamedTuple):
    """A residual and its derivatives; None stands for a derivative that is zero."""

    value: Float[Array, "m"]
    by_x: Float[Array, "m ndx"] | None
    by_u: Float[Array, "m nu"] | None


class AbstractResidual(eqx.Module):
    """A vector `[m]` of the state `x`, the control `u` (None at the end of the horizon) and the number of the stage.

    It gets the dynamics, so that a robot's model is in a problem once, and gradients reach it from everywhere.
    """

    @abc.abstractmethod
    def __call__(self, dynamics: AbstractDynamics, x, u, k) -> Float[Array, "m"]:
        """The residual at stage `k`."""

    @property
    def of_state(self) -> bool:
        """Whether it is known not to depend on the control: then no constraint on it acts on the given `x0`."""
        return False

    def linearize(self, dynamics: AbstractDynamics, x, u, k) -> Linear:
        """The residual and its derivatives by the displacement of the state and by the control."""
        zero = jnp.zeros(dynamics.ndx, x.dtype)

        def along_x(dx):
            return self(dynamics, dynamics.integrate(x, dx), u, k)

        by_x = jax.jacfwd(along_x)(zero)
        by_u = None if u is None or self.of_state else jax.jacfwd(lambda u: self(dynamics, x, u, k))(u)
        return Linear(self(dynamics, x, u, k), by_x, by_u)


class _OfState(AbstractResidual):
    @property
    def of_state(self) -> bool:
        return True


class StateResidual(_OfState):
    """The displacement `[ndx]` of the state from `target` `[nx]`; from the neutral state where None is given."""

    target: Float[Array, "nx"] | None

    def __init__(self, target: ArrayLike | None = None):
        self.target = None if target is None else as_leaf(target)

    def __call__(self, dynamics, x, u, k):
        target = dynamics.neutral() if self.target is None else self.target
        require(target, (dynamics.nx,), "the target of a StateResidual", f"nx = {dynamics.nx}")
        return dynamics.difference(target.astype(x.dtype), x)

    def linearize(self, dynamics, x, u, k):
        if not dynamics.euclidean:
            return super().linearize(dynamics, x, u, k)
        return Linear(self(dynamics, x, u, k), jnp.eye(dynamics.ndx, dtype=x.dtype), None)


class ControlResidual(AbstractResidual):
    """`u - target` `[nu]`; `u` where no target is given."""

    target: Float[Array, "nu"] | None

    def __init__(self, target: ArrayLike | None = None):
        self.target = None if target is None else as_leaf(target)

    def __call__(self, dynamics, x, u, k):
        if u is None:
            raise ModelError("a ControlResidual stands at the end of the horizon, where there is no control")
        if self.target is None:
            return u
        require(self.target, (dynamics.nu,), "the target of a ControlResidual", f"nu = {dynamics.nu}")
        return u - self.target.astype(u.dtype)

    def linearize(self, dynamics, x, u, k):
        return Linear(self(dynamics, x, u, k), None, jnp.eye(dynamics.nu, dtype=x.dtype))


class FramePoseResidual(_OfState):
    """The twist `[linear(3), angular(3)]` `log(target^-1 pose)` from the target's pose to the frame's, m and rad.

    **Raises** `ModelError` for a target that is no `SE3`.
    """

    target: SE3
    frame: str = eqx.field(static=True)

    def __init__(self, frame: str, target: SE3):
        if not isinstance(target, SE3):
            raise ModelError(f"the target of a FramePoseResidual is {type(target).__name__}; an SE3 is needed")
        self.frame, self.target = frame, target

    def __call__(self, dynamics, x, u, k):
        model = robot(dynamics, self)
        return self._off(frame_pose(model, x[: model.nq], self.frame)).log()

    def linearize(self, dynamics, x, u, k):
        model = robot(dynamics, self)
        q = x[: model.nq]
        pose = self._off(frame_pose(model, q, self.frame))
        off = pose.log()
        J = _log_by_twist(off[3:], pose.translation) @ frame_jacobian(model, q, self.frame, "local")
        return Linear(off, _of_configuration(J), None)

    def _off(self, pose: SE3) -> SE3:
        return jax.tree.map(lambda a: a.astype(pose.translation.dtype), self.target).inverse() @ pose


class FramePositionResidual(_OfState):
    """The position of a frame's origin less `target` `[3]`, m, world axes."""

    target: Float[Array, "3"]
    frame: str = eqx.field(static=True)

    def __init__(self, frame: str, target: ArrayLike):
        self.frame, self.target = frame, as_leaf(target)
        require(self.target, (3,), "the target of a FramePositionResidual", "a position in m")

    def __call__(self, dynamics, x, u, k):
        model = robot(dynamics, self)
        return frame_pose(model, x[: model.nq], self.frame).translation - self.target.astype(x.dtype)

    def linearize(self, dynamics, x, u, k):
        model = robot(dynamics, self)
        J = frame_jacobian(model, x[: model.nq], self.frame)[:3]
        return Linear(self(dynamics, x, u, k), _of_configuration(J), None)


class FrameVelocityResidual(_OfState):
    """The velocity `[linear(3), angular(3)]` of a frame less `target` `[6]`, m/s and rad/s; `reference` as in
    `jaxdyn.frame_velocity`."""

    target: Float[Array, "6"]
    frame: str = eqx.field(static=True)
    reference: str = eqx.field(static=True)

    def __init__(self, frame: str, target: ArrayLike = (0.0,) * 6, reference: str = "local_world_aligned"):
        self.frame, self.target, self.reference = frame, as_leaf(target), reference
        require(self.target, (6,), "the target of a FrameVelocityResidual", "linear (3) and angular (3)")

    def __call__(self, dynamics, x, u, k):
        model = robot(dynamics, self)
        v = frame_velocity(model, x[: model.nq], x[model.nq :], self.frame, self.reference)  # type: ignore[arg-type]
        return v - self.target.astype(x.dtype)


class CenterOfMassResidual(_OfState):
    """The center of mass of all moving bodies less `target` `[3]`, m, world axes."""

    target: Float[Array, "3"]

    def __init__(self, target: ArrayLike):
        self.target = as_leaf(target)
        require(self.target, (3,), "the target of a CenterOfMassResidual", "a position in m")

    def __call__(self, dynamics, x, u, k):
        model = robot(dynamics, self)
        return center_of_mass(model, x[: model.nq]) - self.target.astype(x.dtype)


class FunctionResidual(AbstractResidual):
    """`function(x, u, t, params)`, a vector `[m]`, of the user; `t` in s; `u` is None at the end of the horizon."""

    params: Any
    function: Callable = eqx.field(static=True)
    state_only: bool = eqx.field(static=True)

    def __init__(self, function: Callable[[Any, Any, Any, Any], Any], params: Any = None, *, of_state: bool = False):
        """`of_state`: that the function does not look at `u`."""
        self.function, self.params, self.state_only = function, params, of_state

    @property
    def of_state(self) -> bool:
        return self.state_only

    def __call__(self, dynamics, x, u, k):
        out = jnp.asarray(self.function(x, u, dynamics.time(k), self.params))
        if out.ndim != 1:
            raise ShapeError(f"a FunctionResidual returned the shape {out.shape}; a vector [m] is needed")
        return out


class Selected(AbstractResidual):
    """Some components of another residual."""

    residual: AbstractResidual
    indices: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, residual: AbstractResidual, indices: Sequence[int]):
        self.residual, self.indices = residual, tuple(int(i) for i in indices)

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


def _log_by_twist(w, p):
    """The derivative `[6, 6]` of `log(X exp(twist))` by the twist at zero; `X` has the rotation vector `w` and the
    translation `p`, so that `log(X)` is `[V(w)^-1 p, w]`."""

    def solve(w, v):
        return so3_left_jacobian_solve(Vec3(*w), Vec3(*v)).to_array()

    # V(w)^-1 R = V(-w)^-1, for both the translation and the rotation.
    turned = jax.vmap(lambda v: solve(-w, v), out_axes=1)(jnp.eye(3, dtype=w.dtype))
    by_w = jax.jacfwd(solve)(w, p) @ turned
    return jnp.concatenate(
        [jnp.concatenate([turned, by_w], axis=1), jnp.concatenate([jnp.zeros_like(turned), turned], axis=1)]
    )


def _of_configuration(J):
    """A Jacobian by the configuration as one by the state."""
    return jnp.concatenate([J, jnp.zeros_like(J)], axis=1)


def robot(dynamics: AbstractDynamics, residual: AbstractResidual):
    """The robot's model. **Raises** `ModelError` where the dynamics have none, `UnknownNameError` for a frame."""
    if not isinstance(dynamics, ModelDynamics):
        raise ModelError(f"{type(residual).__name__} needs ModelDynamics, not {type(dynamics).__name__}")
    frame = getattr(residual, "frame", None)
    if frame is not None:
        # Looked up here, while the problem is made: kinematics look when they are compiled.
        dynamics.model.topology.frame(frame)
    return dynamics.model


def as_leaf(x) -> Array:
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def require(x, shape: tuple[int, ...], what: str, meaning: str) -> None:
    if tuple(x.shape) != shape:
        raise ShapeError(f"{what} has shape {tuple(x.shape)}, but {list(shape)} is needed: {meaning}")
