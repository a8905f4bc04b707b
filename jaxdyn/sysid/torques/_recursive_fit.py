"""Base parameters that follow a robot while it runs, with forgetting."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, naming_arguments, require_positive
from jaxdyn.algorithms import spring_torque
from jaxdyn.spatial import transform_inertial_parameters
from jaxdyn.sysid.torques._base_parameters import BaseParameters
from jaxdyn.sysid.torques._effect_columns import effect_leaves, momentary_terms, torque_columns
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._intervals import Intervals, normal_intervals
from jaxdyn.sysid.torques._layout import DELAYS, INERTIAL_NAMES

# An eigenvalue below this part of the largest is rounding of products of base parameters' relations.
_SAME = 1e-12


class _Start(NamedTuple):
    """The numbers of the fit that a recursive fit starts from."""

    base: BaseParameters
    prior: jax.Array
    """`[k]`: the information of the expected changes."""
    reference: jax.Array
    """`[k]`: the base parameters."""
    covariance: np.ndarray
    """`[k, k]`: of `reference`."""
    weights: jax.Array
    """`[nv]`: of squared torque errors."""
    fixed: dict[str, np.ndarray]
    """Armature and friction that are not among the parameters, `[nv]` of each kind."""


class RecursiveState(NamedTuple):
    """The data that a `RecursiveFit` has not forgotten."""

    information: jax.Array
    """`[k, k]`: of the base parameters, with weights that forgetting lowers."""
    scores: jax.Array
    """`[k, k]`: the same with the squares of the weights: the covariance of the slope of the weighted squares."""
    vector: jax.Array
    """`[k]`: the information times the change of the base parameters that the data alone show."""


@dataclasses.dataclass(frozen=True, eq=False)
class RecursiveFit:
    """Base parameters of a robot that follow its motion and torques sample by sample.

    Least squares with exponential forgetting, as an information filter. What a motion does not excite returns to
    the fit that it starts from, so that no information is lost without bounds while the robot rests (stabilized
    forgetting: Milek & Kraus, Stabilized least squares estimators for time variant processes, CDC 1989). A parameter is
    expected to change by so much that the torques change by their root mean square in the fit.

    ```python
    tracker = sysid.RecursiveFit(fit, dt=0.001, memory=2.0)
    update, state = jax.jit(tracker.update), tracker.start()
    for q, v, a, tau in samples:
        state = update(state, q, v, a, tau)
    print(tracker.payload(state, "tool0"))
    ```

    **Arguments**

    - `fit`: of the robot without a payload, to torques with the noise of those that follow: its `sigma` is the noise of
      each sample. Its effects must be linear: armature, viscous, Coulomb and Stribeck
      friction, and offsets.
    - `dt`: time from sample to sample, s; `memory`: time after which a sample counts `1/e`, s.
    - `correlation`: number of neighboring samples that count as one, such as the rate over twice the cutoff of a
      filter; 1 for independent noise.

    **Raises** `DataError` for a fit with other effects, of closed loops or of motors with a transmission.
    """

    fit: InverseDynamicsFit
    dt: float
    memory: float
    correlation: float = 1.0
    _facts: _Start = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        for name in ("dt", "memory", "correlation"):
            require_positive(getattr(self, name), name, error=DataError)
        layout, effects, model = self.fit.layout, self.fit.effects, self.fit.model
        shape, others = self.fit.shape, (*DELAYS, "spring", "warm-up viscous")
        searched = layout.nonlinear or layout.by_load or layout.gains or layout.dofs(*others)
        known = np.any(shape.friction_delay) or np.any(shape.torque_delay) or np.any(shape.presliding)
        if searched or known or self.fit.values.motors is not None or model.topology.has_loops:
            raise DataError(
                f"a recursive fit takes armature, viscous, Coulomb and Stribeck friction and offsets of trees, but the "
                f"fit has {effects} or was made of closed loops or motors: fit again with fewer effects"
            )
        base = self.fit.base_parameters()
        R, sigma = self.fit.triangle[:, base.independent], self.fit.sigma
        dtype = model.dtype
        # The whitened torque of the fit, as its parameters explain it.
        power = float(np.sum((self.fit.triangle[:, : len(self.fit.parameters)] @ self.fit.parameters) ** 2))
        fixed = {}
        for kind, leaf in effect_leaves(model).items():
            fixed[kind] = np.where(np.isin(np.arange(layout.nv), layout.dofs(kind)), 0.0, leaf)
        root = base.matrix @ self.fit.posterior.covariance_root()[: len(self.fit.parameters)]
        # The correlations are those of independent residuals, the errors those of the intervals.
        root *= (self.fit.intervals(base).standard_error / np.linalg.norm(root, axis=1))[:, None]
        facts = _Start(
            base=base,
            prior=jnp.asarray(np.sum(R**2, axis=0) / max(power, 1e-300), dtype),
            reference=jnp.asarray(base.matrix @ self.fit.parameters, dtype),
            covariance=root @ root.T,
            weights=jnp.asarray(1 / (self.correlation * np.maximum(sigma, 1e-300) ** 2), dtype),
            fixed=fixed,
        )
        object.__setattr__(self, "_facts", facts)

    @property
    def names(self) -> tuple[str, ...]:
        """The base parameters in words, `[k]`."""
        return tuple(self._facts.base.describe())

    def start(self) -> RecursiveState:
        """The state before the first sample."""
        k = len(self._facts.prior)
        zero = jnp.zeros((k, k), self.fit.model.dtype)
        # Three arrays, so that a compiled program may overwrite each (`donate_argnums`).
        return RecursiveState(zero, zero.copy(), jnp.zeros(k, zero.dtype))

    def update(self, state: RecursiveState, q: jax.Array, v: jax.Array, a: jax.Array, tau: jax.Array) -> RecursiveState:
        """Return the state after a sample `q` `[nq]`, `v`, `a`, `tau` `[nv]`; for `jax.jit`."""
        model, layout, facts = self.fit.model, self.fit.layout, self._facts
        motion = (q, v, a, jnp.zeros_like(v))
        A = torque_columns(model, motion, self.fit.shape, layout)[:, facts.base.independent]
        terms = momentary_terms(model, motion, self.fit.shape, layout)
        known = sum((leaf * terms[kind] for kind, leaf in facts.fixed.items()), jnp.zeros_like(v))
        if model.stiffness is not None:
            known = known + spring_torque(model, q)
        residual = tau - known - A @ facts.reference
        kept = float(np.exp(-self.dt / self.memory))
        weighted = A.T * facts.weights
        new = weighted @ A
        return RecursiveState(
            kept * state.information + new, kept**2 * state.scores + new, kept * state.vector + weighted @ residual
        )

    def intervals(self, state: RecursiveState, *, level: float = 0.95) -> Intervals:
        """The base parameters with intervals, which hold for constant parameters; `prior_share` is the part of the
        variance that is left of the expected changes."""
        change, covariance = self._solved(state, np.eye(len(self._facts.prior)))
        value, error = np.asarray(self._facts.reference) + change, np.sqrt(np.diagonal(covariance))
        share = np.minimum(np.diagonal(covariance) * np.asarray(self._facts.prior), 1.0)
        return normal_intervals(self.names, value, error, share, level)

    @naming_arguments
    def payload(self, state: RecursiveState, frame: str, *, level: float = 0.95) -> Intervals:
        """Return what the robot carries at a frame more than in the fit: ten inertial parameters about the frame's
        origin, in its axes, with intervals, which are infinite for those that no torque shows. Joint effects may have
        changed, too. **Raises** `UnknownNameError`; `DataError` for a frame in the world."""
        model, base = self.fit.model, self._facts.base
        place = model.topology.frame(frame)
        body = model.topology.frame_bodies[place]
        if body < 0:
            raise DataError(f"the frame {frame!r} is fixed in the world, where nothing is carried")
        pose = np.asarray(model.frame_placement, np.float64)[place]
        moved = np.stack([transform_inertial_parameters(x, pose) for x in np.eye(10)], axis=-1)
        carried = base.matrix[:, 10 * body : 10 * body + 10] @ moved
        directions = np.hstack([carried, base.matrix[:, 10 * model.nb :]])
        change, covariance = self._solved(state, directions, reference=self._facts.covariance)
        error, share = np.sqrt(np.diagonal(covariance))[:10], np.zeros(10)
        return normal_intervals(INERTIAL_NAMES, change[:10], error, share, level)

    def _solved(
        self, state: RecursiveState, directions: np.ndarray, reference: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return changes `[m]` along directions `[k, m]` of the base parameters, and their covariance, which counts the
        covariance `[k, k]` of the parameters that they are changes of, if it is given."""
        information, scores, vector = (np.asarray(x, np.float64) for x in state)
        prior = np.diag(np.asarray(self._facts.prior, np.float64))
        H = directions.T @ (information + prior) @ directions
        size = np.diagonal(H)
        scale = 1 / np.sqrt(np.where(size > 0, size, 1.0))
        sizes, axes = np.linalg.eigh(scale[:, None] * H * scale)
        # Directions that do the same to all base parameters have rounding in the place of zero.
        kept = sizes > _SAME * sizes[-1]
        root = scale[:, None] * axes[:, kept] / np.sqrt(sizes[kept])
        inverse = root @ root.T
        covariance = inverse @ (directions.T @ (scores + prior) @ directions) @ inverse
        if reference is not None:
            along = inverse @ (directions.T @ information)
            covariance = covariance + along @ reference @ along.T
        undetermined = np.abs(axes[:, ~kept]).max(axis=1, initial=0.0) > np.sqrt(_SAME)
        covariance[undetermined, undetermined] = np.inf
        return inverse @ (directions.T @ vector), covariance
