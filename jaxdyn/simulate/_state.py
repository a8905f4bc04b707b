"""States and trajectories."""

from typing import Any

import equinox as eqx

from jaxdyn._types import Array, Float


class State(eqx.Module):
    """Configuration `q` `[*batch, nq]` and velocity `v` `[*batch, nv]`."""

    q: Float[Array, "*#batch nq"]
    v: Float[Array, "*#batch nv"]


class Trajectory(eqx.Module):
    """Samples of a motion, the first of them its start."""

    t: Float[Array, "samples"]
    """Times in s."""
    q: Float[Array, "*#batch samples nq"]
    v: Float[Array, "*#batch samples nv"]
    tau: Float[Array, "*#batch intervals nv"] | None = None
    """The actuator torques of the step that follows each sample but the last, `intervals = samples - 1`."""
    policy_state: Any = None
    """The carry of the policy after the last step."""
    sensors: Any = None
    """The sensors' pytree of arrays `[*batch, samples, ...]`."""

    @property
    def final(self) -> State:
        """The last sample."""
        return State(self.q[..., -1, :], self.v[..., -1, :])
