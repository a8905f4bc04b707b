"""Discrete-time dynamics of robots with phases of contact."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, ShapeError, look_up, naming_arguments, require_choice, require_time_step
from jaxdyn._types import Array, ArrayLike, Float, float_leaf
from jaxdyn.algorithms import (
    ContactStep,
    ContactStepDerivatives,
    contact_errors,
    contact_step,
    contact_step_derivatives,
)
from jaxdyn.algorithms.recursions import CONTACT_ROWS
from jaxdyn.model import Model
from jaxdyn.simulate.integrators import displaced, require_closed, warn_of_long_step
from jaxdyn.trajopt.problem._dynamics import TorqueDynamics

type ContactKinds = Sequence[str] | Mapping[str, str]


class PhasedDynamics(TorqueDynamics):
    """A robot that holds to the world with some of its contacts at each stage, such as a legged robot: `x = [q, v]`,
    displacements `[dq, dv]` of length `2 nv`.

    Which contacts hold at which stage is an array, and so are the lengths of stages: another gait, other timings and a
    shifted horizon compile nothing. A step is that of velocities, `v+ = v + dv` and `q+ = q (+) h v+`, with the
    impulses `p` of the contacts that hold:

        M dv = h (tau - friction - springs - bias) + J^T p,    J v+ + h/2 Jdot v = 0

    So contacts do not move, to second order in the length `h` of the stage, and do not drift. A contact that begins to
    hold is stopped in its first stage, `J v+ = 0`, where it is then: where the ground is, terms of the problem say
    (`TerrainClearanceResidual`, or paths of feet). A stage of the length zero is an impact without restitution, after
    which the contacts that hold are at rest; its controls have no effect, so bound them to zero or let them cost
    something. Where equations say the same twice, as with two rigid feet on one body, impulses are those of least norm,
    and the motion is unique. Where they contradict each other, as targets of a stiff body that are farther apart than
    its points, contacts miss them by least squares: `contact_errors` says by how much, and `solution.describe(problem)`
    names them. Loops of the model are closed at the end of a step.
    """

    model: Model
    dt: Float[Array, ""]
    """The length of the longest stage, s."""
    t0: Float[Array, ""]
    shares: Float[Array, "*horizon"]
    """The lengths of the stages in units of `dt`; a number if all are alike."""
    holds: Float[Array, "horizon contacts"]
    """1 where a contact holds, else 0."""
    gains: Float[Array, "2"] | None
    targets: Float[Array, "*horizon contacts 3"] | None
    actuation: Float[Array, "nv nu"] | None
    f_ext: Float[Array, "*horizon nb 6"] | None
    solved: ContactStep | ContactStepDerivatives | None
    """The solution of the only stage at which the dynamics are evaluated, from `with_solution`."""
    contacts: tuple[tuple[str, str], ...] = eqx.field(static=True)
    """The frame and kind of each contact."""
    nx: int = eqx.field(static=True)
    ndx: int = eqx.field(static=True)
    nu: int = eqx.field(static=True)

    @naming_arguments
    def __init__(
        self,
        model: Model,
        dt: ArrayLike,
        contacts: ContactKinds,
        holds: ArrayLike,
        *,
        gains: ArrayLike | None = None,
        targets: ArrayLike | None = None,
        actuation: Float[Array | np.ndarray, "nv nu"] | Sequence[str] | None = None,
        t0: ArrayLike = 0.0,
        f_ext: Float[Array | np.ndarray, "*horizon nb 6"] | None = None,
    ):
        """
        - `dt`: the length of the stages, s: one number, or `[horizon]` with zeros for impacts.
        - `contacts`: the names of frames whose origins hold; or a mapping from names to `"point"` or `"surface"`, for
          feet that do not turn either.
        - `holds` `[horizon, contacts]`: which of them hold, as booleans or numbers; see `contact_schedule`.
        - `gains`: `kp` (1/s^2) and `kd` (1/s) of Baumgarte's stabilization, by which
          `J a + Jdot v + kd J v + kp (x - target) = 0` in place of the condition above, as other libraries have it
          (Crocoddyl's examples: 0 and 50). A contact that begins to hold then needs a stage of length zero to stop it.
        - `targets` `[contacts, 3]` or `[horizon, contacts, 3]`: where the origins should be, m, if `kp` is not zero.
        - `actuation` and `f_ext` as for `ModelDynamics`; by default `u` is the torques of all joints but free ones.

        **Raises** `ModelError` for no contacts, frames that are fixed in the world, other kinds, `targets` without
        `gains` or `kp` without `targets`, and lengths that are negative; `ShapeError`, `UnknownNameError`. **Warns**
        `DivergenceWarning` as `ModelDynamics`: joint friction is explicit.
        """
        if isinstance(model, Model) and actuation is None:
            kinds = zip(model.joint_names, model.topology.joint_types, strict=True)
            followers = {i for i, _ in model.topology.mimics}
            free = [name for i, (name, kind) in enumerate(kinds) if kind != "free" and i not in followers]
            actuation = free if len(free) < len(model.joint_names) else None
        self._set_robot(model, t0, actuation, f_ext)
        self.contacts, self.solved = _contacts(model, contacts), None
        self.dt, self.shares = _lengths(dt, model.dtype)
        holds = holds if isinstance(holds, jax.Array) else np.asarray(holds)
        self.holds = jnp.asarray(holds != 0, model.dtype)
        if self.holds.ndim != 2 or self.holds.shape[1] != len(self.contacts):
            names = ", ".join(name for name, _ in self.contacts)
            raise ShapeError(
                f"holds has shape {self.holds.shape}, but [horizon, {len(self.contacts)}] is needed: a column for each "
                f"of the contacts {names}"
            )
        self.gains = None if gains is None else float_leaf(gains, "gains").astype(model.dtype)
        if self.gains is not None and self.gains.shape != (2,):
            raise ShapeError(f"gains has shape {self.gains.shape}, but [2] is needed: kp and kd")
        if self.gains is not None and targets is None and not isinstance(self.gains, Tracer) and self.gains[0] != 0:
            raise ModelError(
                f"gains has kp = {self.gains[0]:g}, which needs targets: the places where contacts should be"
            )
        self.targets = None if targets is None else float_leaf(targets, "targets").astype(model.dtype)
        if self.targets is not None:
            if self.gains is None:
                raise ModelError("targets need gains: without them contacts hold where they begin to")
            if self.targets.ndim not in (2, 3) or self.targets.shape[-2:] != (len(self.contacts), 3):
                raise ShapeError(
                    f"targets has shape {self.targets.shape}, but [{len(self.contacts)}, 3] or [horizon, "
                    f"{len(self.contacts)}, 3] is needed"
                )
        self.require_horizon(len(self.holds))
        warn_of_long_step(model, self.dt, "semi_implicit_euler", 1)

    def require_horizon(self, horizon):
        super().require_horizon(horizon)
        for name, x, axes in (("holds", self.holds, 2), ("dt", self.shares, 1), ("targets", self.targets, 3)):
            if x is not None and x.ndim == axes and len(x) != horizon:
                raise ShapeError(f"{name} has {len(x)} rows, but the horizon has {horizon} stages")

    def step_length(self, k) -> Float[Array, ""]:
        """The length of stage `k`, s."""
        return self.dt * (self.shares[k] if self.shares.ndim else self.shares)

    def time(self, k):
        if not self.shares.ndim:
            return super().time(k)
        starts = jnp.concatenate([jnp.zeros(1, self.dt.dtype), jnp.cumsum(self.shares)])
        return self.t0 + self.dt * starts[k]

    def step(self, x, u, k):
        state = self.split(x)
        v = state.v + self._solve(x, u, k).change
        return jnp.concatenate([self.model.integrate(state.q, self.step_length(k).astype(v.dtype) * v), v])

    def solution_at(self, x, u, k, *, derivatives):
        # One solution has one reverse pass and one set of matrices, for the step and all residuals of forces together.
        return self._derivatives(x, u, k) if derivatives else self._solve(x, u, k)

    def with_solution(self, solution):
        return eqx.tree_at(lambda d: d.solved, self, solution, is_leaf=lambda x: x is None)

    def _solve(self, x, u, k) -> ContactStep:
        if self.solved is None:
            return contact_step(*self._stage(x, u, k), contacts=self.contacts)
        return self.solved.step if isinstance(self.solved, ContactStepDerivatives) else self.solved

    def _derivatives(self, x, u, k) -> ContactStepDerivatives:
        if isinstance(self.solved, ContactStepDerivatives):
            return self.solved
        return contact_step_derivatives(*self._stage(x, u, k), contacts=self.contacts)

    def linearize(self, x, u, k, after):
        state, n = self.split(x), self.model.nv
        by_q, by_v, by_tau = self._derivatives(x, u, k).of_change
        v1 = jnp.concatenate([by_q, by_v + jnp.eye(n, dtype=by_v.dtype), by_tau], axis=1)
        h = self.step_length(k).astype(v1.dtype)
        total = jnp.concatenate([displaced(self.model, state.q, h * self.split(after).v, h * v1), v1])
        return self._with_actuation(total[:, : 2 * n], total[:, 2 * n :])

    def contact_forces(self, x: Float[Array, "nx"], u: Float[Array, "nu"], k) -> Float[Array, "contacts 6"]:
        """The forces and moments `[force, moment]` of the contacts on the robot in stage `k`, N and N m, in world axes
        at the origins of their frames; zero where a contact does not hold. In a stage of length zero they are impulses,
        N s and N m s. Moments of points are zero."""
        impulses = self._solve(x, u, k).impulses
        return self._table(impulses / self._unit(k, impulses.dtype))

    def linearized_contact_forces(
        self, x: Float[Array, "nx"], u: Float[Array, "nu"], k
    ) -> tuple[Float[Array, "contacts 6"], Float[Array, "contacts 6 ndx"], Float[Array, "contacts 6 nu"]]:
        """`contact_forces`, and their derivatives by the displacement of the state and by the control."""
        found = self._derivatives(x, u, k)
        of_impulses = found.step.impulses, *found.of_impulses
        forces, by_q, by_v, by_tau = (x / self._unit(k, x.dtype) for x in of_impulses)
        by_x, by_u = self._with_actuation(jnp.concatenate([by_q, by_v], axis=1), by_tau)
        return self._table(forces), self._table(by_x), self._table(by_u)

    def contact_errors(self, x: Float[Array, "nx"], u: Float[Array, "nu"], k) -> Float[Array, "contacts 6"]:
        """The differences of the velocities `[linear, angular]` of the contacts after stage `k` from those with which
        they hold, m/s and rad/s: rounding, unless their equations, or those of loops, contradict each other."""
        return self._table(contact_errors(*self._stage(x, u, k), contacts=self.contacts))

    def contact(self, frame: str) -> int:
        """The number of the contact of a frame. **Raises** `UnknownNameError`."""
        return look_up(frame, [name for name, _ in self.contacts], "contact")

    def holding(self, k) -> Float[Array, "contacts"]:
        """1 for the contacts that hold in stage `k`, 0 for the others."""
        return self.holds[k]

    def _unit(self, k, dtype):
        """The length of stage `k`, or 1 for an impact."""
        h = self.step_length(k).astype(dtype)
        return jnp.where(h > 0, h, 1.0)

    def _table(self, rows):
        """Rows of contacts as `[contacts, 6, ...]`."""
        sizes = [CONTACT_ROWS[kind] for _, kind in self.contacts]
        starts = np.cumsum([0, *sizes])
        nothing = jnp.zeros((3, *rows.shape[1:]), rows.dtype)
        parts = [rows[a : a + n] for a, n in zip(starts, sizes, strict=False)]
        return jnp.stack([x if len(x) == 6 else jnp.concatenate([x, nothing]) for x in parts])

    def _stage(self, x, u, k) -> tuple[Any, ...]:
        """The arguments of `contact_step` in stage `k`."""
        state, h = self.split(x), self.step_length(k).astype(x.dtype)
        require_closed(self.model, state)
        sizes = np.array([CONTACT_ROWS[kind] for _, kind in self.contacts])
        rows = np.repeat(np.arange(len(sizes)), sizes)
        holds = self.holds[k].astype(x.dtype)[rows]
        if self.gains is None:
            # Before a contact holds, the rate at which its velocity would turn says nothing about the step.
            rule, bias = [h, 1.0, 0.0], 0.5 * self.holds[jnp.maximum(k - 1, 0)].astype(x.dtype)[rows]
        else:
            kp, kd = self.gains.astype(x.dtype)
            rule, bias = [h, jnp.where(h > 0, h * kd, 1.0), h * kp], jnp.ones_like(holds)
        targets = None
        if self.targets is not None:
            places = self.targets[k] if self.targets.ndim == 3 else self.targets
            targets = jnp.concatenate([jnp.zeros(n, x.dtype).at[:3].set(p) for n, p in zip(sizes, places, strict=True)])
        rule = jnp.stack([jnp.asarray(a, x.dtype) for a in rule])
        return self.model, state.q, state.v, self.torque(x, u), rule, holds, bias, targets, self._wrenches(k)


def contact_schedule(contacts: ContactKinds, phases: Sequence[tuple[int, Sequence[str]]]) -> np.ndarray:
    """The array `holds` `[horizon, contacts]` of `PhasedDynamics` from phases, each the number of its stages and the
    names of the contacts that hold: `[(25, ["FL_FOOT", "HR_FOOT"]), (1, all_feet), ...]`. **Raises**
    `UnknownNameError`, and `ModelError` for a negative number of stages."""
    names, rows = list(contacts), []
    for stages, holding in phases:
        if stages < 0:
            raise ModelError(f"a phase has {stages} stages; a number from 0 on is needed")
        for name in holding:
            look_up(name, names, "contact")
        rows += [[name in holding for name in names]] * stages
    return np.array(rows, bool).reshape(-1, len(names))


def _contacts(model: Model, contacts: ContactKinds) -> tuple[tuple[str, str], ...]:
    pairs = list(contacts.items()) if isinstance(contacts, Mapping) else [(name, "point") for name in contacts]
    if not pairs:
        raise ModelError("PhasedDynamics needs at least one contact; ModelDynamics has none")
    names = [name for name, _ in pairs]
    for name, kind in pairs:
        require_choice(kind, tuple(CONTACT_ROWS), f"the kind of the contact {name!r}")
        if model.topology.frame_bodies[model.topology.frame(name)] < 0:
            raise ModelError(f"the contact {name!r} is fixed in the world and cannot hold the robot")
        if names.count(name) > 1:
            raise ModelError(f"the contact {name!r} is named twice")
    return tuple(pairs)


def _lengths(dt: ArrayLike, dtype) -> tuple[Array, Array]:
    """The length of the longest stage, and those of all in units of it."""
    lengths = float_leaf(dt, "dt").astype(dtype)
    if lengths.ndim > 1:
        raise ShapeError(f"dt has shape {lengths.shape}, but one number or [horizon] is needed, s")
    longest = lengths if lengths.ndim == 0 else lengths.max()
    if not isinstance(longest, Tracer):
        require_time_step(longest)
    if not isinstance(lengths, Tracer) and not (np.asarray(lengths) >= 0).all():
        raise ModelError(f"dt has negative lengths of stages: {np.asarray(lengths).min():g} s")
    return longest, jnp.ones((), dtype) if lengths.ndim == 0 else lengths / longest
