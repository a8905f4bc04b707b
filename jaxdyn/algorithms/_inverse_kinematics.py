"""Inverse kinematics by least squares on the configuration manifold.

Levenberg-Marquardt steps in the tangent space, within the joints' limits, for a whole batch at once. The damping is a
multiple of the cost: convergence near a solution is quadratic, and singular targets do no harm (Sugihara,
Solvability-unconcerned inverse kinematics by the Levenberg-Marquardt method, IEEE T-RO 2011).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn import _printing as printing
from jaxdyn._compile import compiled
from jaxdyn._errors import (
    ModelError,
    ShapeError,
    broadcast_batches,
    naming_arguments,
    require_last_axes,
    require_positive,
    require_positive_integer,
)
from jaxdyn._least_squares import Damping, Iterate, damped_step, select
from jaxdyn._status import Status
from jaxdyn._types import Array, Configuration, Float
from jaxdyn.algorithms._kinematics import frame_jacobian, frame_pose
from jaxdyn.algorithms.recursions import check_arrays, model_batch, product
from jaxdyn.model import Model
from jaxdyn.spatial import SE3, Mat3, Vec3, so3_left_jacobian_solve, so3_log

# The damping multiplies the cost, which spans 16 orders of magnitude on the way to a target: it has no bounds.
_DAMPING = Damping()
# A search that lowers its cost by less than `_SLOW` of it in `_PATIENCE` steps in a row gives way to the next start.
_SLOW, _PATIENCE = 0.01, 5


class FrameTarget(eqx.Module):
    """A target pose of a frame: its `position`, its `rotation`, or both. Arrays may carry batch axes.

    The cost has `position_weight^2` for a square meter and `rotation_weight^2` for a square radian.
    """

    frame: str = eqx.field(static=True)
    position: Float[Array | np.ndarray, "*batch 3"] | None = None
    """Position of the frame's origin in the world, m."""
    rotation: Float[Array | np.ndarray, "*batch 3 3"] | None = None
    """Rotation matrix from the frame's axes to the world's."""
    position_weight: Float[Array, "*batch"] | float = 1.0
    rotation_weight: Float[Array, "*batch"] | float = 1.0

    @staticmethod
    def of_pose(frame: str, pose: SE3, position_weight: Any = 1.0, rotation_weight: Any = 1.0) -> FrameTarget:
        """Return the target for a whole pose."""
        return FrameTarget(frame, pose.translation, pose.rotation, position_weight, rotation_weight)


class IKSolution(NamedTuple):
    """The result of `inverse_kinematics`, for each element of the batch."""

    q: Float[Array, "*batch nq"]
    status: Array
    """`[*batch]` integers of `Status`, for the last start: `CONVERGED` where every target is met to the tolerance;
    `STALLED` at a least cost that leaves errors (targets that are out of reach, or in conflict with each other, with
    limits or the posture, or a local minimum); `OUT_OF_ITERATIONS`, also for targets far out of reach, toward which
    convergence is slow; `DIVERGED` where a target or a start is not finite."""
    error: Float[Array, "*batch"]
    """Largest error over the targets: m for positions, rad for rotations."""
    cost: Float[Array, "*batch"]
    """Half of the sum of the squared weighted errors, including the posture's."""
    steps: Array
    """`[*batch]` integers: evaluations of the targets, over all starts."""

    @property
    def reached(self) -> Array:
        """`[*batch]`: whether every target is met to the tolerance."""
        return self.status == Status.CONVERGED

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        facts = {"error": f"{printing.number(self.error)} (m or rad)", "cost": printing.number(self.cost)}
        facts["steps"] = printing.number(self.steps)
        return printing.status(self.status), facts | ({} if np.ndim(self.status) else {"q": printing.numbers(self.q)})

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@naming_arguments
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
    """Return configurations within the joints' limits that bring frames to their `targets`.

    Minimizes the sum of squared weighted errors of all targets, plus `regularization` times the squared distance from
    `posture`, for each element of the batch independently. Limits are those of coordinates (`Model.position_lower`,
    `position_upper`); a joint that mimics another follows it and has no limits of its own. Closed
    loops are not heeded: `project_configuration` closes them.

    **Arguments**

    - `targets`: one or several; the batch axes of all arrays broadcast.
    - `q0` `[*batch, nq]`: start of the search; coordinates beyond their limits are moved to them.
    - `restarts` `[n, *batch, nq]`: more starts, such as `model.random_configuration(key, (n, *batch))`, which elements
      that have not reached their targets try in turn. A single search from a distant start sometimes ends in a local
      minimum; one along a trajectory, from its neighbor's solution, rarely does.
    - `posture` `[*batch, nq]` (`q0` by default) and `regularization`, a number or `[*batch]`, 1/rad^2 or 1/m^2: select
      among many solutions. Regularization leaves errors, which a second search without it, from its result, removes.
    - `tolerance`: the largest error, m and rad, with which a target counts as reached; by default 1e-8 in double
      precision and 1e-5 in single. A search also ends with a step smaller than it, or one that promises to lower the
      cost by less than the fraction 3e-13 (3e-6 in single precision).
    - `max_iterations`: steps from each start.

    **Returns** `IKSolution`. Where no start leads to the targets, `q` is the best that was found.

    Differentiable, forward and reverse, with respect to the targets, the posture and the arrays of the model, with the
    start held fixed: the derivative is the smallest change of `q` that keeps the linearized errors, with coordinates at
    their limits staying there. It is exact where the targets are reached (the nearest solution of a redundant robot),
    and a Gauss-Newton approximation elsewhere.

    **Raises** `UnknownNameError` for a frame; `ModelError` for a frame fixed in the world, a target without position
    and rotation, or options out of range; `ShapeError` for shapes.
    """
    targets = (targets,) if isinstance(targets, FrameTarget) else tuple(targets)
    _require_targets(model, targets)
    require_positive_integer(max_iterations, "max_iterations")
    if tolerance is not None:
        require_positive(tolerance, "tolerance (m and rad)")
    if isinstance(regularization, int | float) and regularization == 0:
        regularization = None
    posture = q0 if posture is None else posture
    restarts = np.zeros((0, model.nq)) if restarts is None else restarts
    return _solve(model, targets, q0, restarts, posture, regularization, tolerance, max_iterations)


def _require_targets(model: Model, targets: tuple[FrameTarget, ...]) -> None:
    if not targets:
        raise ModelError("no targets are given: pass at least one FrameTarget")
    for target in targets:
        if not isinstance(target, FrameTarget):
            raise ModelError(f"a target is a {type(target).__name__}; pass FrameTarget(frame, position, rotation)")
        name = repr(target.frame)
        if model.topology.frame_bodies[model.topology.frame(target.frame)] < 0:
            raise ModelError(f"frame {name} is fixed in the world: no configuration moves it to a target")
        if target.position is None and target.rotation is None:
            raise ModelError(f"the target of frame {name} has neither position nor rotation: give one of them")
        if target.position is not None:
            require_last_axes(jnp.asarray(target.position), (3,), f"position of {name}", "a point in m")
        if target.rotation is not None:
            require_last_axes(jnp.asarray(target.rotation), (3, 3), f"rotation of {name}", "a matrix")


@compiled("tolerance", "max_iterations")
def _solve(
    model: Model, targets, q0, restarts, posture, regularization, tolerance: float | None, max_iterations: int
) -> IKSolution:
    problem, q0, restarts = _problem(model, targets, q0, restarts, posture, regularization)
    if tolerance is None:
        tolerance = 1e-8 if q0.dtype == jnp.float64 else 1e-5
    # The search is not differentiated; its result is, by the equations that it solves.
    fixed = jax.tree.map(lax.stop_gradient, problem)
    search = _search(fixed, lax.stop_gradient(q0), restarts, tolerance, max_iterations)
    reached = search.status == Status.CONVERGED
    q, cost, error = select(reached, (search.q, search.cost, search.error), search.best)
    residual, jacobian, _ = _errors(fixed, q)
    free = _free(fixed.model, q, product("...mi,...m->...i", jacobian, residual))
    change = _implicit_motion(_errors(problem, q)[0], jacobian * free[..., None, :])
    return IKSolution(model.integrate(q, change), search.status, error, cost, search.steps)


class _Problem(NamedTuple):
    """The weighted errors to minimize. The arrays of the targets and the posture broadcast with the batch."""

    model: Model
    targets: tuple[FrameTarget, ...]
    posture: Array
    weight: Array | None
    """`[*batch]`: root of the regularization, None without one."""


def _problem(model: Model, targets, q0, restarts, posture, regularization):
    """Return the problem, the start with all batch axes, and the restarts `[n, *batch, nq]`."""
    for q in (q0, posture):
        check_arrays(model, {"q": (Configuration, q)})
    q0, posture = jnp.asarray(q0), jnp.asarray(posture)
    batches = {"q0": q0.shape[:-1], "posture": posture.shape[:-1], "model": model_batch(model)}
    for target in targets:
        for name, axes in (("position", 1), ("rotation", 2), ("position_weight", 0), ("rotation_weight", 0)):
            value = getattr(target, name)
            if value is not None:
                batches[f"{name} of {target.frame!r}"] = jnp.shape(value)[: jnp.ndim(value) - axes]
    if regularization is not None:
        batches["regularization"] = jnp.shape(regularization)
    restarts = jnp.asarray(restarts)
    require_last_axes(restarts, (model.nq,), "restarts", "configurations [n, *batch, nq]")
    if restarts.ndim < 2:
        raise ShapeError(f"restarts has shape {restarts.shape}, but [n, *batch, {model.nq}] is needed")
    batches["restarts, but for its first axis,"] = restarts.shape[1:-1]
    batch = broadcast_batches(batches)
    dtype = jnp.result_type(model.dtype, q0)
    missing = len(batch) - (restarts.ndim - 2)
    restarts = restarts.astype(dtype).reshape((len(restarts),) + (1,) * missing + restarts.shape[1:])
    restarts = lax.stop_gradient(jnp.broadcast_to(restarts, (len(restarts), *batch, model.nq)))
    targets, posture = jax.tree.map(lambda x: jnp.asarray(x, dtype), (targets, posture))
    weight = None
    if regularization is not None:
        weight = jnp.sqrt(jnp.broadcast_to(jnp.asarray(regularization, dtype), batch))
    return _Problem(model, targets, posture, weight), jnp.broadcast_to(q0.astype(dtype), (*batch, model.nq)), restarts


def _errors(problem: _Problem, q) -> tuple[Array, Array, Array]:
    """Return the weighted errors at `q` `[*batch, m]`, their Jacobian `[*batch, m, nv]`, and the largest error of a
    target `[*batch]`."""
    model, batch = problem.model, q.shape[:-1]
    frames = {x.frame: (frame_pose(model, q, x.frame), frame_jacobian(model, q, x.frame)) for x in problem.targets}
    # Errors, their Jacobians, and their weights.
    terms: list[tuple[Any, Any, Any]] = []
    for target in problem.targets:
        pose, J = frames[target.frame]
        if target.position is not None:
            terms.append((pose.translation - target.position, J[..., :3, :], target.position_weight))
        if target.rotation is not None:
            # The rotation vector r, in world axes, from the target to the frame; its rate is V(r)^-1 w.
            r = so3_log(Mat3.from_array(pose.rotation).compose(Mat3.from_array(target.rotation).T))
            w = Vec3(J[..., 3, :], J[..., 4, :], J[..., 5, :])
            rate = so3_left_jacobian_solve(jax.tree.map(lambda c: c[..., None], r), w)
            terms.append((r.to_array(), rate.to_array(axis=-2), target.rotation_weight))
    sizes = [jnp.sqrt((error * error).sum(axis=-1)) for error, _, _ in terms]
    size = jnp.broadcast_to(jnp.stack(jnp.broadcast_arrays(*sizes)).max(axis=0), batch)
    if problem.weight is not None:
        away = model.difference(problem.posture, q)
        terms.append((away, model.difference_jacobians(problem.posture, q)[1], problem.weight))
    weighted = [(e * weight[..., None], J * weight[..., None, None]) for e, J, weight in terms]
    residual = jnp.concatenate([jnp.broadcast_to(e, (*batch, e.shape[-1])) for e, _ in weighted], axis=-1)
    jacobian = jnp.concatenate([jnp.broadcast_to(J, (*batch, *J.shape[-2:])) for _, J in weighted], axis=-2)
    return residual, jacobian, size


def _free(model: Model, q, gradient):
    """Return 1 where a coordinate may go down the gradient and 0 where a limit blocks it, `[*batch, nv]`."""
    at_q, at_v = model.topology.scalar_coordinates
    lower, upper = model.position_lower[..., at_q], model.position_upper[..., at_q]
    x, g = q[..., at_q], gradient[..., at_v]
    held = ((x <= lower) & (g > 0)) | ((x >= upper) & (g < 0))
    return jnp.ones_like(gradient).at[..., at_v].set(jnp.where(held, 0, jnp.ones((), q.dtype)))


class _StartSearch(Iterate):
    """The search from one start, and the best point over all starts so far."""

    q: Array
    residual: Array
    jacobian: Array
    error: Array
    slow: Array
    """Steps in a row that hardly lowered the cost."""
    start: Array
    """Number of the start."""
    steps: Array
    """Evaluations over all starts; `iteration` counts those of this start."""
    best: tuple[Array, Array, Array]
    """The point with the least cost over all starts: `q`, cost, error."""


def _step(search: _StartSearch, free, multiple):
    """Return the damped Gauss-Newton step of the free coordinates `[*batch, nv]`, and the decrease of the cost that it
    promises `[*batch]`."""
    J = search.jacobian * free[..., None, :]
    H = product("...mi,...mj->...ij", J, J)
    n, trace = H.shape[-1], jnp.trace(H, axis1=-2, axis2=-1)
    # The least damping keeps a redundant robot's matrix positive definite.
    least = jnp.finfo(H.dtype).eps ** 0.75 * trace + jnp.finfo(H.dtype).tiny
    damping = multiple * jnp.where(jnp.isinf(search.cost), 0, search.cost) + least
    L = jnp.linalg.cholesky(H + damping[..., None, None] * jnp.eye(n, dtype=H.dtype))
    g = product("...mi,...m->...i", J, search.residual)
    step = -jax.scipy.linalg.cho_solve((L, True), g[..., None])[..., 0]
    return step, 0.5 * (step * (damping[..., None] * step - g)).sum(axis=-1)


def _search(problem: _Problem, q0, restarts, tolerance: float, max_iterations: int) -> _StartSearch:
    model, batch, dtype = problem.model, q0.shape[:-1], q0.dtype
    lower, upper = (jnp.asarray(x, dtype) for x in (model.position_lower, model.position_upper))
    relative = float(jnp.finfo(dtype).eps) ** 0.8

    def advance(search: _StartSearch) -> _StartSearch:
        gradient = product("...mi,...m->...i", search.jacobian, search.residual)
        free = _free(model, search.q, gradient)
        resting = jnp.isinf(search.cost) | (search.status != Status.RUNNING)

        def trial(multiple) -> _StartSearch:
            step, promised = _step(search, free, multiple)
            step = jnp.where(resting[..., None], 0, step)
            # A step below the tolerance promises nothing.
            promised = jnp.where(jnp.abs(step).max(axis=-1) <= tolerance, 0, promised)
            q = jnp.clip(model.integrate(search.q, step), lower, upper)
            residual, jacobian, error = _errors(problem, q)
            cost = 0.5 * (residual * residual).sum(axis=-1)
            return dataclasses.replace(
                search, q=q, residual=residual, jacobian=jacobian, error=error, cost=cost, expected=promised
            )

        after = damped_step(search, trial, _DAMPING, relative=relative, max_iterations=max_iterations)
        # A stationary point is a solution only where the targets are reached.
        status = jnp.where(after.status == Status.CONVERGED, int(Status.STALLED), after.status)
        status = jnp.where(after.error <= tolerance, int(Status.CONVERGED), status)
        slow = ~jnp.isinf(search.cost) & (after.cost > (1 - _SLOW) * search.cost)
        after = dataclasses.replace(
            after,
            status=status,
            slow=jnp.where(after.cost < search.cost, jnp.where(slow, search.slow + 1, 0), search.slow),
            steps=search.steps + (search.status == Status.RUNNING),
            best=select(after.cost < search.best[1], (after.q, after.cost, after.error), search.best),
        )
        return _restart(after, restarts, lower, upper)

    residual, jacobian, _ = jax.eval_shape(lambda q: _errors(problem, q), q0)
    infinite, zero = jnp.full(batch, jnp.inf, dtype), jnp.zeros(batch, int)
    q0 = jnp.clip(q0, lower, upper)
    first = _StartSearch(
        cost=infinite,
        expected=infinite,
        damping=jnp.full(batch, _DAMPING.first, dtype),
        iteration=zero,
        status=jnp.full(batch, int(Status.RUNNING)),
        q=q0,
        residual=jnp.zeros(residual.shape, dtype),
        jacobian=jnp.zeros(jacobian.shape, dtype),
        error=infinite,
        slow=zero,
        start=zero,
        steps=zero,
        best=(q0, infinite, infinite),
    )
    return lax.while_loop(lambda search: (search.status == Status.RUNNING).any(), advance, first)


def _restart(search: _StartSearch, restarts, lower, upper) -> _StartSearch:
    """Return the search from the next start, for the elements whose present search ended or slowed down."""
    if not len(restarts):
        return search
    again = (search.start < len(restarts)) & (search.status != Status.CONVERGED)
    again &= (search.status != Status.RUNNING) | (search.slow >= _PATIENCE)
    number = jnp.minimum(search.start, len(restarts) - 1)[None, ..., None]
    q = jnp.clip(jnp.take_along_axis(restarts, number, axis=0)[0], lower, upper)
    begun = {"q": q, "cost": jnp.inf, "damping": _DAMPING.first, "iteration": 0, "slow": 0, "start": search.start + 1}
    begun["status"] = int(Status.RUNNING)
    return dataclasses.replace(search, **select(again, begun, {name: getattr(search, name) for name in begun}))


@jax.custom_jvp
def _implicit_motion(residual, jacobian):
    """Return 0, `[*batch, nv]`. Its derivative is the smallest joint motion that cancels a change of the errors."""
    return jnp.zeros((*jacobian.shape[:-2], jacobian.shape[-1]), jacobian.dtype)


@_implicit_motion.defjvp
def _implicit_motion_jvp(primals, tangents):
    residual, jacobian = primals
    cutoff = float(jnp.finfo(jacobian.dtype).eps) ** 0.5
    inverse = jnp.linalg.pinv(jacobian, rtol=cutoff)
    return _implicit_motion(residual, jacobian), -product("...im,...m->...i", inverse, tangents[0])
