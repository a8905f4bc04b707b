"""Correlated residuals: their spectra, and the covariance that they give to the slope of a least-squares cost."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple, Self

import numpy as np
import scipy.fft

from jaxdyn.sysid.torques._torque_model import Samples, consecutive_blocks

# Politis 2003: autocorrelations count as zero from the first lag after which this many are below the level of chance.
_QUIET_LAGS = 5
# Where a fit takes nearly all power, what is left says nothing; the variance is multiplied by ten at most.
_LARGEST_LEVERAGE = 0.9
_BLOCKS = 40
# Where gaps leave a smaller part of the pairs at a lag, their products say little, and count as if there were so many.
_LEAST_PAIRS = 0.05
# Equations that have no more than this part of a joint's noise say nothing about its spectrum.
_LEAST_SHARE = 1e-4


@dataclasses.dataclass(frozen=True)
class SlopeNoise:
    """The covariance of `X^T r`, the slope of half the sum of squares of the residuals `r / sigma` with respect to the
    parameters and the logarithms of the unknown inverse drive gains."""

    samples: Samples
    residual: np.ndarray
    """`[len(samples), nv]`"""
    sigma: np.ndarray
    gain: np.ndarray
    hat: np.ndarray
    """`[P + gains, k]`: `W` with `W W^T` the covariance of the solution, which gives the leverages."""
    weights: np.ndarray | None = None
    """`[len(samples), nv]`: those of a robust loss, whose slope has the residuals times the weights."""

    @property
    def _scores(self) -> np.ndarray:
        return self.residual / self.sigma * (1.0 if self.weights is None else self.weights)

    def _derivatives(self, rows: slice, B: np.ndarray, j: int) -> np.ndarray:
        """The derivatives `[rows, P + gains]` of a joint's residuals by the parameters and the logarithms."""
        X = B[:, j, :-2] / (self.gain[j] * self.sigma[j])
        owner = np.array(self.samples.layout.gains) == j
        return np.concatenate([X, np.outer(self.residual[rows, j] + B[:, j, -1], owner / self.sigma[j])], axis=1)

    def by_spectra(self) -> np.ndarray:
        """Return the triangular `K` `[k, P + gains]` for which `K^T K` is the covariance `sum_j 1/2pi integral S_j(w)
        X_j(w) X_j(w)^* dw`.

        The spectrum `S_j` of each joint is estimated from its residuals; different joints count as independent. White
        residuals of variance `sigma^2` give `X^T X`. A fit takes power out of the residuals at the frequencies of the
        motion. What is left is `S_j` times one minus the leverage of the frequency, and is divided by that: the
        correction of MacKinnon & White 1985, frequency by frequency.

        Source: Hannan, Regression for time series, in Rosenblatt (ed.), Time series analysis, 1963 (the covariance of
        least squares with stationary residuals).
        """
        samples, hat = self.samples, self.hat
        # Unknown forces take a part of each joint's noise, and couple what is left of it among the joints: white noise
        # gives `X^T X` with scores that have the size of the whole noise.
        share = np.broadcast_to(samples.noise_share, self.residual.shape).mean(axis=0)
        share = np.maximum(share, _LEAST_SHARE)
        scores = self._scores / np.sqrt(share)
        ends = np.cumsum([0, *samples.lengths])
        parts = [scores[a:b] for a, b in itertools.pairwise(ends)]
        joints = range(samples.layout.nv)
        residuals = [_Spectrum.of([x[:, [j]] for x in parts]) for j in joints]

        used = [np.zeros(len(x.lags)) for x in residuals]
        for rows, B in samples.chunks():
            for j in joints:
                used[j] = used[j] + _lagged_products([self._derivatives(rows, B, j) @ hat], len(used[j]))
        counts = np.maximum(np.count_nonzero(self.residual, axis=0), 1)
        factor = np.zeros((0, hat.shape[0]))
        for rows, B in samples.chunks():
            length = _fast_length(len(B) + max(len(x.lags) for x in residuals))
            # A real series of this length has all frequencies but the first, and the last of an even length, twice.
            twice = np.full(length // 2 + 1, 2.0)
            twice[0] = 1.0
            twice[-1] = 1.0 if length % 2 == 0 else 2.0
            for j, noise in enumerate(residuals):
                leverage = np.minimum(noise.like(used[j] / counts[j] / share[j]).density(length), _LARGEST_LEVERAGE)
                spectrum = noise.density(length) / (1 - leverage)
                X = (
                    np.fft.rfft(self._derivatives(rows, B, j), length, axis=0)
                    * np.sqrt(twice * spectrum / length)[:, None]
                )
                factor = np.linalg.qr(np.concatenate([factor, X.real, X.imag]), mode="r")
        return factor

    def by_blocks(self) -> np.ndarray:
        """Return `K` `[blocks, P + gains]` for which `K^T K` is the same covariance as in `by_spectra`, for residuals
        that depend on the motion as well, but are independent from block to block in time: the sum over the blocks of
        the slopes' outer products. The residuals of a block are those that the fit to all other blocks would leave
        there.

        Source: Bell & McCaffrey, Bias reduction in standard errors for linear regression with multi-stage samples,
        Survey Methodology 2002 (CR3, the jackknife of blocks).
        """
        samples, hat, scores = self.samples, self.hat, self._scores
        groups = consecutive_blocks(samples.lengths, _BLOCKS)
        count, k = int(groups.max()) + 1, hat.shape[1]
        slopes, products = np.zeros((count, hat.shape[0])), np.zeros((count, k, k))
        for rows, B in samples.chunks():
            for j in range(samples.layout.nv):
                X = self._derivatives(rows, B, j)
                for group in np.unique(groups[rows]):
                    mine = groups[rows] == group
                    slopes[group] += X[mine].T @ scores[rows, j][mine]
                    products[group] += (X[mine] @ hat).T @ (X[mine] @ hat)
        # X^T (1 - Z Z^T)^-1 r = X^T r + X^T Z (1 - Z^T Z)^-1 Z^T r, for Z = X W, where X^T X = W^-T Z^T Z W^-1.
        inverse = np.linalg.pinv(hat)
        size, directions = np.linalg.eigh(products)
        size = np.clip(size, 0.0, _LARGEST_LEVERAGE)
        along = np.einsum("bki,pk,bp->bi", directions, hat, slopes) / (1 - size) * size
        slopes = slopes + np.einsum("bki,bi->bk", directions, along) @ inverse
        return slopes * np.sqrt(max(count - 1, 1) / count)


def without_leverage(X: np.ndarray, residual: np.ndarray, hat: np.ndarray) -> np.ndarray:
    """Return the residuals `[n]` of a block with the derivatives `X` `[n, P]`, enlarged by what a fit takes out of
    independent ones: `(1 - Z Z^T)^(-1/2) r` for `Z = X hat`, where `hat hat^T` is the covariance of the solution.

    Source: Bell & McCaffrey 2002, as for `SlopeNoise.by_blocks` (CR2, which is unbiased for independent residuals).
    """
    Z = X @ hat
    size, directions = np.linalg.eigh(Z.T @ Z)
    # (1 - s)^(-1/2) = 1 + s / (root + root^2) for root^2 = 1 - s.
    root = np.sqrt(1 - np.clip(size, 0.0, _LARGEST_LEVERAGE))
    return residual + Z @ (directions @ ((directions.T @ (Z.T @ residual)) / (root + root**2)))


def independent_share(series: np.ndarray) -> float:
    """The number of independent values that would estimate the variance of a series `[n]` as well, as a part of `n`:
    `(mean of S)^2 / mean of S^2` for the spectrum `S`. Zeros stand for what was not recorded."""
    spectrum = _Spectrum.of([series[:, None]]).density(_fast_length(2 * len(series)))
    return float(np.mean(spectrum) ** 2 / max(np.mean(spectrum**2), 1e-300)) if spectrum.any() else 1.0


class _Spectrum(NamedTuple):
    """The autocovariance of a series, tapered to zero by a flat-top window (Politis & Romano, Bias-corrected
    nonparametric spectral estimation, Journal of Time Series Analysis 1995)."""

    lags: np.ndarray
    window: np.ndarray

    @classmethod
    def of(cls, series: list[np.ndarray]) -> _Spectrum:
        """The spectrum of pieces `[n, 1]` of one series. Its autocorrelations choose the width of the window (Politis,
        Adaptive bandwidth choice, Journal of Nonparametric Statistics 2003)."""
        whole, count = sum(map(len, series)), max(sum(int(np.count_nonzero(x)) for x in series), 1)
        most = max(1, min(count // 4, max(map(len, series)) - 1))
        lags = _lagged_products(series, most + 1) / whole
        if count < whole:
            # Zeros stand for torques that were not recorded: the mean is that over pairs of others.
            present = ([1.0 * (x != 0) for x in series], [np.ones_like(x) for x in series])
            pairs = np.divide(*(_lagged_products(x, most + 1) for x in present))
            lags = lags / np.maximum(pairs, _LEAST_PAIRS)
        if not lags[0] > 0:
            return cls(lags[:1], np.ones(1))
        small = np.abs(lags / lags[0]) < 2 * np.sqrt(np.log10(max(count, 10)) / count)
        run = np.convolve(small, np.ones(_QUIET_LAGS), "valid") == _QUIET_LAGS
        width = max(int(np.argmax(run)) if run.any() else most // 2, 1)
        window = np.clip(2 - np.arange(min(2 * width, most) + 1) / width, 0, 1)
        return cls(lags[: len(window)] * window, window)

    def like(self, lags: np.ndarray) -> _Spectrum:
        """The spectrum of an autocovariance with as many lags, seen through the same window."""
        return _Spectrum(lags * self.window, self.window)

    def density(self, length: int) -> np.ndarray:
        """The spectral density at the frequencies of `rfft` for this length; its mean is the variance."""
        symmetric = np.zeros(length)
        symmetric[: len(self.lags)] = self.lags
        symmetric[-np.arange(1, len(self.lags))] += self.lags[1:]
        return np.maximum(np.fft.rfft(symmetric).real, 0.0)


def _lagged_products(series: list[np.ndarray], count: int) -> np.ndarray:
    """The sums `[count]` of `x_t . x_(t + lag)` over pieces `[n, k]` of one series."""
    total = np.zeros(count)
    for x in series:
        power = np.sum(np.abs(np.fft.rfft(x, _fast_length(len(x) + count), axis=0)) ** 2, axis=1)
        total += np.fft.irfft(power, _fast_length(len(x) + count))[:count]
    return total


def _fast_length(least: int) -> int:
    """The next length for which a Fourier transform of real numbers is fast."""
    return int(scipy.fft.next_fast_len(least, real=True))  # type: ignore[arg-type]


class Correlation(NamedTuple):
    """How many residuals of each joint are alike; the arrays are `[nv]`, and at least 1."""

    length: np.ndarray
    """Integrated autocorrelation, `1 + 2 sum rho_k` over the lags that count."""
    span: np.ndarray
    """The same sum with ones in place of `rho_k`."""
    recurrence: np.ndarray
    """`length`, divided by that of the first lags: how often the same residuals recur later."""

    @classmethod
    def of(cls, residual: np.ndarray) -> Self:
        """The correlation of residuals `[n, nv]`. The first lags count until `rho_k` falls below 0.05, and so do later
        lags about a `rho_k` of more than three standard errors: the errors of a model recur with a periodic motion."""
        n = len(residual)
        spectrum = np.abs(np.fft.rfft(residual, 2 * n, axis=0)) ** 2
        sums = []
        for rho in np.fft.irfft(spectrum, axis=0)[:n].T:
            rho = rho / max(rho[0], 1e-300)
            above = rho > 0.05
            run = np.cumsum(np.diff(above, prepend=above[0]))
            top = np.zeros(run[-1] + 1)
            np.maximum.at(top, run, rho)
            # Bartlett's formula for lags at which nothing recurs; the squares of both signs of the lag count.
            error = np.sqrt(max(2 * np.sum(rho**2) - 1, 0.0) / n)
            first = run == 0
            counted = above & ((top > 3 * error)[run] | first)
            sums.append((np.sum(rho[counted]), np.sum(counted), np.sum(rho[first])))
        length, span, short = np.maximum(1.0, 2 * np.transpose(sums) - 1)
        return cls(length, span, length / short)

    @classmethod
    def largest(cls, parts: list[np.ndarray]) -> Self:
        """The largest of each number over the residuals of several recordings."""
        return cls(*np.maximum.reduce([cls.of(x) for x in parts]))
