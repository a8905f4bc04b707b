"""The result of a fit to roll-outs, its covariances, and the intervals of its quantities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import qr

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, require_positive_integer
from jaxdyn._status import Status
from jaxdyn.sysid.parameters import Parametrization, leaves, touching_arrays
from jaxdyn.sysid.rollouts._arrow import ArrowSystem, compress, eliminate_states, influence, solution
from jaxdyn.sysid.rollouts._shooting import ShootingState
from jaxdyn.sysid.torques import Intervals, intervals, torque_layout, torque_model

type Quantities = Mapping[str, Callable[[Any], Any]]


class RolloutFit(eqx.Module):
    """A robot identified from roll-outs."""

    robot: Any
    """The identified robot: a `Model` or `World`, as the parametrization's reference is."""
    before: Any
    """The robot from which the fit started."""
    parametrization: Parametrization
    free: np.ndarray
    """`[P]`: free numbers of `robot`."""
    covariance: np.ndarray
    """`[P, P]`: covariance of the free numbers about `robot`, those of `parametrization.about(robot)`, with unknown
    states of the segments. From the Gauss-Newton matrix, the size of the residuals, as if these were independent, and
    the prior as it was given."""
    clustered_covariance: np.ndarray
    """`[P, P]`: the same if residuals depend on each other within a segment, and not between segments (the sandwich
    estimate). Wider where the model is wrong; it needs many more segments than parameters."""
    status: Status
    message: str
    """`status` in words, with the numbers that explain it."""
    step_left: float
    """Length of the Gauss-Newton step that is left to the minimum, in standard errors: the largest over all directions
    of the free numbers and the sensors' zeros. At most 0.03 where the fit has converged, and 0.2 times the root of the
    number of these where it has converged on average over jumps of contacts. A free number that neither data nor prior
    determine counts with a standard error of 10."""
    cost: float
    """Half of the sum of squares; of a fit that has converged on average, of the average residuals over their noise and
    scatter."""
    iterations: int
    rounds: int
    unsolved: int
    """In how many intervals between samples contacts were not solved to their tolerance, in the roll-outs at the end;
    more iterations in the `SolverOptions` help."""
    position_noise: np.ndarray
    """`[nv]`: root mean square of the position residuals, rad or m."""
    velocity_noise: np.ndarray | None
    """`[nv]`: the same of the velocity residuals."""
    segment_residuals: np.ndarray
    """`[segments]`: root mean square of each segment's residuals, in units of the noise that weighted them."""
    segment_recordings: np.ndarray
    """`[segments]`: number of the recording of each."""
    segment_times: np.ndarray
    """`[segments]`: start of each, s."""
    defects: np.ndarray
    """`[segments, 2 nv]`: end of each segment minus the start of the next, positions and then velocities; zero for the
    last of a recording, and where segments are independent."""
    zeros: np.ndarray
    """`[recordings, nv]`: reading minus position of each recording's sensors, rad or m; 0 without `zero_deviation`."""
    rows: ArrowSystem
    """The linear system at the solution, for the covariances and `bootstrap`."""
    state: ShootingState

    @property
    def converged(self) -> bool:
        """Whether `status` is `CONVERGED`."""
        return self.status == Status.CONVERGED

    @property
    def standard_errors(self) -> np.ndarray:
        """Standard errors of the free numbers about `robot`, by `covariance`, `[P]`."""
        return np.sqrt(np.diagonal(self.covariance))

    @property
    def undetermined(self) -> tuple[str, ...]:
        """The names of the free numbers that the data and the prior leave open: those with a standard error above 1,
        which is a factor of 2.7, or their `scale`. A law of contact is open where nothing touched, its friction where
        nothing slid, its stiffness together with all inertias that a free body has."""
        return tuple(n for n, e in zip(self.parametrization.names, self.standard_errors, strict=True) if not e <= 1)

    @property
    def undetermined_directions(self) -> tuple[str, ...]:
        """The combinations of free numbers along which the robot may change by a factor of 2.7, or by their `scale`,
        unseen by data and prior: in `"inertia of upper: log scale + log damping of elbow"` both grow together. Numbers
        that are `undetermined` may well be known in other combinations."""
        R, P = np.asarray(_curvature(self.rows)[2], np.float64), len(self.free)
        # The zeros of sensors first: what is left of the others then is what is known for any zeros.
        zeros = R.shape[1] - P
        left = np.linalg.qr(np.roll(R, zeros, axis=1), mode="r")[zeros:, zeros:]
        _, size, directions = np.linalg.svd(left)
        open_ = directions[size <= max(1.0, 1e-9 * size[0])]
        if not len(open_):
            return ()
        # Each direction gets a number that no other has.
        *_, order = qr(open_, pivoting=True, mode="economic")
        rows = np.linalg.solve(open_[:, order[: len(open_)]], open_)
        return tuple(_in_words(row, self.parametrization.names) for row in rows)

    @property
    def prior_covariance(self) -> np.ndarray:
        """Covariance of the free numbers about `robot` by the prior alone, `[P, P]`; infinite without one."""
        P = len(self.free)
        K = np.asarray(self.rows.border, np.float64)[:, :P]
        return np.linalg.inv(K.T @ K) if K.any() else np.diag(np.full(P, np.inf))

    def interval(
        self, function: Callable[[Any], Any], level: float = 0.95, clustered: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a quantity of the robot, and the ends of its confidence interval, from the first derivative of the
        quantity and the covariance of the free numbers: `fit.interval(lambda model: model.mass)`. It is symmetric about
        the value, so that of a positive quantity may reach below zero; that of its logarithm does not."""
        value, slope = self._slope(function)
        half = intervals.quantile(level) * self._error(slope, clustered)
        return value, value - half, value + half

    def intervals(
        self, quantities: Quantities | None = None, *, level: float = 0.95, clustered: bool = False
    ) -> Intervals:
        """Return values, standard errors and intervals of quantities of the robot, by name, and the share of the prior
        in their variance: `fit.intervals().decided_by_prior()`.

        The default is all entries of the robot that are free: a body's inertial parameters, a joint's friction.
        """
        names, function = self._named(quantities)
        value, slope = self._slope(function)
        error = self._error(slope, clustered)
        with np.errstate(invalid="ignore"):
            share = error**2 / _quadratic_form(slope, self.prior_covariance)
        # A quantity that does not depend on the free numbers is decided by the prior.
        share = np.where((slope == 0).all(axis=-1), 1.0, share)
        return intervals.normal_intervals(names, value, error, share, level)

    def bootstrap(self, *, draws: int = 200, blocks: int = 40, seed: int = 0) -> RolloutBootstrap:
        """Return robots identified with random weights of blocks of segments, whose scatter shows the uncertainty.

        Blocks of consecutive segments keep the correlation within a block. Weights are drawn by the Bayesian bootstrap
        (Rubin, The Bayesian bootstrap, Annals of Statistics 1981): uniform among all that sum to the number of blocks.
        Counts of draws would leave out a third of the blocks, and cut the chains of segments there. Each draw is solved
        by one Gauss-Newton step from the fit, with the weights of its robust loss. `blocks` is the number over all
        recordings.

        **Raises** `DataError` for fewer than two blocks or draws, and for a fit that has no solution.
        """
        for name, count in (("blocks", blocks), ("draws", draws)):
            require_positive_integer(count, f"bootstrap: {name}", least=2, error=DataError)
        if not np.isfinite(self.covariance).all():
            raise DataError(
                "the data do not determine all free numbers, and without a prior there is nothing to resample. Fit "
                "with a prior_weight, or with fewer free numbers"
            )
        owner = torque_model.consecutive_blocks(np.unique(self.segment_recordings, return_counts=True)[1], blocks)
        count, rng = int(owner[-1]) + 1, np.random.default_rng(seed)
        weights = count * rng.dirichlet(np.ones(count), size=draws)[:, owner]
        steps = _solve_draws(self.rows, jnp.asarray(np.sqrt(weights), self.rows.match.dtype))[:, : len(self.free)]
        free = jax.vmap(self.parametrization.moved, (None, 0))(jnp.asarray(self.free), steps)
        return RolloutBootstrap(self, np.asarray(free), count)

    def _error(self, slope: np.ndarray, clustered: bool) -> np.ndarray:
        return np.sqrt(_quadratic_form(slope, self.clustered_covariance if clustered else self.covariance))

    def _slope(self, function: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
        here = self.parametrization.about(self.robot)
        slope = jax.jacfwd(lambda x: jnp.asarray(function(here.model(x))))(here.zeros())
        return np.asarray(function(self.robot), np.float64), np.asarray(slope, np.float64)

    def _named(self, quantities: Quantities | None) -> tuple[list[str], Callable[[Any], jax.Array]]:
        """The names of all entries of quantities `[k]`, and the function that returns them."""
        if quantities is None:
            return self._free_names(), self.free_entries
        shapes = {name: np.shape(function(self.robot)) for name, function in quantities.items()}
        names = [f"{name}{list(i) or ''}" for name, shape in shapes.items() for i in np.ndindex(shape)]
        return names, lambda robot: jnp.concatenate([jnp.ravel(f(robot)) for f in quantities.values()])

    def _labels(self) -> dict[tuple[int, int], str | None]:
        return {entry: name for block in self.parametrization.blocks for entry, name in block.labels().items()}

    def _claims(self) -> list[tuple[int, int]]:
        labels = self._labels()
        claims = (claim for block in self.parametrization.blocks for claim in block.claims)
        return sorted(claim for claim in claims if labels.get(claim, "") is not None)

    def free_entries(self, robot: Any) -> jax.Array:
        """Return the free entries of a robot, in the order of `intervals().names`."""
        arrays = jax.tree.leaves(robot)
        return jnp.stack([jnp.ravel(arrays[leaf])[place] for leaf, place in self._claims()])

    def _free_names(self) -> list[str]:
        reference = self.parametrization.reference
        model, arrays = leaves.model_of(reference), jax.tree.leaves(reference)
        labels, out = self._labels(), []
        for number, place in self._claims():
            name, shape = leaves.leaf_name(reference, number), np.shape(arrays[number])
            if label := labels.get((number, place)) or touching_arrays.entry_name(reference, number, place):
                out.append(label)
            elif (leaf := name.rpartition(".")[2]) in leaves.LEAVES and place % 7 < 3:
                label = leaves.place_label(model, (leaf, place // 7))
                out.append(f"position {'xyz'[place % 7]}({label})")
            elif name.endswith("inertial_parameters"):
                out.append(f"{torque_layout.INERTIAL_NAMES[place % 10]}({model.body_names[place // 10]})")
            elif shape == (model.nv,) and not name.startswith("parts."):
                out.append(f"{name}({model.topology.dof_names[place]})")
            else:
                out.append(f"{name}{[int(k) for k in np.unravel_index(place, shape)] or ''}")
        return out

    def printed(self) -> printing.Facts:
        """The facts that `print` shows: how the fit ended, its errors, and the first values with their intervals."""
        facts = {
            "cost": f"{self.cost:.6g} after {self.iterations} iterations in {self.rounds} rounds",
            "step left": f"{self.step_left:.2g} standard errors",
            "position noise": f"{printing.numbers(self.position_noise)} rad or m",
        }
        if self.velocity_noise is not None:
            facts["velocity noise"] = f"{printing.numbers(self.velocity_noise)} rad/s or m/s"
        facts["free numbers"] = f"{len(self.free)}; intervals() has the values with their intervals"
        facts |= {"undetermined": ", ".join(self.undetermined)} if self.undetermined else {}
        return self.message, facts | {"segments": str(len(self.segment_times))}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


class RolloutBootstrap(NamedTuple):
    """Robots identified from recordings whose blocks have random weights."""

    fit: RolloutFit
    free: np.ndarray
    """`[draws, P]`: free numbers of the fit's parametrization; every draw is physical."""
    blocks: int

    def intervals(self, quantities: Quantities | None = None, *, level: float = 0.95) -> Intervals:
        """Return standard errors over the draws, and intervals between their quantiles, as `RolloutFit.intervals`.

        The draws keep the prior where it is: quantities that it alone decides hardly scatter. `prior_share`, taken from
        `RolloutFit.intervals`, shows them.
        """
        robots = self.fit.parametrization.model(self.free)
        draws = np.asarray(jax.vmap(self.fit._named(quantities)[1])(robots), np.float64)
        return intervals.around_draws(self.fit.intervals(quantities, level=level), draws)

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        draws, count = self.free.shape
        return f"{draws} draws of {self.blocks} blocks", {"free numbers": str(count), "next": "intervals()"}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


def _in_words(row: np.ndarray, names: Sequence[str]) -> str:
    """A combination in words, its largest number first, without parts below a hundredth of that."""
    terms, largest = [], row[np.argmax(np.abs(row))]
    for i in np.argsort(-np.abs(row), kind="stable"):
        x = float(row[i] / largest)
        if abs(x) > 0.01:
            number = "" if abs(abs(x) - 1) < 0.005 else f"{abs(x):.2g} "
            terms.append(f"{'-' if x < 0 else '+'} {number}{names[i]}")
    return " ".join(terms).removeprefix("+ ")


def _quadratic_form(slope: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    # An infinite variance times no influence is zero.
    with np.errstate(invalid="ignore"):
        terms = np.einsum("...i,ij,...j->...ij", slope, covariance, slope)
    return np.where(slope[..., :, None] * slope[..., None, :] == 0, 0, terms).sum(axis=(-2, -1))


@eqx.filter_jit
def _solve_draws(system: ArrowSystem, roots: jax.Array) -> jax.Array:
    """Return the solutions `[draws, shared]` with the rows of each segment times `roots` `[draws, segments]`."""
    n = system.match.shape[1]
    # Segments may have next to no weight, and no equations then.
    least = 1e-6 * jnp.sqrt(jnp.sum(system.data[..., :n] ** 2, axis=-2))

    def solve(root):
        data, match = (root[:, None, None] * x for x in (system.data, system.match))
        scaled = system._replace(data=data, match=match)
        return solution(eliminate_states(scaled, least, jnp.zeros(system.border.shape[-1] - 1, data.dtype)))[1]

    return jax.lax.map(solve, roots, batch_size=16)


@eqx.filter_jit
def _curvature(system: ArrowSystem) -> tuple[jax.Array, ...]:
    """Return the inverse of the normal matrix `[P, P]`, the change of the parameters due to each segment's residuals
    `[segments, P]`, and the triangular factor `[P, P]` of the normal matrix."""
    S, n = system.match.shape[:2]
    P, dtype = system.border.shape[-1] - 1, system.match.dtype
    factor = eliminate_states(compress(system), jnp.zeros((S, n), dtype), jnp.zeros(P, dtype))
    z, inverse = influence(factor)

    def score(rows: jax.Array, z: jax.Array) -> jax.Array:
        """`H^-1` times the gradient of each segment's own residuals in these rows."""
        k = z.shape[1]
        along = jnp.einsum("smn,snp->smp", rows[..., :k], z) + jnp.einsum("smn,np->smp", rows[..., k:-1], inverse)
        return jnp.einsum("sm,smp->sp", rows[..., -1], along)

    both = jnp.concatenate([z, jnp.roll(z, -1, axis=0)], axis=1)
    return inverse, score(system.data, z) + score(system.match, both), factor.border[:, :-1]


def covariances(system: ArrowSystem, variance: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the covariances `[size, size]` of the free numbers for independent residuals, and for residuals that are
    independent from segment to segment only. Variances are infinite where the system says nothing of a number.

    With `H` the Gauss-Newton matrix of data and prior `K^T K` together, `H^-1 (s^2 (H - K^T K) + K^T K) H^-1`: the
    prior counts as it was given, however small the residuals are.
    """
    S, P = len(system.match), system.border.shape[-1] - 1
    inverse, scores, border = (np.asarray(x, np.float64) for x in _curvature(system))
    pull, norms = np.asarray(system.border, np.float64)[:, :-1], np.linalg.norm(border, axis=0)
    unit = np.where(norms > 0, norms, 1.0)
    _, sizes, directions = np.linalg.svd(border / unit)
    seen = sizes > P * np.finfo(np.dtype(system.border.dtype)).eps * max(sizes.max(initial=0), 1e-300)
    unseen = (norms == 0) | (np.abs(directions[~seen]) > 1e-6).any(axis=0)
    if not seen.all():
        inverse = (directions[seen].T / sizes[seen] ** 2) @ directions[seen] / np.outer(unit, unit)
    by_prior = inverse @ (pull.T @ pull) @ inverse
    covariance = variance * inverse + (1 - variance) * by_prior
    if unseen.any():
        covariance[unseen, :] = covariance[:, unseen] = 0.0
        covariance[np.diag_indices(P)] = np.where(unseen, np.inf, np.diagonal(covariance))
        return covariance[:size, :size], covariance[:size, :size]
    clustered = S / max(S - 1, 1) * (scores.T @ scores) + by_prior
    return covariance[:size, :size], clustered[:size, :size]
