"""Terms of the cost: weighted functions of residuals, and functions of the user."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ShapeError
from jaxdyn._types import Array, Float, leaf_of
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._residuals import AbstractResidual, Linear


class Quadratic(NamedTuple):
    """A second-order expansion in the displacements `dx`, `du`; without a control the parts in `du` have length 0."""

    value: Float[Array, ""]
    x: Float[Array, "ndx"]
    u: Float[Array, "nu"]
    xx: Float[Array, "ndx ndx"]
    ux: Float[Array, "nu ndx"]
    uu: Float[Array, "nu nu"]

    @staticmethod
    def zero(ndx: int, nu: int, dtype) -> "Quadratic":
        """The expansion of a cost of zero."""
        return Quadratic(*(jnp.zeros(s, dtype) for s in ((), (ndx,), (nu,), (ndx, ndx), (nu, ndx), (nu, nu))))

    def __add__(self, summand: "Quadratic") -> "Quadratic":  # type: ignore[override]
        return Quadratic(*(a + b for a, b in zip(self, summand, strict=True)))


class AbstractCost(eqx.Module):
    """A term of the cost at a stage, or at the end of the horizon, where `u` is None."""

    @abc.abstractmethod
    def value(self, dynamics: AbstractDynamics, x, u, k) -> Float[Array, ""]:
        """The cost at stage `k`."""

    @abc.abstractmethod
    def gauss_newton(self, dynamics: AbstractDynamics, x, u, k) -> Quadratic:
        """The cost's expansion without the second derivatives of residuals."""

    def full(self, dynamics: AbstractDynamics, x, u, k) -> Quadratic:
        """The cost's expansion with all second derivatives."""
        return quadratic_expansion(lambda x, u: self.value(dynamics, x, u, k), dynamics, x, u)


class ResidualCost(AbstractCost):
    """A convex function of a residual: a sum over components, or a quadratic form."""

    residual: eqx.AbstractVar[AbstractResidual]

    @abc.abstractmethod
    def penalty(self, r) -> tuple[Any, Any, Any]:
        """The value, the gradient `[m]`, and the curvature, as its diagonal `[m]` or as a matrix `[m, m]`."""

    def value(self, dynamics, x, u, k):
        return self.penalty(self.residual(dynamics, x, u, k))[0]

    def gauss_newton(self, dynamics, x, u, k):
        return self.expand(self.residual.linearize(dynamics, x, u, k), dynamics, u)

    def expand(self, linear: Linear, dynamics: AbstractDynamics, u) -> Quadratic:
        """The Gauss-Newton expansion, from the residual's."""
        r, Jx, Ju = linear
        return gauss_newton_expansion(*self.penalty(r), Jx, Ju, dynamics.ndx, 0 if u is None else dynamics.nu)


def gauss_newton_expansion(value, gradient, curvature, Jx, Ju, ndx: int, nu: int) -> Quadratic:
    """The expansion `J^T gradient`, `J^T curvature J` of a function of a residual with the Jacobians `Jx` and `Ju`."""
    zero = Quadratic.zero(ndx, nu, gradient.dtype)

    def weight(J):
        return curvature[:, None] * J if curvature.ndim == 1 else curvature @ J

    x, xx = (zero.x, zero.xx) if Jx is None else (Jx.T @ gradient, Jx.T @ weight(Jx))
    u, uu = (zero.u, zero.uu) if Ju is None else (Ju.T @ gradient, Ju.T @ weight(Ju))
    ux = zero.ux if Jx is None or Ju is None else Ju.T @ weight(Jx)
    return Quadratic(value, x, u, xx, ux, uu)


class QuadraticCost(ResidualCost):
    """`1/2 r^T weight r`, for a weight that is a number, a diagonal `[m]`, or a symmetric `[m, m]`."""

    residual: AbstractResidual
    weight: Float[Array, "..."] = eqx.field(default=1.0, converter=leaf_of("QuadraticCost: `weight`"))

    def penalty(self, r):
        w = cast_weight(self.weight, r, self.residual)
        if w.ndim < 2:
            w = jnp.broadcast_to(w, r.shape)
            return 0.5 * (w * r * r).sum(), w * r, w
        w = 0.5 * (w + w.T)
        return 0.5 * r @ (w @ r), w @ r, w


class SmoothAbsCost(ResidualCost):
    """`sum_i weight_i (sqrt(r_i^2 + width^2) - width)`: quadratic within about `width` of zero, then linear.

    `weight`: a number or `[m]`. `width`: positive, in the units of the residual. **Raises** `ShapeError`, when it is
    evaluated, for a weight or width that does not fit.
    """

    residual: AbstractResidual
    weight: Float[Array, "..."] = eqx.field(default=1.0, converter=leaf_of("SmoothAbsCost: `weight`"))
    width: Float[Array, "..."] = eqx.field(default=0.1, converter=leaf_of("SmoothAbsCost: `width`"))

    def penalty(self, r):
        if self.weight.ndim > 1:
            raise ShapeError(f"the weight of a SmoothAbsCost has shape {self.weight.shape}; a number or [m] is needed")
        w, width = (jnp.broadcast_to(cast_weight(a, r, self.residual), r.shape) for a in (self.weight, self.width))
        root = jnp.sqrt(r * r + width * width)
        # root - width, without the loss of digits near zero.
        return (w * r * r / (root + width)).sum(), w * r / root, w * (width / root) ** 2 / root


class FunctionCost(AbstractCost):
    """A user's cost `function(x, u, t, params)`, a number; `t` in s; `u` is None at the end of the horizon.

    It has no residual, so its Gauss-Newton expansion has all second derivatives. **Raises** `ShapeError`, when it is
    evaluated, unless the function returns a number.
    """

    function: Callable[[Any, Any, Any, Any], Any] = eqx.field(static=True)
    params: Any = None

    def value(self, dynamics, x, u, k):
        cost = jnp.asarray(self.function(x, u, dynamics.time(k), self.params))
        if cost.shape != ():
            raise ShapeError(f"a FunctionCost returned the shape {cost.shape}; a number is needed")
        return cost

    def gauss_newton(self, dynamics, x, u, k):
        return self.full(dynamics, x, u, k)


class TimeVarying[T](eqx.Module):
    """A cost or constraint with other numbers at each stage: every array leaf of `term` has a leading axis, of which
    stage `k` takes row `k`. For stages, not for the end of the horizon.

    `TimeVarying(jax.vmap(make)(rows))` builds one, for a function `make` from a row of `rows` `[horizon, ...]` to a
    term: `make = lambda p: QuadraticCost(FramePositionResidual("tool", p), 10.0)` follows a path.
    """

    term: T

    def at(self, k) -> T:
        """The term of stage `k`."""
        # Rows that a function passed on unchanged may still be NumPy arrays, which no traced number indexes.
        return jax.tree.map(lambda a: jnp.asarray(a)[k], self.term)


def term_at_stage(term, k):
    """The term with its numbers of stage `k`."""
    return term.at(k) if isinstance(term, TimeVarying) else term


def quadratic_expansion(function: Callable, dynamics: AbstractDynamics, x, u) -> Quadratic:
    """The second-order expansion of `function(x, u)` in the displacements of `x` and `u`."""
    n = dynamics.ndx
    z = jnp.zeros(n + (0 if u is None else dynamics.nu), x.dtype)

    def gradient_and_value(z):
        value, gradient = jax.value_and_grad(function_of_displacement(function, dynamics, x, u))(z)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(gradient_and_value, has_aux=True)(z)
    return Quadratic(value, gradient[:n], gradient[n:], *hessian_blocks(hessian, n))


def function_of_displacement(function: Callable, dynamics: AbstractDynamics, x, u) -> Callable:
    """`function(x, u)` as a function of the displacements `[dx, du]`."""
    n = dynamics.ndx
    return lambda z: function(dynamics.integrate(x, z[:n]), None if u is None else u + z[n:])


def hessian_blocks(hessian, ndx: int) -> tuple[Array, Array, Array]:
    """The blocks `xx`, `ux` and `uu` of a second derivative by `[dx, du]`, made symmetric."""
    hessian = 0.5 * (hessian + hessian.T)
    return hessian[:ndx, :ndx], hessian[ndx:, :ndx], hessian[ndx:, ndx:]


def cast_weight(w, r, residual: AbstractResidual):
    """The weight in the precision of the residual's value `r`. **Raises** `ShapeError` where it does not fit."""
    m = r.shape[0]
    if w.shape not in ((), (m,), (m, m)):
        name = type(residual).__name__
        raise ShapeError(f"a weight has shape {w.shape}, but {name} has {m} components: [], [{m}] or [{m}, {m}]")
    return w.astype(r.dtype)
