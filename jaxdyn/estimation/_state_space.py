"""`StateSpaceModel`: dynamics and measurements with noise."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, ModelError, ShapeError, naming_arguments, require_shape
from jaxdyn._types import Array, ArrayLike, Bool, Float, float_leaf
from jaxdyn.estimation._covariances import covariance_leaf, covariance_matrix
from jaxdyn.estimation._measurements import AbstractMeasurement, as_measurements
from jaxdyn.trajopt import AbstractDynamics, AbstractResidual

type Measurements = AbstractMeasurement | AbstractResidual | Sequence[AbstractMeasurement | AbstractResidual]


class StateSpaceModel(eqx.Module):
    """Dynamics and measurements with Gaussian noise:

    `x_(k+1) = f(x_k, u_k + c_k, k) (+) w_k` and `y_k = h(x_k, u_k, k) (+) r_k`,

    where `w`, `c` and `r` have the covariances `process_noise`, `control_noise` and `measurement_noise`, and `(+)` is
    the displacement on the manifold of the state, or of the reading. A pytree whose numbers are all leaves:
    `jax.grad` of a likelihood reaches noise, masses, and all else.
    """

    dynamics: AbstractDynamics
    measurements: tuple[AbstractMeasurement, ...]
    process_noise: Float[Array, "..."] | None
    control_noise: Float[Array, "..."] | None
    measurement_noise: Float[Array, "..."]
    reading_sizes: tuple[int, ...] = eqx.field(static=True)
    """The number of components of the reading of each measurement."""
    noise_sizes: tuple[int, ...] = eqx.field(static=True)
    """The number of components of the noise of each measurement."""
    listed: bool = eqx.field(static=True)
    """Whether the measurements are a list, of which readings and noise may be lists as well."""

    @naming_arguments
    def __init__(
        self,
        dynamics: AbstractDynamics,
        measurements: Measurements,
        *,
        process_noise: ArrayLike | None = None,
        control_noise: ArrayLike | None = None,
        measurement_noise: Any,
    ):
        """
        - `dynamics`: any of `jaxdyn.trajopt`, or `InertialDynamics`.
        - `measurements`: one measurement or residual, or a list, whose readings stand one after the other.
        - `process_noise`, `control_noise`: covariances of the displacement of each step and of the control in it, not
          densities: a number, variances `[n]`, or a matrix `[n, n]`. One of them is needed, if only as zero.
        - `measurement_noise`: the covariance of the noise of all measurements together, or for a list of measurements a
          list with the covariance of each.

        **Raises** `ModelError`, and `ShapeError` where a shape does not fit; errors of measurements come here, too.
        """
        if not isinstance(dynamics, AbstractDynamics):
            raise ModelError(f"the dynamics are {type(dynamics).__name__}; give dynamics of jaxdyn.trajopt")
        if process_noise is None and control_noise is None:
            raise ModelError(
                "give process_noise, control_noise, or both: without noise of steps, a filter soon ignores readings"
            )
        self.dynamics, self.measurements = dynamics, as_measurements(measurements)
        dtype = dynamics.neutral().dtype
        x, u = (jax.ShapeDtypeStruct((n,), dtype) for n in (dynamics.nx, dynamics.nu))
        readings = [self._shape(lambda d, x, u, m=m: m.predict(d, x, u, 0), x, u) for m in self.measurements]
        self.reading_sizes = tuple(y.shape[0] for y in readings)
        pairs = zip(self.measurements, readings, strict=True)
        noises = [self._shape(lambda d, x, u, y, m=m: m.linearize(d, x, u, 0, y)[0], x, u, y) for m, y in pairs]
        self.noise_sizes = tuple(e.shape[0] for e in noises)
        self.process_noise = _optional(process_noise, dynamics.ndx, "process_noise")
        self.control_noise = _optional(control_noise, dynamics.nu, "control_noise")
        self.listed = isinstance(measurements, list | tuple)
        self.measurement_noise = self._joined_noise(measurement_noise)

    def _shape(self, function, *arguments) -> Any:
        return eqx.filter_eval_shape(function, self.dynamics, *arguments)

    def _joined_noise(self, given: Any) -> Array:
        sizes, what = self.noise_sizes, "measurement_noise"
        if not (self.listed and isinstance(given, list | tuple)):
            return covariance_leaf(given, sum(sizes), what, positive=True)
        if len(given) != len(sizes):
            raise ShapeError(f"{what} has {len(given)} covariances, but there are {len(sizes)} measurements")
        pairs = enumerate(zip(given, sizes, strict=True))
        parts = [covariance_leaf(C, n, f"{what}[{i}]", positive=True) for i, (C, n) in pairs]
        if all(C.ndim < 2 for C in parts):
            return jnp.concatenate([jnp.broadcast_to(C, (n,)) for C, n in zip(parts, sizes, strict=True)])
        matrices = [covariance_matrix(C, n, C.dtype) for C, n in zip(parts, sizes, strict=True)]
        return jax.scipy.linalg.block_diag(*matrices)

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        d = self.dynamics
        facts = {"dynamics": f"{type(d).__name__}, steps of {printing.number(d.dt, 's')}"}
        shown = [getattr(m, "residual", m) for m in self.measurements]
        facts["measurements"] = printing.kinds(shown)
        return f"nx = {d.nx}, ndx = {d.ndx}, nu = {d.nu}, ny = {self.ny}", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table

    @property
    def ny(self) -> int:
        """The number of components of a reading."""
        return sum(self.reading_sizes)

    @property
    def m(self) -> int:
        """The number of components of the noise of a reading."""
        return sum(self.noise_sizes)

    @property
    def dtype(self):
        """The precision of the dynamics."""
        return self.dynamics.neutral().dtype

    def measure(self, x: Float[Array, "nx"], u: Float[Array, "nu"], k) -> Float[Array, "ny"]:
        """The reading at a state without noise."""
        return jnp.concatenate([m.predict(self.dynamics, x, u, k) for m in self.measurements])

    def linearize(
        self, x: Float[Array, "nx"], u: Float[Array, "nu"], k, y: Float[Array, "ny"]
    ) -> tuple[Float[Array, "m"], Float[Array, "m ndx"]]:
        """The innovation of a reading, and its decrease by a displacement of the state."""
        parts = jnp.split(y, np.cumsum(self.reading_sizes)[:-1])
        pairs = zip(self.measurements, parts, strict=True)
        e, H = zip(*(m.linearize(self.dynamics, x, u, k, part) for m, part in pairs), strict=True)
        return jnp.concatenate(e), jnp.concatenate(H)

    def noise_of_steps(self, by_control: Float[Array, "ndx nu"]) -> Float[Array, "ndx ndx"]:
        """The covariance of the displacement of a step with this derivative by the control."""
        d, dtype = self.dynamics, by_control.dtype
        Q = covariance_matrix(self.process_noise, d.ndx, dtype)
        if self.control_noise is None:
            return Q
        return Q + by_control @ covariance_matrix(self.control_noise, d.nu, dtype) @ by_control.T

    def prior(self, x0: ArrayLike, P0: ArrayLike) -> tuple[Float[Array, "nx"], Float[Array, "ndx ndx"]]:
        """The mean and the covariance matrix, in the precision of mean and dynamics together. **Raises** `ShapeError`,
        `ModelError`."""
        n, x0 = self.dynamics.nx, float_leaf(x0, "the mean")
        require_shape(x0, (n,), "the mean", f"nx = {n} for these dynamics")
        x0 = x0.astype(jnp.result_type(x0, self.dtype))
        P0 = covariance_leaf(P0, self.dynamics.ndx, "the covariance of the mean")
        return x0, covariance_matrix(P0, self.dynamics.ndx, x0.dtype)

    def control(self, u: ArrayLike | None, dtype) -> Float[Array, "nu"]:
        """A control in a precision; None where there is nothing to control. **Raises** `ModelError`, `ShapeError`."""
        nu = self.dynamics.nu
        if u is None:
            if nu:
                raise ModelError(f"the dynamics have controls: give u [{nu}]")
            return jnp.zeros(0, dtype)
        u = float_leaf(u, "u")
        require_shape(u, (nu,), "u", f"nu = {nu} for these dynamics")
        return u.astype(dtype)

    def join_reading(self, y: Any, observed: Any) -> tuple[Float[Array, "ny"], Bool[Array, "m"]]:
        """One reading, and which components of its noise are observed; see `join_readings`."""
        listed = self.listed and isinstance(y, list | tuple)
        rows = [None if part is None else jnp.asarray(part)[None] for part in y] if listed else jnp.asarray(y)[None]
        ys, seen = self.join_readings(rows, None if observed is None else jnp.asarray(observed)[None])
        return ys[0], seen[0]

    def join_readings(self, ys: Any, observed: Any) -> tuple[Float[Array, "samples ny"], Any]:
        """The readings `[samples, ny]`, and which components of their noise are observed, `[samples, m]`; see
        `filter`. **Raises** `ShapeError`, and `DataError` for an observed reading that is not finite."""
        ys = self._joined_readings(ys)
        samples, count = len(ys), len(self.reading_sizes)
        seen = jnp.asarray(True if observed is None else observed).astype(bool)
        seen = jnp.broadcast_to(seen, (samples, 1)) if observed is None else seen
        seen = seen[:, None] if seen.ndim == 1 else seen
        if seen.ndim != 2 or len(seen) != samples or seen.shape[1] not in (1, count, self.ny):
            raise ShapeError(
                f"observed has shape {seen.shape}, but [{samples}], [{samples}, {count}] for the measurements "
                f"or [{samples}, {self.ny}] for the components of readings is needed"
            )
        sizes = np.array(self.reading_sizes)
        if seen.shape[1] != self.ny:
            seen = jnp.repeat(jnp.broadcast_to(seen, (samples, count)), sizes, axis=1, total_repeat_length=self.ny)
        if printing.is_concrete(ys) and printing.is_concrete(seen):
            bad = np.argwhere(~np.isfinite(np.asarray(ys)) & np.asarray(seen))
            if len(bad):
                raise DataError(
                    f"reading {bad[0][0]} is not finite in component {bad[0][1]}: where nothing is measured, say so by "
                    "`observed`"
                )
        parts = jnp.split(seen, np.cumsum(sizes)[:-1], axis=1)
        # A rotation, which has more components than noise, is observed as a whole.
        of_noise = [
            part if part.shape[1] == n else jnp.broadcast_to(part.all(axis=1, keepdims=True), (samples, n))
            for part, n in zip(parts, self.noise_sizes, strict=True)
        ]
        return ys, jnp.concatenate(of_noise, axis=1)

    def _joined_readings(self, ys: Any) -> Array:
        if not (self.listed and isinstance(ys, list | tuple)):
            ys = float_leaf(ys, "the readings")
            if ys.ndim == 1 and self.ny == 1:
                ys = ys[:, None]
            if ys.ndim != 2 or ys.shape[1] != self.ny:
                raise ShapeError(f"the readings have shape {ys.shape}, but [samples, {self.ny}] is needed")
            return ys
        if len(ys) != len(self.reading_sizes):
            raise ShapeError(f"there are {len(ys)} arrays of readings for {len(self.reading_sizes)} measurements")
        samples = next((len(part) for part in ys if part is not None), None)
        if samples is None:
            raise ShapeError("all readings are None, so their number is not known")
        parts = []
        for i, (part, n) in enumerate(zip(ys, self.reading_sizes, strict=True)):
            part = np.zeros((samples, n)) if part is None else float_leaf(part, f"ys[{i}]")
            part = part[:, None] if part.ndim == 1 and n == 1 else part
            require_shape(part, (samples, n), f"ys[{i}]", "[samples, components of the measurement]")
            parts.append(part)
        return jnp.concatenate(parts, axis=1)

    def seen_readings(self, seen: Bool[Array, "m"]) -> Bool[Array, "ny"]:
        """Whether each component of the readings is observed, from whether those of their noise are."""
        parts = jnp.split(seen, np.cumsum(self.noise_sizes)[:-1])
        pairs = zip(parts, self.reading_sizes, strict=True)
        return jnp.concatenate([s if len(s) == n else jnp.broadcast_to(s.all(), (n,)) for s, n in pairs])


def _optional(value, n: int, what: str):
    return None if value is None else covariance_leaf(value, n, what)
