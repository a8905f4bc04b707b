"""Dynamics with a constant disturbance, with which a controller whose model is wrong still reaches its goal."""

import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics


class _DisturbedDynamics(AbstractDynamics):
    """The dynamics `inner`, whose every step is displaced by `disturbance`."""

    inner: AbstractDynamics
    disturbance: Float[Array, "ndx"]
    dt: Float[Array, ""]
    t0: Float[Array, ""]

    nx = property(lambda self: self.inner.nx)
    ndx = property(lambda self: self.inner.ndx)
    nu = property(lambda self: self.inner.nu)
    euclidean = property(lambda self: self.inner.euclidean)
    robot = property(lambda self: self.inner.robot)

    def neutral(self):
        return self.inner.neutral()

    def integrate(self, x, dx):
        return self.inner.integrate(x, dx)

    def difference(self, x0, x1):
        return self.inner.difference(x0, x1)

    def step(self, x, u, k):
        return self.integrate(self.inner.step(x, u, k), self.disturbance)

    def linearize(self, x, u, k, after):
        if self.euclidean:
            return self.inner.linearize(x, u, k, after - self.disturbance)
        before = self.inner.step(x, u, k)
        A, B = self.inner.linearize(x, u, k, before)

        def displacement(dx):
            return self.difference(after, self.integrate(self.integrate(before, dx), self.disturbance))

        by_before = jax.jacfwd(displacement)(jnp.zeros_like(self.disturbance))
        return by_before @ A, by_before @ B


def with_disturbance(dynamics: AbstractDynamics, disturbance: Float[Array, "ndx"]) -> AbstractDynamics:
    """The dynamics with every step displaced by `disturbance`, the constant state disturbance that offset-free control
    assumes (Pannocchia & Rawlings, Disturbance models for offset-free model-predictive control, AIChE J. 2003)."""
    return _DisturbedDynamics(inner=dynamics, disturbance=disturbance, dt=dynamics.dt, t0=dynamics.t0)
