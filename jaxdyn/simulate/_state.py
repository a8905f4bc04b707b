"""States and trajectories."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._types import Array, Float
from jaxdyn.model import Model
from jaxdyn.solve import SolverReport


class State(eqx.Module):
    """Configuration `q` `[*batch, nq]` and velocity `v` `[*batch, nv]`; in a world also what its actuators, its clock
    and its mocap bodies have. Without `v` it is a state at rest: steps and roll-outs put zeros in its place, and in
    those of the activation and the time."""

    q: Float[Array, "*#batch nq"]
    if TYPE_CHECKING:
        # The states that the library returns have a velocity, and so have those that policies and sensors are given;
        # those of worlds have an activation and a time, too.
        v: Float[Array, "*#batch nv"] = ...  # pyright: ignore[reportAssignmentType]
        activation: Float[Array, "*#batch na"] = ...  # pyright: ignore[reportAssignmentType]
        time: Float[Array, "*#batch"] = ...  # pyright: ignore[reportAssignmentType]
    else:
        v: Float[Array, "*#batch nv"] | None = None
        activation: Float[Array, "*#batch na"] | None = None
        """The states of a world's actuators with dynamics."""
        time: Float[Array, "*#batch"] | None = None
        """s. The clock of a world."""
    mocap: Float[Array, "*#batch nmocap 7"] | None = None
    """The poses of mocap bodies, positions and quaternions `w x y z`: MuJoCo's `mocap_pos` and `mocap_quat`. None: as
    the file has them. Steps leave them as they are."""
    active: Float[Array, "*#batch neq"] | None = None
    """Positive for the equality constraints that act: MuJoCo's `eq_active`. None: those that are active in the file.
    Steps leave them as they are."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        first, facts = printing.state_facts({"q": self.q, "v": self.v, "activation": self.activation})
        return first, {**facts, **({} if self.time is None else {"time": printing.number(self.time, "s")})}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


def with_velocity(model: Model, state: State) -> State:
    """The state with zeros where it has no velocity."""
    return state if state.v is not None else State(state.q, jnp.zeros(model.nv, jnp.result_type(model.dtype, state.q)))


class Trajectory(eqx.Module):
    """Samples of a motion, the first of them its start."""

    t: Float[Array, "samples"]
    """Times in s."""
    q: Float[Array, "*#batch samples nq"]
    v: Float[Array, "*#batch samples nv"]
    tau: Float[Array, "*#batch intervals nv"] | None = None
    """The actuator torques of the step that follows each sample but the last, `intervals = samples - 1`; None for a
    world."""
    policy_state: Any = None
    """The carry of the policy after the last step."""
    sensors: Any = None
    """The sensors' pytree of arrays `[*batch, samples, ...]`."""
    contact: SolverReport | None = None
    """How well the contacts were solved, `[*batch, intervals]`: the largest error and the sum of the iterations of the
    steps that follow each sample but the last; None without contacts."""
    loop_error: Float[Array, "*#batch samples"] | None = None
    """The largest error of an equation of loops and couplings at each sample (m or rad, see `constraint_error`); None
    for a model without them. It is not differentiated."""

    activation: Float[Array, "*#batch samples na"] | None = None
    """The states of a world's actuators with dynamics; None for a model."""
    control: Float[Array, "*#batch intervals nu"] | None = None
    """The controls of a world in the step that follows each sample but the last; None for a model."""
    end: State | None = None
    """The whole state of a world after the last step; None for a model."""

    @property
    def final(self) -> State:
        """The state at the last sample."""
        return State(self.q[..., -1, :], self.v[..., -1, :]) if self.end is None else self.end

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        batch = self.q.shape[:-2]
        times = np.asarray(self.t)
        first = f"{len(times)} samples from {times[0]:.4g} to {times[-1]:.4g} s" + (f", batch {batch}" if batch else "")
        q, v = np.asarray(self.q), np.asarray(self.v)
        # A maximum is NaN where a state is.
        facts = {"q": f"{q.shape[-1]} coordinates, at most {np.abs(q).max(initial=0):.4g}"}
        facts["v"] = f"{v.shape[-1]} velocities, at most {np.abs(v).max(initial=0):.4g}"
        if not (np.isfinite(q).all() and np.isfinite(v).all()):
            facts["not finite"] = "some states are NaN or infinite; RolloutOptions(check=True) names the first"
        if self.contact is not None:
            unsolved = int((~np.asarray(self.contact.converged)).sum())
            worst = f"relative errors at most {np.asarray(self.contact.error).max(initial=0):.1e}"
            facts["contact"] = worst + (f", {unsolved} intervals above the tolerance" if unsolved else "")
        if self.loop_error is not None:
            facts["loops"] = f"open by at most {np.asarray(self.loop_error).max(initial=0):.1e} m or rad"
        if self.tau is not None:
            facts["tau"] = f"at most {np.abs(np.asarray(self.tau)).max(initial=0):.4g} N m or N"
        if self.control is not None and self.control.size:
            u = np.asarray(self.control)
            facts["control"] = f"{u.shape[-1]} controls, at most {np.abs(u).max(initial=0):.4g}"
        if isinstance(self.sensors, dict):
            facts["sensors"] = printing.names(tuple(self.sensors))
        return first, facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table
