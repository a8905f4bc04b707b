"""Second derivatives of inverse and forward dynamics: products with the Hessian, and full tensors.

Exact, by composition: the first-order derivatives are analytic (`_derivatives.py`), and forward mode through them gives
the second. On the tangent space: the first derivative by `q` is the rate along `model.integrate(q, s e_j)`, and the
second by `q` the rate of that as `q` moves along `model.integrate(q, s e_k)`, with `v`, `a` and `tau` fixed. Where a
joint's velocities are rates of coordinates (all types but ball and free) it is symmetric in `j` and `k`; for ball and
free joints, whose velocities are in body axes, the order counts, by the derivative along the commutator of the two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._compile import compiled
from jaxdyn._types import Array, Configuration, Float, Torque, Velocity
from jaxdyn.algorithms._aba import aba
from jaxdyn.algorithms._first_derivatives import aba_derivatives, rnea_derivatives
from jaxdyn.algorithms._rnea import rnea
from jaxdyn.algorithms.recursions import check_arrays
from jaxdyn.model import Model


class HessianProduct(NamedTuple):
    """The product of a Hessian with a direction, each part `[*batch, nv]`."""

    dq: Float[Array, "*batch nv"]
    """The part of the configuration."""
    dv: Float[Array, "*batch nv"]
    """The part of the velocity."""
    dx: Float[Array, "*batch nv"]
    """The part of the third argument, `a` of `rnea` or `tau` of `aba`."""


class RneaSecondDerivatives(NamedTuple):
    """The second derivatives of inverse dynamics, each `[*batch, nv, nv, nv]`.

    `[i, j, k]` is the derivative of `tau_i` by component `j` of the variable named first, then by component `k` of the
    second. Those by `v, a` and `a, a` are zero.
    """

    dq_dq: Float[Array, "*batch nv nv nv"]
    dq_dv: Float[Array, "*batch nv nv nv"]
    dv_dv: Float[Array, "*batch nv nv nv"]
    da_dq: Float[Array, "*batch nv nv nv"]
    """The derivative of the mass matrix."""


class AbaSecondDerivatives(NamedTuple):
    """The second derivatives of forward dynamics, each `[*batch, nv, nv, nv]`.

    `[i, j, k]` is the derivative of `a_i` by component `j` of the variable named first, then by component `k` of the
    second. Those by `v, tau` and `tau, tau` are zero.
    """

    dq_dq: Float[Array, "*batch nv nv nv"]
    dq_dv: Float[Array, "*batch nv nv nv"]
    dv_dv: Float[Array, "*batch nv nv nv"]
    dtau_dq: Float[Array, "*batch nv nv nv"]
    """The derivative of the inverse of the mass matrix."""


@compiled("joint_friction")
def rnea_hessian_vector_product(
    model: Model,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    weights: Velocity,
    direction: tuple[Velocity, Velocity, Velocity],
    *,
    joint_friction: bool = True,
) -> HessianProduct:
    """The Hessian of `weights . rnea(q, v, a)` times a direction `(dq, dv, da)`, in O(n).

    It is the rate of the products of `weights` with the three matrices of `rnea_derivatives` along the direction, as
    differential dynamic programming and Newton's method need it. `weights` and the parts of the direction are
    `[*batch, nv]`, and broadcast with the states.

    **Returns** `HessianProduct`. **Raises** `ShapeError`, while tracing, where a shape does not fit.
    """
    function = functools.partial(rnea, joint_friction=joint_friction)
    return _hessian_vector_product(function, model, q, v, a, weights, direction)


@compiled("joint_friction")
def aba_hessian_vector_product(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    weights: Velocity,
    direction: tuple[Velocity, Velocity, Velocity],
    *,
    joint_friction: bool = True,
) -> HessianProduct:
    """The Hessian of `weights . aba(q, v, tau)` times a direction `(dq, dv, dtau)`, in O(n): the rate of the products
    of `weights` with the three matrices of `aba_derivatives`. Otherwise as `rnea_hessian_vector_product`."""
    function = functools.partial(aba, joint_friction=joint_friction)
    return _hessian_vector_product(function, model, q, v, tau, weights, direction)


def _hessian_vector_product(function: Callable, model: Model, q, v, x, weights, direction) -> HessianProduct:
    dq, dv, dx = direction
    # Every argument has all batch axes: a product must not be summed over the batch of another argument.
    q, v, x, weights, dq, dv, dx = _alike(model, q=q, v=v, x=x, weights=weights, dq=dq, dv=dv, dx=dx)

    def products(q, v, x):
        def displaced(dq, v, x):
            return function(model, model.integrate(q, dq), v, x)

        return jax.vjp(displaced, jnp.zeros_like(v), v, x)[1](weights)

    return HessianProduct(*jax.jvp(products, (q, v, x), (_rate(model, q, dq), dv, dx))[1])


def _rate(model: Model, q, dq):
    """Return the rate of the coordinates `q` under the velocity `dq`."""
    return jax.jvp(lambda x: model.integrate(q, x), (jnp.zeros_like(dq),), (dq,))[1]


@compiled("joint_friction")
def rnea_second_derivatives(
    model: Model, q: Configuration, v: Velocity, a: Velocity, *, joint_friction: bool = True
) -> RneaSecondDerivatives:
    """The second derivatives of inverse dynamics, `[*batch, nv, nv, nv]` each, in O(nv^2 depth).

    Derivatives of `rnea_derivatives` along the unit directions; on the tangent space, as the module's docstring says.
    Arguments and errors as for `rnea`.
    """
    q, v, a = _alike(model, q=q, v=v, a=a)

    def matrices(q, v):
        return rnea_derivatives(model, q, v, a, joint_friction=joint_friction)

    by_q = _along(lambda q: matrices(q, v), q, lambda d: _rate(model, q, d), model.nv)
    by_v = _along(lambda v: matrices(q, v)[:2], v, lambda d: d, model.nv)
    return RneaSecondDerivatives(by_q[0], by_v[0], by_v[1], by_q[2])


@compiled("joint_friction")
def aba_second_derivatives(
    model: Model, q: Configuration, v: Velocity, tau: Torque, *, joint_friction: bool = True
) -> AbaSecondDerivatives:
    """The second derivatives of forward dynamics, `[*batch, nv, nv, nv]` each. Derivatives of `aba_derivatives` along
    the unit directions; otherwise as `rnea_second_derivatives`."""
    q, v, tau = _alike(model, q=q, v=v, tau=tau)

    def matrices(q, v):
        return aba_derivatives(model, q, v, tau, joint_friction=joint_friction)

    by_q = _along(lambda q: matrices(q, v), q, lambda d: _rate(model, q, d), model.nv)
    by_v = _along(lambda v: matrices(q, v)[:2], v, lambda d: d, model.nv)
    return AbaSecondDerivatives(by_q[0], by_v[0], by_v[1], by_q[2])


def _alike(model: Model, q, **velocities) -> tuple:
    """Return the arrays in one dtype with the same batch axes."""
    arrays = {"q": q, **velocities}
    batch = check_arrays(model, {n: (Configuration if n == "q" else Velocity, x) for n, x in arrays.items()})
    dtype = jnp.result_type(model.dtype, *arrays.values())
    return tuple(jnp.broadcast_to(jnp.asarray(x, dtype), (*batch, jnp.shape(x)[-1])) for x in arrays.values())


def _along(matrices: Callable, x, rate: Callable, n: int):
    """Return the derivatives of matrices by `x` along the unit vectors of the velocities, which are the last axis."""

    def one(direction):
        return jax.jvp(matrices, (x,), (rate(jnp.broadcast_to(direction, (*x.shape[:-1], n))),))[1]

    return jax.vmap(one, out_axes=-1)(jnp.eye(n, dtype=x.dtype))
