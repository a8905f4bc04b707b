"""Dynamics with a constant disturbance, with which a controller whose model is wrong still reaches its goal."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics, ModelDynamics


class _Disturbed(AbstractDynamics):
    """The dynamics `inner`, whose every step is displaced by `disturbance`."""

    inner: AbstractDynamics
    disturbance: Float[Array, "ndx"]
    dt: Float[Array, ""]
    t0: Float[Array, ""]

    def __init__(self, inner: AbstractDynamics, disturbance):
        self.inner, self.disturbance, self.dt, self.t0 = inner, disturbance, inner.dt, inner.t0

    nx = property(lambda self: self.inner.nx)
    ndx = property(lambda self: self.inner.ndx)
    nu = property(lambda self: self.inner.nu)
    euclidean = property(lambda self: self.inner.euclidean)

    def neutral(self):
        return self.inner.neutral()

    def integrate(self, x, dx):
        return self.inner.integrate(x, dx)

    def difference(self, x0, x1):
        return self.inner.difference(x0, x1)

    def step(self, x, u, k):
        return self.integrate(self.inner.step(x, u, k), self.disturbance)

    def linearize(self, x, u, k, after):
        return _linearize(self, self.inner.step, self.inner.linearize, x, u, k, after)


class _DisturbedModel(ModelDynamics):
    """The same for a robot: still `ModelDynamics`, so residuals find the model."""

    disturbance: Float[Array, "ndx"]

    def __init__(self, inner: ModelDynamics, disturbance):
        for field in dataclasses.fields(ModelDynamics):
            setattr(self, field.name, getattr(inner, field.name))
        self.disturbance = disturbance

    def step(self, x, u, k):
        return self.integrate(super().step(x, u, k), self.disturbance)

    def linearize(self, x, u, k, after):
        return _linearize(self, super().step, super().linearize, x, u, k, after)


def with_disturbance(dynamics: AbstractDynamics, disturbance: Float[Array, "ndx"]) -> AbstractDynamics:
    """The dynamics with every step displaced by `disturbance`, the constant state disturbance that offset-free control
    assumes (Pannocchia & Rawlings, Disturbance models for offset-free model-predictive control, AIChE J. 2003)."""
    if isinstance(dynamics, ModelDynamics):
        return _DisturbedModel(dynamics, disturbance)
    return _Disturbed(dynamics, disturbance)


def _linearize(dynamics, step, linearize, x, u, k, after):
    """The derivatives of the disturbed step, from the undisturbed `step` and its `linearize`."""
    if dynamics.euclidean:
        return linearize(x, u, k, after - dynamics.disturbance)
    before = step(x, u, k)
    A, B = linearize(x, u, k, before)

    def displacement(dx):
        return dynamics.difference(after, dynamics.integrate(dynamics.integrate(before, dx), dynamics.disturbance))

    by_before = jax.jacfwd(displacement)(jnp.zeros_like(dynamics.disturbance))
    return by_before @ A, by_before @ B
