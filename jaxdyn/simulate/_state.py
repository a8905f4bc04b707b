"""States and trajectories."""

from __future__ import annotations

import equinox as eqx

from jaxdyn._types import Array, Float


class State(eqx.Module):
    """Configuration `q` `[*batch, nq]` and velocity `v` `[*batch, nv]`."""

    q: Float[Array, "*batch nq"]
    v: Float[Array, "*batch nv"]


class Trajectory(eqx.Module):
    """Times `t` `[steps + 1]` in s, configurations `q` `[*batch, steps + 1, nq]`, velocities `v`."""

    t: Float[Array, "samples"]
    q: Float[Array, "*batch samples nq"]
    v: Float[Array, "*batch samples nv"]

    @property
    def final(self) -> State:
        return State(self.q[..., -1, :], self.v[..., -1, :])
