"""Terms of the cost: functions of residuals with weights as leaves, and functions of the user."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ShapeError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._residuals import AbstractResidual, Linear, as_leaf


class Quadratic(NamedTuple):
    """A second-order expansion in the displacements `dx`, `du`; the parts in `du` are zeros `[0]` without a control."""

    value: Float[Array, ""]
    x: Float[Array, "ndx"]
    u: Float[Array, "nu"]
    xx: Float[Array, "ndx ndx"]
    ux: Float[Array, "nu ndx"]
    uu: Float[Array, "nu nu"]

    @staticmethod
    def zero(ndx: int, nu: int, dtype) -> Quadratic:
        """The expansion of no cost."""
        return Quadratic(*(jnp.zeros(s, dtype) for s in ((), (ndx,), (nu,), (ndx, ndx), (nu, ndx), (nu, nu))))

    def __add__(self, other: Quadratic) -> Quadratic:  # type: ignore[override]
        return Quadratic(*(a + b for a, b in zip(self, other, strict=True)))


class AbstractCost(eqx.Module):
    """A term of the cost at a stage, or at the end, where `u` is None."""

    @abc.abstractmethod
    def value(self, dynamics: AbstractDynamics, x, u, k) -> Float[Array, ""]:
        """The cost."""

    @abc.abstractmethod
    def gauss_newton(self, dynamics: AbstractDynamics, x, u, k) -> Quadratic:
        """Its expansion without the second derivatives of residuals."""

    def full(self, dynamics: AbstractDynamics, x, u, k) -> Quadratic:
        """Its expansion with all second-order terms."""
        return expansion(lambda x, u: self.value(dynamics, x, u, k), dynamics, x, u)


class ResidualCost(AbstractCost):
    """A convex function of a residual, component by component but for a matrix of weights."""

    residual: eqx.AbstractVar[AbstractResidual]

    @abc.abstractmethod
    def penalty(self, r) -> tuple[Any, Any, Any]:
        """The value, the gradient `[m]`, and the curvature: its diagonal `[m]`, or a matrix `[m, m]`."""

    def value(self, dynamics, x, u, k):
        return self.penalty(self.residual(dynamics, x, u, k))[0]

    def gauss_newton(self, dynamics, x, u, k):
        return self.expanded(self.residual.linearize(dynamics, x, u, k), dynamics, u)

    def expanded(self, linear: Linear, dynamics: AbstractDynamics, u) -> Quadratic:
        """The Gauss-Newton expansion from the residual's."""
        r, Jx, Ju = linear
        value, gradient, curvature = self.penalty(r)
        return of_residual(value, gradient, curvature, Jx, Ju, dynamics.ndx, 0 if u is None else dynamics.nu)


def of_residual(value, gradient, curvature, Jx, Ju, ndx: int, nu: int) -> Quadratic:
    """The Gauss-Newton expansion `J^T g`, `J^T C J`."""
    zero = Quadratic.zero(ndx, nu, gradient.dtype)

    def curved(J):
        return curvature[:, None] * J if curvature.ndim == 1 else curvature @ J

    x, xx = (zero.x, zero.xx) if Jx is None else (Jx.T @ gradient, Jx.T @ curved(Jx))
    u, uu = (zero.u, zero.uu) if Ju is None else (Ju.T @ gradient, Ju.T @ curved(Ju))
    ux = zero.ux if Jx is None or Ju is None else Ju.T @ curved(Jx)
    return Quadratic(value, x, u, xx, ux, uu)


class QuadraticCost(ResidualCost):
    """`weight/2 |r|^2`, `1/2 sum_i weight_i r_i^2`, or `1/2 r^T weight r`: a number, `[m]`, or symmetric `[m, m]`."""

    residual: AbstractResidual
    weight: Float[Array, "..."]

    def __init__(self, residual: AbstractResidual, weight: ArrayLike = 1.0):
        self.residual, self.weight = residual, as_leaf(weight)

    def penalty(self, r):
        w = _weight(self.weight, r, type(self.residual).__name__)
        if w.ndim < 2:
            w = jnp.broadcast_to(w, r.shape)
            return 0.5 * (w * r * r).sum(), w * r, w
        w = 0.5 * (w + w.T)
        return 0.5 * r @ (w @ r), w @ r, w


class SmoothAbsCost(ResidualCost):
    """`sum_i weight_i (sqrt(r_i^2 + width^2) - width)`: quadratic within about `width` of zero, then linear.

    `weight`: a number or `[m]`. `width`: in the units of the residual, positive.

    **Raises** `ShapeError`, when it is evaluated, for a weight or width that does not fit.
    """

    residual: AbstractResidual
    weight: Float[Array, "..."]
    width: Float[Array, "..."]

    def __init__(self, residual: AbstractResidual, weight: ArrayLike = 1.0, width: ArrayLike = 0.1):
        self.residual, self.weight, self.width = residual, as_leaf(weight), as_leaf(width)

    def penalty(self, r):
        name = type(self.residual).__name__
        if self.weight.ndim > 1:
            raise ShapeError(f"the weight of a SmoothAbsCost has shape {self.weight.shape}; a number or [m] is needed")
        w, width = (jnp.broadcast_to(_weight(a, r, name), r.shape) for a in (self.weight, self.width))
        root = jnp.sqrt(r * r + width * width)
        # root - width, without the loss of digits near zero.
        return (w * r * r / (root + width)).sum(), w * r / root, w * (width / root) ** 2 / root


class FunctionCost(AbstractCost):
    """`function(x, u, t, params)`, a number, of the user; `t` in s; `u` is None at the end of the horizon.

    With no residual to know of, its Gauss-Newton expansion has all second derivatives.

    **Raises** `ShapeError`, when it is evaluated, for what is no number.
    """

    params: Any
    function: Callable = eqx.field(static=True)

    def __init__(self, function: Callable[[Any, Any, Any, Any], Any], params: Any = None):
        self.function, self.params = function, params

    def value(self, dynamics, x, u, k):
        out = jnp.asarray(self.function(x, u, dynamics.time(k), self.params))
        if out.shape != ():
            raise ShapeError(f"a FunctionCost returned the shape {out.shape}; a number is needed")
        return out

    def gauss_newton(self, dynamics, x, u, k):
        return self.full(dynamics, x, u, k)


class TimeVarying[T](eqx.Module):
    """A cost or constraint that differs from stage to stage: every array leaf of `term` has a leading axis, in which
    stage `k` takes row `k`. For stages, not for the end of the horizon.

    `TimeVarying(jax.vmap(make)(rows))` builds one, for a function `make` from a row of `rows` `[horizon, ...]` to a
    term: `make = lambda p: QuadraticCost(FramePositionResidual("tool", p), 10.0)` follows a path.
    """

    term: T

    def at(self, k) -> T:
        """The term of stage `k`."""
        return jax.tree.map(lambda a: a[k], self.term)


def at_stage(term, k):
    return term.at(k) if isinstance(term, TimeVarying) else term


def expansion(function: Callable, dynamics: AbstractDynamics, x, u) -> Quadratic:
    """The second-order expansion of `function(x, u)` in displacements."""
    n, m = dynamics.ndx, 0 if u is None else dynamics.nu

    def displaced(z):
        moved = dynamics.integrate(x, z[:n])
        return function(moved, None if u is None else u + z[n:])

    def both(z):
        value, gradient = jax.value_and_grad(displaced)(z)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(both, has_aux=True)(jnp.zeros(n + m, x.dtype))
    hessian = 0.5 * (hessian + hessian.T)
    return Quadratic(value, gradient[:n], gradient[n:], hessian[:n, :n], hessian[n:, :n], hessian[n:, n:])


def _weight(w, r, name: str):
    m = r.shape[0]
    if w.shape not in ((), (m,), (m, m)):
        raise ShapeError(f"a weight has shape {w.shape}, but {name} has {m} components: [], [{m}] or [{m}, {m}]")
    return w.astype(r.dtype)
