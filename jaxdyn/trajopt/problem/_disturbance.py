"""Dynamics that are off by a constant, so that a controller with a wrong model still reaches its goal."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics, ModelDynamics


class _Disturbed(AbstractDynamics):
    """Steps of `inner`, each displaced by `disturbance` `[ndx]` where it arrives."""

    inner: AbstractDynamics
    disturbance: Float[Array, "ndx"]
    dt: Float[Array, ""]
    t0: Float[Array, ""]

    def __init__(self, inner: AbstractDynamics, disturbance):
        self.inner, self.disturbance, self.dt, self.t0 = inner, disturbance, inner.dt, inner.t0

    @property
    def nx(self) -> int:
        return self.inner.nx

    @property
    def ndx(self) -> int:
        return self.inner.ndx

    @property
    def nu(self) -> int:
        return self.inner.nu

    def neutral(self):
        return self.inner.neutral()

    def integrate(self, x, dx):
        return self.inner.integrate(x, dx)

    def difference(self, x0, x1):
        return self.inner.difference(x0, x1)

    @property
    def euclidean(self) -> bool:
        return self.inner.euclidean

    def step(self, x, u, k):
        return self.integrate(self.inner.step(x, u, k), self.disturbance)

    def linearize(self, x, u, k, after):
        return _linearized(self, self.inner.step, self.inner.linearize, x, u, k, after)


class _DisturbedModel(ModelDynamics):
    """The same for a robot, whose residuals look for its model here."""

    disturbance: Float[Array, "ndx"]

    def __init__(self, inner: ModelDynamics, disturbance):
        for field in dataclasses.fields(ModelDynamics):
            setattr(self, field.name, getattr(inner, field.name))
        self.disturbance = disturbance

    def step(self, x, u, k):
        return self.integrate(super().step(x, u, k), self.disturbance)

    def linearize(self, x, u, k, after):
        return _linearized(self, super().step, super().linearize, x, u, k, after)


def disturbed(dynamics: AbstractDynamics, disturbance: Float[Array, "ndx"]) -> AbstractDynamics:
    """`dynamics` whose every step arrives displaced by `disturbance`: a state disturbance that is constant, as
    offset-free control assumes (Pannocchia & Rawlings, Disturbance models for offset-free model-predictive control,
    AIChE J. 2003)."""
    kind = _DisturbedModel if isinstance(dynamics, ModelDynamics) else _Disturbed
    return kind(dynamics, disturbance)  # type: ignore[arg-type]


def _linearized(dynamics, step, linearize, x, u, k, after):
    if dynamics.euclidean:
        return linearize(x, u, k, after - dynamics.disturbance)
    before = step(x, u, k)
    A, B = linearize(x, u, k, before)

    def displaced(dx):
        return dynamics.difference(after, dynamics.integrate(dynamics.integrate(before, dx), dynamics.disturbance))

    by_before = jax.jacfwd(displaced)(jnp.zeros_like(dynamics.disturbance))
    return by_before @ A, by_before @ B
