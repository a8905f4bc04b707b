"""Whether a stationary point is a minimum, and steps that lead away from one that is not.

Gauss-Newton leaves out curvature that may be negative, and a regularization hides it. So a point at which the first
derivatives are zero may be a maximum or a saddle, as for a pendulum that hangs. The Hessian by the free controls is
positive definite exactly if the curvatures that the Riccati recursion meets are, with all second derivatives and
without regularization (Dunn & Bertsekas, Efficient dynamic programming implementations of Newton's method for
unconstrained optimal control problems, JOTA 1989). Where one of them is not, its eigenvector and the feedback of later
stages are a direction of negative curvature, along which the cost falls on both sides.
"""

import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._expansion import Expansion, StartUnknowns, Stationarity
from jaxdyn.trajopt.ddp._riccati import AffinePolicy, free_block, start_curvature

ATTEMPTS = 4
"""The number of attempts to leave a stationary point, each by a search along a direction: both ways, and both ways
again with shorter steps, which begin where the ten halves of a step that the first searches try have ended."""
SHORTER = 0.25**10
"""The decrease that the whole step of the last two attempts promises, relative to that of the first two."""


def free_controls(box, us, station: Stationarity, tolerance) -> Float[Array, "horizon nu"]:
    """1 for controls that may move, 0 for those that equal bounds fix or slopes above a tolerance press against one."""
    (low, high), least = box, tolerance * station.size
    pressed = ((us <= low) & (station.slopes > least)) | ((us >= high) & (station.slopes < -least))
    return (~pressed & (low < high)).astype(us.dtype)


def curvature_tolerance(policy: AffinePolicy, B) -> Float[Array, "nu"]:
    """The curvature by each control that counts as zero, because a control without a cost is no maximum: a part of its
    terms, of which second derivatives by differences have errors of `sqrt(eps)`."""
    return jnp.finfo(B.dtype).eps ** (1 / 3) * curvature_terms(policy, B).max(axis=0)


def curvature_terms(policy: AffinePolicy, B) -> Float[Array, "horizon nu"]:
    """The size of what adds up to the curvature by each control."""
    terms = jnp.abs(jnp.diagonal(policy.Quu, axis1=1, axis2=2))
    return terms + (B**2 * jnp.abs(jnp.diagonal(policy.Vxx, axis1=1, axis2=2))[1:, :, None]).sum(axis=1)


def start_tolerance(policy: AffinePolicy, e: Expansion) -> Float[Array, "unknowns"]:
    """The curvature by each unknown of the initial state that counts as zero, as `curvature_tolerance`."""
    assert e.start is not None
    return jnp.finfo(e.A.dtype).eps ** (1 / 3) * start_terms(policy, e.A, e.start)


def start_terms(policy: AffinePolicy, A, start: StartUnknowns) -> Float[Array, "unknowns"]:
    """The size of what adds up to the curvature by each unknown of the initial state."""
    own, after = (jnp.abs(jnp.diagonal(policy.Vxx[k])) for k in (0, 1))
    return own @ start.directions**2 + after @ (A[0] @ start.directions) ** 2


def leaving_policy(
    policy: AffinePolicy, free: Float[Array, "horizon nu"], attempt, scale, start: StartUnknowns | None
) -> AffinePolicy:
    """The policy whose step leads away from a stationary point at which a backward pass has failed: along the
    eigenvector of the least eigenvalue at the last stage that is not positive definite, or of the unknowns `start` of
    the initial state if all stages are, with the feedback of later stages. `attempt` counts from one; `scale` is the
    size of the cost, of which the step promises a part."""
    stages = jnp.arange(len(policy.k))
    failed = ~(jnp.isfinite(policy.K).all(axis=(1, 2)) & jnp.isfinite(policy.k).all(axis=1))
    stage = jnp.where(failed, stages, 0).max()
    decrease = jnp.where(attempt > ATTEMPTS // 2, SHORTER, 1.0) * scale

    def step_along(H, slopes):
        values, vectors = jnp.linalg.eigh(H)
        curvature = jnp.maximum(-values[0], jnp.finfo(values.dtype).tiny)
        downhill = jnp.where(slopes @ vectors[:, 0] > 0, -1.0, 1.0)
        side = jnp.where(attempt % 2 == 1, downhill, -downhill)
        return side * jnp.sqrt(2 * decrease / curvature) * vectors[:, 0]

    step = step_along(free_block(policy.Quu[stage], free[stage]), policy.Qu[stage])
    k, later, slope = jnp.where((stages == stage)[:, None], step, 0.0), stages > stage, -policy.Qu[stage] @ step
    displacement, ok = None, jnp.isfinite(k).all()
    if start is not None:
        of_stage, slopes = failed.any(), policy.Vx[0] @ start.directions
        step = step_along(start_curvature(policy, start), slopes)
        displacement = jnp.where(of_stage, 0.0, start.directions @ step)
        k, later, slope = jnp.where(of_stage, k, 0.0), later | ~of_stage, jnp.where(of_stage, slope, -slopes @ step)
        ok = jnp.isfinite(k).all() & jnp.isfinite(displacement).all()
    return policy._replace(
        k=k,
        K=jnp.where(later[:, None, None], policy.K, 0.0),
        Vx=jnp.nan_to_num(policy.Vx),
        Vxx=jnp.nan_to_num(policy.Vxx),
        slope=slope,
        curvature=2 * decrease,
        ok=ok,
        start=displacement,
    )
