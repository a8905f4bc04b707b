"""What a fit to roll-outs returns, and how certain it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.sysid.parameters._block import leaf_name, model_of
from jaxdyn.sysid.parameters._parametrization import Parametrization
from jaxdyn.sysid.rollouts._arrow import Rows, eliminated, solution
from jaxdyn.sysid.rollouts._shooting import ShootingState
from jaxdyn.sysid.torques._intervals import Intervals, quantile
from jaxdyn.sysid.torques._torque_model import INERTIAL_NAMES, dof_names

type Quantities = Mapping[str, Callable[[Any], Any]]


class RolloutFit(eqx.Module):
    """A robot identified from roll-outs."""

    robot: Any
    """Identified: a `Model` or `Robot`, as the parametrization's reference is."""
    before: Any
    """With the free numbers from which the fit started."""
    parametrization: Parametrization
    free: np.ndarray
    """`[P]`: free numbers of `robot`."""
    covariance: np.ndarray
    """`[P, P]`: of the free numbers about `robot`, those of `parametrization.about(robot)`; the segments' states are
    accounted for. From the Gauss-Newton matrix, the size of the residuals, as if these were independent, and the prior
    as it was given."""
    clustered_covariance: np.ndarray
    """`[P, P]`: the same if residuals depend on each other within a segment, and not between segments (the sandwich
    estimate). Wider where the model is wrong; it needs many more segments than parameters."""
    status: str
    """In words: `"converged"`, or what stopped the fit."""
    cost: float
    iterations: int
    rounds: int
    position_noise: np.ndarray
    """`[nv]`: root mean square of the position residuals, rad or m."""
    velocity_noise: np.ndarray | None
    """`[nv]`: of the velocity residuals."""
    segment_residuals: np.ndarray
    """`[segments]`: root mean square of each segment's residuals, in units of the noise that weighted them."""
    segment_recordings: np.ndarray
    """`[segments]`: which recording each is from."""
    segment_times: np.ndarray
    """`[segments]`: when each starts, s."""
    defects: np.ndarray
    """`[segments, 2 nv]`: by how much each segment misses the start of the next, positions and then velocities; zero
    for the last of a recording, and where segments are independent."""
    zeros: np.ndarray
    """`[recordings, nv]`: by how much each recording's sensors read more than the positions are, rad or m; zero unless
    `zero_deviation` was given."""
    rows: Rows
    """The linear system at the solution, of which the covariances are, and which `bootstrap` solves anew."""
    state: ShootingState

    @property
    def converged(self) -> bool:
        """Whether `status` says so."""
        return self.status == "converged"

    @property
    def standard_errors(self) -> np.ndarray:
        """`[P]`: of the free numbers about `robot`, by `covariance`."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def prior_covariance(self) -> np.ndarray:
        """`[P, P]`: of the free numbers about `robot` by the pull toward the reference alone; infinite without one."""
        P = len(self.free)
        K = np.asarray(self.rows.border, np.float64)[:P, :P]
        return np.linalg.inv(K.T @ K) if K.any() else np.diag(np.full(P, np.inf))

    def interval(
        self, function: Callable[[Any], Any], level: float = 0.95, clustered: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A quantity of the robot, and the ends of its confidence interval: `fit.interval(lambda model: model.mass)`.

        By the first derivative of the quantity and the covariance of the free numbers.
        """
        value, slope = self._slope(function)
        half = quantile(level) * np.sqrt(_variance(slope, self.clustered_covariance if clustered else self.covariance))
        return value, value - half, value + half

    def intervals(
        self, quantities: Quantities | None = None, *, level: float = 0.95, clustered: bool = False
    ) -> Intervals:
        """Values, standard errors and intervals of quantities of the robot, by name, and how much of their variance
        the prior alone has: `fit.intervals().decided_by_prior()`.

        By default of all entries of the robot that are free: a body's inertial parameters, a joint's friction.
        """
        return self._table(
            quantities,
            level,
            lambda _, slope: _variance(slope, self.clustered_covariance if clustered else self.covariance),
        )

    def bootstrap(self, *, draws: int = 200, blocks: int = 40, seed: int = 0) -> RolloutBootstrap:
        """Weigh the recordings anew by blocks of segments, and see how the robot scatters.

        Blocks of consecutive segments keep what these have in common, if a block is longer than that lasts. Their
        weights are those of the Bayesian bootstrap (Rubin, The Bayesian bootstrap, Annals of Statistics 1981): uniform
        among all that sum to the number of blocks. With counts of draws, a third of the blocks would be left out, and
        the chains of segments cut there. Each draw is solved by one Gauss-Newton step from the fit, with the weights
        that its robust loss has. `blocks`: how many, over all recordings.

        **Raises** `DataError` for fewer than two blocks or draws, and for a fit that has no solution.
        """
        if blocks < 2 or draws < 2:
            raise DataError(f"bootstrap with {blocks} blocks and {draws} draws; two of each are the least")
        if not np.isfinite(self.covariance).all():
            raise DataError(
                "the data leave some free numbers open, and there is no prior: nothing to resample. Fit with a "
                "prior_weight, or with fewer free numbers"
            )
        owner, first = np.zeros(len(self.segment_recordings), int), 0
        for recording in np.unique(self.segment_recordings):
            mine = np.flatnonzero(self.segment_recordings == recording)
            count = max(1, round(blocks * len(mine) / len(owner)))
            owner[mine] = first + np.arange(len(mine)) * count // len(mine)
            first = owner[mine].max() + 1
        rng = np.random.default_rng(seed)
        weights = first * rng.dirichlet(np.ones(first), size=draws)[:, owner]
        steps = _drawn(self.rows, jnp.asarray(np.sqrt(weights), self.rows.match.dtype))[:, : len(self.free)]
        free = jax.vmap(self.parametrization.moved, (None, 0))(jnp.asarray(self.free), steps)
        return RolloutBootstrap(self, np.asarray(free), first)

    def _slope(self, function: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
        here = self.parametrization.about(self.robot)
        slope = jax.jacfwd(lambda x: jnp.asarray(function(here.model(x))))(here.zeros())
        return np.asarray(function(self.robot), np.float64), np.asarray(slope, np.float64)

    def _table(self, quantities: Quantities | None, level: float, variance: Callable, ends=None) -> Intervals:
        z = quantile(level)
        prior = self.prior_covariance
        given = {"": self.free_entries} if quantities is None else quantities
        names: list[str] = []
        columns = []
        for name, function in given.items():
            value, slope = self._slope(function)
            names += self._free_names() if quantities is None else _numbered(name, value.shape)
            error = np.sqrt(variance(function, slope))
            lower, upper = (value - z * error, value + z * error) if ends is None else ends(function)
            with np.errstate(invalid="ignore"):
                share = error**2 / _variance(slope, prior)
            # What does not depend on the free numbers is as it was.
            share = np.where((slope == 0).all(axis=-1), 1.0, share)
            columns.append([np.ravel(x) for x in (value, error, lower, upper, share)])
        values, errors, lowers, uppers, shares = (np.concatenate(x) for x in zip(*columns, strict=True))
        return Intervals(tuple(names), values, errors, lowers, uppers, shares, level)

    def _claims(self) -> list[tuple[int, int]]:
        return sorted(claim for block in self.parametrization.blocks for claim in block.claims)

    def free_entries(self, robot: Any) -> jax.Array:
        """What of a robot is free, in the order of `intervals().names`."""
        leaves = jax.tree.leaves(robot)
        return jnp.stack([jnp.ravel(leaves[leaf])[place] for leaf, place in self._claims()])

    def _free_names(self) -> list[str]:
        reference = self.parametrization.reference
        model, leaves = model_of(reference), jax.tree.leaves(reference)
        out = []
        for number, place in self._claims():
            name, shape = leaf_name(reference, number), np.shape(leaves[number])
            if name.endswith("inertial_parameters"):
                out.append(f"{INERTIAL_NAMES[place % 10]}({model.body_names[place // 10]})")
            elif shape == (model.nv,):
                out.append(f"{name}({dof_names(model)[place]})")
            else:
                out.append(f"{name}{[int(k) for k in np.unravel_index(place, shape)]}")
        return out


class RolloutBootstrap(NamedTuple):
    """Robots of recordings whose blocks have random weights."""

    fit: RolloutFit
    free: np.ndarray
    """`[draws, P]`: free numbers of the fit's parametrization: every draw is physical."""
    blocks: int

    def intervals(self, quantities: Quantities | None = None, *, level: float = 0.95) -> Intervals:
        """Standard errors over the draws, and intervals between their quantiles; as `RolloutFit.intervals`.

        The draws keep the prior where it is: what it alone decides hardly scatters, and says so by `prior_share`, which
        is that of `RolloutFit.intervals`.
        """
        robots = self.fit.parametrization.model(self.free)

        def drawn(function) -> np.ndarray:
            return np.asarray(jax.vmap(lambda robot: jnp.asarray(function(robot)))(robots), np.float64)

        def ends(function):
            return np.quantile(drawn(function), [(1 - level) / 2, (1 + level) / 2], axis=0)

        def variance(function, _):
            return drawn(function).var(axis=0, ddof=1)

        out = self.fit._table(quantities, level, variance, ends)
        return out._replace(prior_share=self.fit.intervals(quantities, level=level).prior_share)


def _variance(slope: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    # An infinite variance times no influence is none.
    with np.errstate(invalid="ignore"):
        terms = np.einsum("...i,ij,...j->...ij", slope, covariance, slope)
    return np.where(slope[..., :, None] * slope[..., None, :] == 0, 0, terms).sum(axis=(-2, -1))


def _numbered(name: str, shape: tuple[int, ...]) -> list[str]:
    return [f"{name}{list(map(int, at)) if at else ''}" for at in np.ndindex(shape)]


@eqx.filter_jit
def _drawn(rows: Rows, roots: jax.Array) -> jax.Array:
    """`[draws, shared]`: the solutions with the rows of each segment times `roots` `[draws, segments]`."""
    n = rows.match.shape[1]
    # Segments may have next to no weight, and no equations then.
    least = 1e-6 * jnp.sqrt(jnp.sum(rows.data[..., :n] ** 2, axis=-2))

    def solved(root):
        scaled = rows._replace(data=root[:, None, None] * rows.data, match=root[:, None, None] * rows.match)
        return solution(eliminated(scaled, least, jnp.zeros(rows.border.shape[-1] - 1, rows.border.dtype)))[1]

    return jax.lax.map(solved, roots, batch_size=16)
