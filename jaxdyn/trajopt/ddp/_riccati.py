"""The backward pass: a Riccati recursion from the last stage to the first, and with bounds on controls several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._batches import one_by_one_on_cpu
from jaxdyn.trajopt.ddp._expansion import Expansion, StartUnknowns
from jaxdyn.trajopt.problem import Quadratic

SWEEPS = 20
"""Most changes of the active set in one backward pass."""

REACH = 2
"""Number of steps over which the cost's curvature by the next states gives a unit to components of the state that have
none: forces move velocities, which move positions."""


class AffinePolicy(NamedTuple):
    """The policy `du = alpha k + K dx`, and the value function of each stage."""

    k: Float[Array, "horizon nu"]
    K: Float[Array, "horizon nu ndx"]
    Vx: Float[Array, "stages ndx"]
    Vxx: Float[Array, "stages ndx ndx"]
    Qu: Float[Array, "horizon nu"]
    Qux: Float[Array, "horizon nu ndx"]
    Quu: Float[Array, "horizon nu nu"]
    slope: Float[Array, ""]
    """The expected decrease is `alpha slope + alpha^2 curvature / 2`, without what gaps add to it."""
    curvature: Float[Array, ""]
    undamped: Float[Array, ""]
    """Smallest part of a curvature in the free controls that is not regularization."""
    ok: Array
    """Whether every matrix was positive definite."""
    start: Any = None
    """Displacement `[ndx]` of the initial state by the whole step; None where it is fixed."""

    @staticmethod
    def zeros(horizon: int, ndx: int, nu: int, dtype, free_start: bool) -> "AffinePolicy":
        """A policy of zeros that is not `ok`, to begin a loop with."""
        T, n, m = horizon, ndx, nu
        value, Q = [(T + 1, n), (T + 1, n, n)], [(T, m), (T, m, n), (T, m, m)]
        shapes = [(T, m), (T, m, n), *value, *Q, (), (), ()]
        start = jnp.zeros(n, dtype) if free_start else None
        return AffinePolicy(*(jnp.zeros(shape, dtype) for shape in shapes), ok=jnp.array(False), start=start)


class CurvatureShift(NamedTuple):
    """A regularization with units of its own for states and controls: what is added to the diagonals of the value
    functions and of the curvature in the controls."""

    x: Float[Array, ""]
    u: Float[Array, ""]


def units_of_regularization(e: Expansion, scale) -> CurvatureShift:
    """The units of a regularization of states and of controls, so that it means the same in all units of the problem:
    geometric means, over the components, of the largest curvature of the costs by each, or by what it moves."""

    def curvature(matrices):
        return jnp.abs(jnp.diagonal(matrices, axis1=-2, axis2=-1))

    def unit(curvatures, otherwise):
        has = curvatures > 0
        total = jnp.log10(jnp.where(has, curvatures, 1.0)).sum()
        # Orders of magnitude, as the steps by which a regularization changes.
        return jnp.where(has.any(), 10 ** jnp.round(total / jnp.maximum(has.sum(), 1)), otherwise)

    x = jnp.maximum(curvature(e.stage.xx).max(axis=0), curvature(e.terminal.xx))
    for _ in range(REACH):
        x = jnp.where(x > 0, x, (x @ e.A**2).max(axis=0))
    u = curvature(e.stage.uu).max(axis=0)
    u = jnp.where(u > 0, u, (x @ e.B**2).max(axis=0))
    # A cost without curvature has its own scale. States that are no unknowns need no curvature.
    own = jnp.where(scale > 0, scale, 1.0)
    return CurvatureShift(unit(x, 0.0 if e.start is None else own), unit(u, own))


class HeldControls(NamedTuple):
    """The controls that are held at a fixed step."""

    free: Float[Array, "*horizon nu"]
    """1 for free controls, 0 for held ones."""
    step: Float[Array, "*horizon nu"]
    """Step of the held controls, 0 for the free ones."""


class StagePolicy(NamedTuple):
    """The policy of a stage, or of all, and the value function before the stage's own gap."""

    k: Float[Array, "*horizon nu"]
    K: Float[Array, "*horizon nu ndx"]
    Vx: Float[Array, "*stages ndx"]
    Vxx: Float[Array, "*stages ndx ndx"]
    Qu: Float[Array, "*horizon nu"]
    Qux: Float[Array, "*horizon nu ndx"]
    Quu: Float[Array, "*horizon nu nu"]

    def with_end(self, Vx, Vxx) -> Self:
        """The policies of all stages with the value function at the end."""
        return self._replace(
            Vx=jnp.concatenate([self.Vx, Vx[None]]),
            Vxx=jnp.concatenate([self.Vxx, Vxx[None]]),
        )


def free_block(H, free):
    """The matrix `H`, with rows and columns of the identity where `free` is 0."""
    both = free[:, None] * free[None, :]
    return H * both + jnp.diag(1 - free)


def eliminate_controls(A, B, gap, l: Quadratic, Vx, Vxx, held: HeldControls | None = None) -> StagePolicy:
    """Eliminate the controls of a stage with the dynamics `A`, `B` and the derivatives `l` of the cost, where the value
    function after the step is about the next state, a `gap` away from where the step ends (Mastalli et al., Crocoddyl,
    ICRA 2020, equations 12-16). In few large products: the time of small ones goes into their calls."""
    n = len(Vx)
    M = jnp.concatenate([A, gap[:, None], B], axis=1)
    of_gap = jnp.arange(M.shape[1]) == n
    to_next = Vxx @ M + jnp.where(of_gap, Vx[:, None], 0.0)
    Q_x = jnp.concatenate([l.xx, l.x[:, None]], axis=1) + A.T @ to_next[:, : n + 1]
    Q_u = jnp.concatenate([l.ux, l.u[:, None], l.uu], axis=1) + B.T @ to_next
    slopes, Quu = Q_u[:, : n + 1], 0.5 * (Q_u[:, n + 1 :] + Q_u[:, n + 1 :].T)
    Qu, Qux, H = slopes[:, n], slopes[:, :n], Quu
    if held is not None:
        of_gap = of_gap[: n + 1]
        H = free_block(Quu, held.free)
        Q_x = Q_x + jnp.where(of_gap, (Qux.T @ held.step)[:, None], 0.0)
        slopes = held.free[:, None] * (slopes + jnp.where(of_gap, (Quu @ held.step)[:, None], 0.0))
    if len(Qu) > 1:
        root = jnp.linalg.cholesky(H, symmetrize_input=False)
        slopes = solve_triangular(root, slopes, lower=True)
        policy = solve_triangular(root, slopes, lower=True, trans=1)
    else:
        root = jnp.sqrt(jnp.where(H > 0, H, jnp.nan))
        slopes = slopes / root
        policy = slopes / root
    Q_x = Q_x - slopes[:, :n].T @ slopes
    k = -policy[:, n] if held is None else held.step - policy[:, n]
    return StagePolicy(k, -policy[:, :n], Q_x[:, n], 0.5 * (Q_x[:, :n] + Q_x[:, :n].T), Qu, Qux, Quu)


def _damped(e: Expansion, regularization) -> tuple[Expansion, CurvatureShift]:
    """The expansion with a regularization, a `CurvatureShift` or one number for both of its parts, and what it adds."""
    (_, n, m), dtype, l = e.B.shape, e.A.dtype, e.stage
    damping = (
        regularization if isinstance(regularization, CurvatureShift) else CurvatureShift(regularization, regularization)
    )
    xx, uu = (d * jnp.eye(size, dtype=dtype) for d, size in zip(damping, (n, m), strict=True))
    e = e._replace(stage=l._replace(xx=l.xx + xx, uu=l.uu + uu), terminal=e.terminal._replace(xx=e.terminal.xx + xx))
    return e, damping


def backward(e: Expansion, regularization, held: HeldControls | None = None) -> AffinePolicy:
    """The policy by the Riccati recursion with gaps.

    `regularization` is added to the diagonals of the value function and of the curvature in the controls: a
    `CurvatureShift`, or one number for both."""
    e, damping = _damped(e, regularization)
    # A single recursion is one native program.
    policies = one_by_one_on_cpu(_stage_policies, in_programs=True)(e, held)
    return _policy(e, policies, damping, held)


def _stage_policies(e: Expansion, held: HeldControls | None) -> StagePolicy:
    def step(value, stage):
        A, B, gap, l, held = stage
        Vx, Vxx = value
        policy = eliminate_controls(A, B, gap, l, Vx, Vxx, held)
        return (policy.Vx, policy.Vxx), policy

    # The recursion needs no costs, only their derivatives.
    stages, end = (e.A, e.B, e.gaps[1:], e.stage._replace(value=None), held), e.terminal
    _, policies = lax.scan(step, (end.x, end.xx), stages, reverse=True)
    return policies.with_end(end.x, end.xx)


def _policy(e: Expansion, s: StagePolicy, damping: CurvatureShift, held: HeldControls | None = None) -> AffinePolicy:
    """The policy of all stages, with the sums over them."""
    diagonal = jnp.diagonal(s.Quu, axis1=1, axis2=2)
    undamped = (diagonal - damping.u) / diagonal
    if held is not None:
        undamped = jnp.where(held.free > 0, undamped, 1.0)
    shift = (s.Vxx @ e.gaps[..., None])[..., 0]
    Vx = s.Vx + shift
    # Gaps add to the slope and curvature of the value function.
    slope = -(s.Qu * s.k).sum() - (Vx * e.gaps).sum()
    curvature = -(s.k * (s.Quu @ s.k[..., None])[..., 0]).sum() + (e.gaps * shift).sum()
    ok = jnp.isfinite(s.K).all() & jnp.isfinite(s.k).all() & jnp.isfinite(Vx).all()
    policy = AffinePolicy(*s._replace(Vx=Vx), slope, curvature, undamped.min(), ok)
    return policy if e.start is None else _with_start(policy, e.start, damping)


def start_curvature(policy: AffinePolicy, start: StartUnknowns) -> Float[Array, "unknowns unknowns"]:
    """The curvature of the cost to go by the unknowns of the initial state."""
    return start.directions.T @ policy.Vxx[0] @ start.directions + jnp.diag(start.curvature)


def _with_start(policy: AffinePolicy, start: StartUnknowns, damping: CurvatureShift) -> AffinePolicy:
    """The policy that also displaces the initial state to where the cost to go is least."""
    H, slopes = start_curvature(policy, start), policy.Vx[0] @ start.directions
    root = jnp.linalg.cholesky(H, symmetrize_input=False)
    step = -cho_solve((root, True), slopes)
    diagonal = jnp.diagonal(H)
    undamped = ((diagonal - damping.x * (start.directions**2).sum(axis=0)) / diagonal).min()
    return policy._replace(
        slope=policy.slope - slopes @ step,
        curvature=policy.curvature - step @ H @ step,
        undamped=jnp.minimum(policy.undamped, undamped),
        ok=policy.ok & jnp.isfinite(step).all(),
        start=start.directions @ step,
    )


def backward_in_box(
    e: Expansion,
    regularization,
    lower: Float[Array, "horizon nu"],
    upper: Float[Array, "horizon nu"],
) -> AffinePolicy:
    """`backward` with bounds on the step of the controls, at the states that the step reaches.

    Controls are held and freed by `backward_with_active_set`. Bounds at each state alone (Tassa, Mansard & Todorov,
    ICRA 2014) would ignore that the states before move, too. Only the curvature in free controls must be positive."""
    # Controls at a bound are held first; equal bounds leave no choice.
    start = (lower >= 0, (upper <= 0) & (lower < 0)), ()
    box = lower, upper
    return backward_with_active_set(lambda _: e, lambda _dxs, _dus, _: (), regularization, box, start)[0]


def backward_with_active_set(
    system: Callable, next_active: Callable, regularization, step_box, start: tuple[Any, Any], sweeps: int = SWEEPS
) -> tuple[AffinePolicy, Any, Array]:
    """The policy of a linear-quadratic problem with inequalities, the active set, and whether it has settled.

    A semismooth Newton method (Hintermüller, Ito & Kunisch, The primal-dual active set strategy as a semismooth Newton
    method, SIAM J. Optim. 13, 2002) on the whole horizon: controls that are held at a bound make the problem one
    without bounds; in its solution those that leave the box are held next, and those that the cost pulls inwards are
    freed, until nothing changes or `sweeps` sweeps are done.

    Where the motion is unstable, a control that is held moves all later states far, and sets in which all controls
    change at once may cycle. So where the changes are not fewer than ever before, only the controls of the first stage
    with a change are held or freed; the set of `next_active` always changes as a whole.

    - `system(active)`: the `Expansion` with the constraints of an active set, a tree of Booleans;
      `next_active(dxs, dus, active)`: the set after a solution.
    - `step_box`: the bounds `[horizon, nu]` of the step of the controls.
    - `start`: which controls are held at first, at a lower and at an upper bound, and the first active set."""
    lower, upper = step_box
    rounding = 10 * jnp.finfo(lower.dtype).eps * jnp.maximum(jnp.abs(lower), jnp.abs(upper))
    rounding = jnp.where(jnp.isfinite(rounding), rounding, 0.0)

    def sweep(state):
        ((low, high), active), _, _, sweeps_done, fewest = state
        e = system(active)
        free = ~(low | high)
        step = jnp.where(free, 0, jnp.where(low, lower, upper))
        policy = backward(e, regularization, HeldControls(free.astype(step.dtype), step))
        dxs, dus = linear_roll_out(e, policy)
        slopes = control_slopes(policy, dxs, dus)
        # A slope that is rounding frees no control: where curvatures are small, it would leave the box by much more.
        terms = control_slopes(*jax.tree.map(jnp.abs, (policy, dxs, dus)))
        nothing = 10 * jnp.finfo(terms.dtype).eps * terms
        next_low = jnp.where(free, dus < lower - rounding, low & (slopes >= -nothing))
        next_high = jnp.where(free, dus > upper + rounding, high & (slopes <= nothing))
        next_rows = next_active(dxs, dus, active)
        pairs = zip(jax.tree.leaves((next_low, next_high, next_rows)), jax.tree.leaves(state[0]), strict=True)
        changes = sum(((new != old).sum(dtype=jnp.int32) for new, old in pairs), jnp.zeros((), jnp.int32))
        changed = ((next_low != low) | (next_high != high)).any(axis=1)
        made = ((changes < fewest) | (jnp.arange(len(lower)) == jnp.argmax(changed)))[:, None]
        after = (jnp.where(made, next_low, low), jnp.where(made, next_high, high)), next_rows
        return after, policy, changes == 0, sweeps_done + 1, jnp.minimum(fewest, changes)

    e = jax.eval_shape(system, start[1])
    policy = AffinePolicy.zeros(len(lower), e.A.shape[-1], lower.shape[-1], lower.dtype, e.start is not None)
    policy = policy._replace(ok=jnp.array(True))
    zero, most = jnp.zeros((), jnp.int32), jnp.asarray(jnp.iinfo(jnp.int32).max)
    state = start, policy, jnp.array(False), zero, most
    (_, active), policy, settled, *_ = lax.while_loop(lambda s: ~s[2] & s[1].ok & (s[3] < sweeps), sweep, state)
    return policy, active, settled


def control_slopes(policy: AffinePolicy, dxs, dus) -> Float[Array, "horizon nu"]:
    """The derivatives of the cost to go by the controls, after displacements of states and controls."""
    return policy.Qu + (policy.Qux @ dxs[:-1, :, None] + policy.Quu @ dus[..., None])[..., 0]


def linear_roll_out(e: Expansion, policy: AffinePolicy, alpha=1.0, cut: tuple[Any, Any] | None = None):
    """The displacements of the states and the controls by a part `alpha` of the policy's step, by the linear dynamics.
    Controls are cut at the displacements `cut`, and those after them make up for it by feedback."""

    def step(dx, stage):
        A, B, gap, k, K, *bounds = stage
        du = alpha * k + K @ dx
        du = jnp.clip(du, *bounds) if bounds else du
        return A @ dx + B @ du + alpha * gap, (dx, du)

    bounds = (jnp.broadcast_to(bound, policy.k.shape) for bound in cut or ())
    first = e.gaps[0] if policy.start is None else e.gaps[0] + policy.start
    last, (dxs, dus) = lax.scan(step, alpha * first, (e.A, e.B, e.gaps[1:], policy.k, policy.K, *bounds))
    return jnp.concatenate([dxs, last[None]]), dus


def backward_associative(e: Expansion, regularization) -> AffinePolicy:
    """`backward` by an associative scan, whose depth grows with the logarithm of the horizon.

    Elements are conditional value functions `max_l -l^T C l / 2 + l^T (x_j - A x_i - b) + x_i^T J x_i / 2 - eta^T x_i`
    of two stages `i < j` (Särkkä & García-Fernández, Temporal parallelization of dynamic programming and linear
    quadratic control, IEEE TAC 2023, section IV). Each stage's own curvature in the controls must be positive definite.
    """
    e, damping = _damped(e, regularization)
    n = e.A.shape[-1]
    eye = jnp.eye(n, dtype=e.A.dtype)

    def element(A, B, l, gap):
        factor = jnp.linalg.cholesky(0.5 * (l.uu + l.uu.T))
        solved = cho_solve((factor, True), jnp.concatenate([l.ux, l.u[:, None], B.T], axis=1))
        by_x, by_1, by_B = solved[:, :n], solved[:, n], solved[:, n + 1 :]
        J = l.xx - l.ux.T @ by_x
        return A - B @ by_x, gap - B @ by_1, B @ by_B, l.ux.T @ by_1 - l.x, J

    stages = jax.vmap(element)(e.A, e.B, e.stage, e.gaps[1:])
    end = jnp.zeros_like(eye), jnp.zeros(n, eye.dtype), jnp.zeros_like(eye), -e.terminal.x, e.terminal.xx
    elements = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), stages, end)

    def combine(first, second):
        A1, b1, C1, eta1, J1 = first
        A2, b2, C2, eta2, J2 = second
        right = jnp.concatenate([A1, (b1 + C1 @ eta2)[:, None], C1], axis=1)
        solved = jnp.linalg.solve(eye + C1 @ J2, right)
        left = jnp.linalg.solve(eye + J2 @ C1, jnp.concatenate([(eta2 - J2 @ b1)[:, None], J2 @ A1], axis=1))
        A, b, C = A2 @ solved[:, :n], A2 @ solved[:, n] + b2, A2 @ solved[:, n + 1 :] @ A2.T + C2
        return A, b, C, A1.T @ left[:, 0] + eta1, A1.T @ left[:, 1:] + J1

    # In a reversed scan the later part comes first.
    combined = lax.associative_scan(jax.vmap(lambda a, b: combine(b, a)), elements, reverse=True)
    after_Vx, after_Vxx = -combined[3][1:], 0.5 * (combined[4] + jnp.swapaxes(combined[4], 1, 2))[1:]

    stages = jax.vmap(eliminate_controls)(e.A, e.B, e.gaps[1:], e.stage, after_Vx, after_Vxx)
    return _policy(e, stages.with_end(e.terminal.x, e.terminal.xx), damping)
