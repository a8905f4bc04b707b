"""Inverse kinematics: configurations in which frames are where they should be, by least squares on the manifold.

Levenberg-Marquardt steps in the tangent space, within the joints' limits, for a whole batch at once. The damping is a
multiple of the cost, so that convergence near a solution is quadratic and singular targets do no harm (Sugihara,
Solvability-unconcerned inverse kinematics by the Levenberg-Marquardt method, IEEE T-RO 2011); the multiple adapts, and
a step that does not lower the cost is not taken.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, ShapeError, require_last_axes
from jaxdyn._types import Array, Configuration, Float
from jaxdyn.algorithms._kinematics import frame_jacobian, frame_pose
from jaxdyn.algorithms.recursions._algorithm import broadcast_batches, model_batch, rows
from jaxdyn.algorithms.recursions._body_frames import product
from jaxdyn.model import Model
from jaxdyn.spatial import SE3, Mat3, Vec3, so3_left_jacobian_solve, so3_log

# The multiple of the damping shrinks after a step that lowered the cost by most of what the linearized errors promised,
# and grows after one that did not by much, or was not taken.
_SHRINK, _GROW = 0.2, 4.0
_MOST, _LITTLE = 0.75, 0.25
_FIRST_MULTIPLE = 1e-2
# A search that lowers its cost by less than this fraction, so many times in a row, is taken for one in a local minimum
# where there is another start to try.
_SLOW, _PATIENCE = 0.01, 5


class IKStatus(enum.IntEnum):
    """How the search for one element of the batch ended: from its last start, where there were several."""

    REACHED = 0
    """Every target is met to the tolerance."""
    STATIONARY = 1
    """The least cost that steps from the starts lead to: targets that are out of reach, in conflict with each other,
    with limits or the posture, or a local minimum."""
    MAX_STEPS = 2
    """The steps were used up; also for targets far out of reach, toward which convergence is slow."""
    NOT_FINITE = 3
    """A target or a start has NaN or infinite values."""


# In the order in which they are looked for.
_ENDS = (IKStatus.REACHED, IKStatus.NOT_FINITE, IKStatus.STATIONARY, IKStatus.MAX_STEPS)


class FrameTarget(eqx.Module):
    """Where a frame should be: its `position`, its `rotation`, or both. Arrays may carry batch axes.

    The cost has `position_weight^2` for a square meter and `rotation_weight^2` for a square radian.
    """

    frame: str = eqx.field(static=True)
    position: Float[Array, "*batch 3"] | None = None
    """Of its origin in the world, m."""
    rotation: Float[Array, "*batch 3 3"] | None = None
    """From its axes to those of the world."""
    position_weight: Float[Array, "*batch"] | float = 1.0
    rotation_weight: Float[Array, "*batch"] | float = 1.0

    @staticmethod
    def of_pose(frame: str, pose: SE3, position_weight: Any = 1.0, rotation_weight: Any = 1.0) -> FrameTarget:
        """The whole pose."""
        return FrameTarget(frame, pose.translation, pose.rotation, position_weight, rotation_weight)


class IKSolution(NamedTuple):
    """What `inverse_kinematics` found, for each element of the batch."""

    q: Float[Array, "*batch nq"]
    status: Array
    """`IKStatus`, `[*batch]` integers."""
    error: Float[Array, "*batch"]
    """The largest error over the targets: m for positions, rad for rotations."""
    cost: Float[Array, "*batch"]
    """Half of the sum of the squared weighted errors, that of the posture included."""
    steps: Array
    """`[*batch]` integers: evaluations of the targets, over all starts."""

    @property
    def reached(self) -> Array:
        """`[*batch]`: whether every target is met to the tolerance."""
        return self.status == IKStatus.REACHED


class _Search(NamedTuple):
    """The state of the loop; every array begins with the batch axes."""

    q: Array
    residual: Array
    jacobian: Array
    cost: Array
    error: Array
    multiple: Array
    status: Array
    """-1 while it goes on."""
    slow: Array
    start: Array
    """The number of the start."""
    tried: Array
    """Steps from this start."""
    steps: Array
    best_q: Array
    best_cost: Array
    best_error: Array


def inverse_kinematics(
    model: Model,
    targets: FrameTarget | Sequence[FrameTarget],
    q0: Configuration,
    *,
    restarts: Configuration | None = None,
    posture: Configuration | None = None,
    regularization: Any = 0.0,
    tolerance: float | None = None,
    max_iterations: int = 100,
) -> IKSolution:
    """Configurations within the limits of the joints in which frames are where `targets` say.

    Minimizes the sum of squared weighted errors of all targets, plus `regularization` times the squared distance from
    `posture`, for each element of the batch by itself: what has converged does not change any more, whatever the others
    do. Limits are those of coordinates (`Model.position_lower`, `position_upper`); a joint that mimics another follows
    it, and its own limits are those of the joint that it follows.

    **Arguments**

    - `targets`: one or several; the batch axes of all arrays broadcast.
    - `q0` `[*batch, nq]`: where the search starts; coordinates beyond their limits are moved to them.
    - `restarts` `[n, *batch, nq]`: other starts, taken in turn by the elements that have not reached their targets, as
      `model.random_configuration(key, (n, *batch))` gives them. A single search from a distant start ends in a local
      minimum now and then; one along a trajectory, from its neighbor's solution, rarely does.
    - `posture` `[*batch, nq]` (`q0` unless given) and `regularization`, a number or `[*batch]`, 1/rad^2 or 1/m^2: what
      decides among many solutions. With it errors stay that a following search without it, from its result, removes.
    - `tolerance`: the largest error, m and rad, with which a target counts as reached: 1e-8 in double precision and
      1e-5 in single unless given. A search ends with a step smaller than it, or that promises to lower the cost by less
      than the fraction 3e-13, 3e-6 in single precision.
    - `max_iterations` from each start.

    **Returns** `IKSolution`; `status` says of each element how its search ended (`IKStatus`). Where no start leads to
    the targets, `q` is the best of what they led to.

    Differentiable, forward and reverse, with respect to the targets, the posture and the arrays of the model, with the
    start held fixed: by the least change of `q` that keeps the linearized errors as they are, with coordinates at their
    limits staying there. Exact where the targets are reached (of the solutions of a redundant robot, the nearest), and
    of Gauss and Newton's approximation elsewhere.

    **Raises** `UnknownNameError` for a frame; `ModelError` for a frame fixed in the world, a target without position
    and rotation, or options that have no meaning; `ShapeError` for shapes.
    """
    targets = (targets,) if isinstance(targets, FrameTarget) else tuple(targets)
    _check(model, targets, tolerance, max_iterations)
    if posture is None:
        posture = q0
    if isinstance(regularization, int | float) and regularization == 0:
        regularization = None
    return _solve(
        model, targets, q0, restarts, posture, regularization, tolerance=tolerance, max_iterations=max_iterations
    )


def _check(model: Model, targets: tuple[FrameTarget, ...], tolerance: float | None, max_iterations: int) -> None:
    if not targets:
        raise ModelError("no targets are given: pass at least one FrameTarget")
    for target in targets:
        if not isinstance(target, FrameTarget):
            raise ModelError(f"a target is a {type(target).__name__}; pass FrameTarget(frame, position, rotation)")
        if model.topology.frame_bodies[model.topology.frame(target.frame)] < 0:
            raise ModelError(f"frame {target.frame!r} is fixed in the world: no configuration moves it to a target")
        if target.position is None and target.rotation is None:
            raise ModelError(
                f"the target of frame {target.frame!r} has neither position nor rotation: give one of them"
            )
        if target.position is not None:
            require_last_axes(jnp.asarray(target.position), (3,), f"position of {target.frame!r}", "a point in m")
        if target.rotation is not None:
            require_last_axes(jnp.asarray(target.rotation), (3, 3), f"rotation of {target.frame!r}", "a matrix")
    if tolerance is not None and not tolerance > 0:
        raise ModelError(f"tolerance is {tolerance}: it is the largest error in m and rad, and must be positive")
    if max_iterations < 1:
        raise ModelError(f"max_iterations is {max_iterations}: at least one step is needed")


@compiled("tolerance", "max_iterations")
def _solve(
    model: Model, targets, q0, restarts, posture, regularization, *, tolerance, max_iterations: int
) -> IKSolution:
    problem, q0, others = _problem(model, targets, q0, restarts, posture, regularization)
    if tolerance is None:
        tolerance = 1e-8 if q0.dtype == jnp.float64 else 1e-5
    # The search is not differentiated, but what it found, by what defines it.
    held = jax.tree.map(lax.stop_gradient, problem)
    search = _search(held, lax.stop_gradient(q0), others, tolerance, max_iterations)
    reached = search.status == IKStatus.REACHED
    q = jnp.where(reached[..., None], search.q, search.best_q)
    residual, jacobian, _ = _errors(held, q)
    free = _free(held.model, q, product("...mi,...m->...i", jacobian, residual))
    change = _following(_errors(problem, q)[0], jacobian * free[..., None, :])
    return IKSolution(
        model.integrate(q, change),
        search.status,
        jnp.where(reached, search.error, search.best_error),
        jnp.where(reached, search.cost, search.best_cost),
        search.steps,
    )


class _Problem(NamedTuple):
    """Arrays alone but for the names of frames; those of the targets and the posture broadcast with the batch."""

    model: Model
    targets: tuple[FrameTarget, ...]
    posture: Array
    weight: Array | None
    """Of the distance from the posture, `[*batch]`: the root of the regularization; None where there is none."""


def _problem(model: Model, targets, q0, restarts, posture, regularization):
    """The problem, the start with all batch axes, and the others `[n, *batch, nq]`."""
    for q in (q0, posture):
        rows(model, q=q)
    q0, posture = jnp.asarray(q0), jnp.asarray(posture)
    batches = {"q0": q0.shape[:-1], "posture": posture.shape[:-1], "model": model_batch(model)}
    for target in targets:
        for name, axes in (("position", 1), ("rotation", 2), ("position_weight", 0), ("rotation_weight", 0)):
            value = getattr(target, name)
            if value is not None:
                batches[f"{name} of {target.frame!r}"] = jnp.shape(value)[: jnp.ndim(value) - axes]
    if regularization is not None:
        batches["regularization"] = jnp.shape(regularization)
    if restarts is not None:
        restarts = jnp.asarray(restarts)
        require_last_axes(restarts, (model.nq,), "restarts", "configurations [n, *batch, nq]")
        if restarts.ndim < 2:
            raise ShapeError(f"restarts has shape {restarts.shape}, but [n, *batch, {model.nq}] is needed")
        batches["restarts, but for its first axis,"] = restarts.shape[1:-1]
    batch = broadcast_batches(batches)
    dtype = jnp.result_type(model.dtype, q0)
    if restarts is not None:
        missing = len(batch) - (restarts.ndim - 2)
        restarts = restarts.astype(dtype).reshape((len(restarts),) + (1,) * missing + restarts.shape[1:])
        restarts = lax.stop_gradient(jnp.broadcast_to(restarts, (len(restarts), *batch, model.nq)))
    targets, posture = jax.tree.map(lambda x: jnp.asarray(x, dtype), (targets, posture))
    weight = None
    if regularization is not None:
        weight = jnp.sqrt(jnp.broadcast_to(jnp.asarray(regularization, dtype), batch))
    return _Problem(model, targets, posture, weight), jnp.broadcast_to(q0.astype(dtype), (*batch, model.nq)), restarts


def _errors(problem: _Problem, q) -> tuple[Array, Array, Array]:
    """At `q` `[*batch, nq]`: the weighted errors `[*batch, m]`, their Jacobian `[*batch, m, nv]`, and the largest error
    of a target `[*batch]`."""
    model, batch = problem.model, q.shape[:-1]
    poses, jacobians = {}, {}
    for name in dict.fromkeys(target.frame for target in problem.targets):
        poses[name], jacobians[name] = frame_pose(model, q, name), frame_jacobian(model, q, name)
    residuals, matrices, sizes = [], [], []

    def add(error, jacobian, weight):
        sizes.append(jnp.sqrt((error * error).sum(axis=-1)))
        residuals.append(error * weight[..., None])
        matrices.append(jacobian * weight[..., None, None])

    for target in problem.targets:
        pose, J = poses[target.frame], jacobians[target.frame]
        if target.position is not None:
            add(pose.translation - target.position, J[..., :3, :], target.position_weight)
        if target.rotation is not None:
            # The rotation vector r, in world axes, from the target to the frame; its rate is V(r)^-1 w.
            r = so3_log(Mat3.from_array(pose.rotation).compose(Mat3.from_array(target.rotation).T))
            w = Vec3(J[..., 3, :], J[..., 4, :], J[..., 5, :])
            rate = so3_left_jacobian_solve(Vec3(*(c[..., None] for c in (r.x, r.y, r.z))), w)
            add(r.to_array(), rate.to_array(axis=-2), target.rotation_weight)
    size = jnp.broadcast_to(jnp.stack(jnp.broadcast_arrays(*sizes)).max(axis=0), batch)
    if problem.weight is not None:
        residuals.append(problem.weight[..., None] * model.difference(problem.posture, q))
        matrices.append(problem.weight[..., None, None] * _difference_jacobian(model, problem.posture, q))
    residual = jnp.concatenate([jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in residuals], axis=-1)
    jacobian = jnp.concatenate([jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in matrices], axis=-2)
    return residual, jacobian, size


def _difference_jacobian(model: Model, posture, q):
    """`[*batch, nv, nv]`: the derivative of `model.difference(posture, q)` by the motion of `q`."""
    eye = jnp.eye(model.nv, dtype=q.dtype)
    if model.nq == model.nv:
        return eye

    def along(direction):
        zero = jnp.zeros((*q.shape[:-1], model.nv), q.dtype)
        direction = jnp.broadcast_to(direction, zero.shape)
        return jax.jvp(lambda d: model.difference(posture, model.integrate(q, d)), (zero,), (direction,))[1]

    return jax.vmap(along, out_axes=-1)(eye)


def _free(model: Model, q, gradient):
    """`[*batch, nv]`, 1 or 0: whether a coordinate may go down the gradient, or is at a limit that forbids it."""
    kinds, at_q, at_v = model.topology.blocks
    own = np.isin(kinds, list("RPH"))
    at_q, at_v = at_q[own], at_v[own]
    lower, upper = model.position_lower[..., at_q], model.position_upper[..., at_q]
    x, g = q[..., at_q], gradient[..., at_v]
    held = ((x <= lower) & (g > 0)) | ((x >= upper) & (g < 0))
    return jnp.ones_like(gradient).at[..., at_v].set(jnp.where(held, 0, jnp.ones((), q.dtype)))


def _step(search: _Search, free):
    """The damped step of Gauss and Newton for the free coordinates `[*batch, nv]`, and by how much the cost should
    fall, `[*batch]`."""
    J = search.jacobian * free[..., None, :]
    H = product("...mi,...mj->...ij", J, J)
    n, trace = H.shape[-1], jnp.trace(H, axis1=-2, axis2=-1)
    # The least damping keeps a redundant robot's matrix positive definite.
    least = jnp.finfo(H.dtype).eps ** 0.75 * trace + jnp.finfo(H.dtype).tiny
    damping = search.multiple * search.cost + least
    L = jnp.linalg.cholesky(H + damping[..., None, None] * jnp.eye(n, dtype=H.dtype))
    g = product("...mi,...m->...i", J, search.residual)
    step = -jax.scipy.linalg.cho_solve((L, True), g[..., None])[..., 0]
    return step, 0.5 * (step * (damping[..., None] * step - g)).sum(axis=-1)


def _search(problem: _Problem, q0, others, tolerance: float, max_iterations: int) -> _Search:
    model, batch, dtype = problem.model, q0.shape[:-1], q0.dtype
    lower, upper = (jnp.asarray(x, dtype) for x in (model.position_lower, model.position_upper))
    infinite, none = jnp.full(batch, jnp.inf, dtype), jnp.zeros(batch, int)
    residual, jacobian, _ = jax.tree.map(
        lambda x: jnp.zeros(x.shape, dtype), jax.eval_shape(lambda q: _errors(problem, q), q0)
    )
    q0 = jnp.clip(q0, lower, upper)
    # An infinite cost stands for a start that has not been evaluated yet.
    least = float(jnp.finfo(dtype).eps) ** 0.8
    search = _Search(
        q0, residual, jacobian, infinite, infinite, jnp.full(batch, _FIRST_MULTIPLE, dtype), none - 1, none, none, none,
        none, q0, infinite, infinite,
    )  # fmt: skip

    def going(search: _Search):
        return (search.status < 0).any()

    def advance(search: _Search) -> _Search:
        fresh = jnp.isinf(search.cost)
        gradient = product("...mi,...m->...i", search.jacobian, search.residual)
        step, promised = _step(search, _free(model, search.q, gradient))
        step = jnp.where((fresh | (search.status >= 0))[..., None], 0, step)
        q = jnp.clip(model.integrate(search.q, step), lower, upper)
        residual, jacobian, error = _errors(problem, q)
        cost = 0.5 * (residual * residual).sum(axis=-1)
        taken = cost < search.cost
        kept = (search.cost - cost) / promised
        factor = jnp.where(~taken | (kept < _LITTLE), _GROW, jnp.where(kept > _MOST, _SHRINK, 1.0))
        slow = taken & ~fresh & (cost > (1 - _SLOW) * search.cost)
        tried = search.tried + 1
        now = search._replace(
            q=_where(taken, q, search.q),
            residual=_where(taken, residual, search.residual),
            jacobian=_where(taken, jacobian, search.jacobian),
            cost=_where(taken, cost, search.cost),
            error=_where(taken, error, search.error),
            multiple=jnp.where(fresh, search.multiple, search.multiple * factor.astype(dtype)),
            slow=jnp.where(slow, search.slow + 1, jnp.where(taken, 0, search.slow)),
            tried=tried,
            steps=search.steps + 1,
        )
        best = taken & (cost < search.best_cost)
        now = now._replace(
            best_q=_where(best, now.q, search.best_q),
            best_cost=_where(best, now.cost, search.best_cost),
            best_error=_where(best, now.error, search.best_error),
        )
        small = (jnp.abs(step).max(axis=-1) <= tolerance) | (promised <= least * search.cost)
        small = small & ~fresh
        status = jnp.select(
            [now.error <= tolerance, fresh & ~jnp.isfinite(cost), small, tried >= max_iterations],
            [jnp.full(batch, end) for end in _ENDS],
            search.status,
        )
        if others is not None and len(others):
            more = search.start < len(others)
            again = more & (status != IKStatus.REACHED) & ((status >= 0) | (now.slow >= _PATIENCE))
            following = jnp.take_along_axis(
                others, jnp.minimum(search.start, len(others) - 1)[None, ..., None], axis=0
            )[0]
            now = now._replace(
                q=_where(again, jnp.clip(following, lower, upper), now.q),
                cost=_where(again, infinite, now.cost),
                multiple=_where(again, jnp.full(batch, _FIRST_MULTIPLE, dtype), now.multiple),
                slow=_where(again, none, now.slow),
                start=search.start + again,
                tried=_where(again, none, now.tried),
            )
            status = jnp.where(again, -1, status)
        return jax.tree.map(lambda x, y: _where(search.status < 0, x, y), now._replace(status=status), search)

    return lax.while_loop(going, advance, search)


def _where(condition, x, y):
    """By element of the batch, `[*batch, ...]`."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim)), x, y)


@jax.custom_jvp
def _following(residual, jacobian):
    """Zero, `[*batch, nv]`, that changes with the errors by the least motion that undoes their change."""
    return jnp.zeros((*jacobian.shape[:-2], jacobian.shape[-1]), jacobian.dtype)


@_following.defjvp
def _following_jvp(primals, tangents):
    residual, jacobian = primals
    cutoff = float(jnp.finfo(jacobian.dtype).eps) ** 0.5
    inverse = jnp.linalg.pinv(jacobian, rtol=cutoff)
    return _following(residual, jacobian), -product("...im,...m->...i", inverse, tangents[0])
