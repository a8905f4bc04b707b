"""Recorded motions: samples of a robot's state and joint torques, checked, and prepared for identification."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, naming_arguments, require_choice
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import _signals as signals
from jaxdyn.sysid.recordings._array_checks import real_numbers, require_rows, require_samples, times
from jaxdyn.sysid.recordings._closing import JointColumns, completed, joint_names
from jaxdyn.sysid.recordings._signals import MIXED, clipped_samples
from jaxdyn.sysid.recordings._transmissions import alone, joint_columns, transmission_matrix
from jaxdyn.sysid.recordings._unmeasured import unmeasured_fields

_OPTIONAL = ("v", "a", "tau", "current", "clipped", "control", "activation", "temperature", "measured", "contacts")
# The arrays that a delay of torques shifts.
_LATE = ("tau", "current", "clipped", "measured")


@dataclasses.dataclass(frozen=True)
class Recording:
    """Samples in rows: time, positions, velocities, accelerations, joint torques. NumPy, float64, read-only.

    - `t` `[n]`: s, strictly increasing. Durations (`timedelta64`, with a unit) become s, and dates (`datetime64`)
      become s since the first sample;
    - `q` `[n, nq]`: rad or m; `v` `[n, nv]`, rad/s or m/s; `a` `[n, nv]`, rad/s^2 or m/s^2; `tau` `[n, nv]`: N m or N;
    - `current` `[n, m]`: of motors, A (see `torque_from_current`); `temperature` `[n, nv]` or `[n, 1]`: of joints, K;
    - `clipped` `[n, nv]`: the part of each torque that comes from clipped samples (`clipped_torques`), as filters have
      mixed them; fits leave out what has more than 0.01;
    - `control` `[n, nu]`: inputs of a `World`'s actuators, held until the next sample; `activation` `[n, na]`: states
      of those with dynamics, of which fits read the first row; None: the first controls hold them (`fit_rollouts`);
    - `measured` `[n, nv]` or `[nv]` of bool: which torques were measured; fits leave out the others, which may be NaN;
    - `contacts`: a mapping from names of frames to `[n]` of bool: when each may touch something, with forces that are
      unknown, and `contact_moments`: whether moments are too, as of flat feet. Kept as `[n, k]` with `contact_frames`;
    - `name`: put in front of messages; `cutoff`: Hz, where fits low-pass the torques and the torque model alike (see
      `prepared`); None for fits to the samples as they are;
    - `joints`: for robots with closed loops, the names of the joints that the columns belong to, each with one
      coordinate: those that are driven and measured. All others are passive, and follow from the loops (see
      `completed`). None where the columns are those of all joints;
    - `transmission` `[nv, nv]`: the matrix `T` with `q = T q_motor` and `tau_motor = T^T tau` where the columns are
      those of motors, which drive joints together as in a coupled wrist (see `of_joints`); None for columns of joints;
    - `assembly` `[nq]`: with `joints`, a configuration of all joints near the first sample, from which the loops are
      followed; the model's neutral one by default.

    All but `t` and `q` may be None. Several recordings are a list of them: each keeps its length and its rate.

    Preparation treats every coordinate as a number; with a `model`, the quaternions of ball and free joints get
    continuous signs before, and are normalized afterwards, and the angles of joints without limits lose jumps by a
    turn. Other angles that jump by a turn are refused (see `unwrapped`). To judge a fit on data that it has not seen,
    **split first** with `between` and prepare each part separately: zero-phase filters and central differences look
    ahead, and would mix the samples on both sides of the boundary.

    **Raises** `DataError` for fewer than two samples, times that do not increase, lengths that differ, NaN or infinity,
    and for what is no real number: complex numbers, texts, booleans, and dates or durations that are not `t`.
    """

    t: np.ndarray
    q: np.ndarray
    v: np.ndarray | None = None
    a: np.ndarray | None = None
    tau: np.ndarray | None = None
    current: np.ndarray | None = None
    name: str = "recording"
    cutoff: float | None = None
    joints: tuple[str, ...] | None = None
    assembly: np.ndarray | None = None
    clipped: np.ndarray | None = None
    control: np.ndarray | None = None
    activation: np.ndarray | None = None
    transmission: np.ndarray | None = None
    temperature: np.ndarray | None = None
    measured: np.ndarray | None = None
    contacts: np.ndarray | Mapping[str, np.ndarray] | None = None
    contact_frames: tuple[str, ...] = ()
    contact_moments: bool = False

    def __post_init__(self):
        given = self.measured, self.tau, self.contacts, self.contact_frames
        for name, value in unmeasured_fields(*given, np.size(self.t), self.name).items():
            object.__setattr__(self, name, value)
        for name in ("t", "q", *_OPTIONAL):
            if (value := getattr(self, name)) is None and name in _OPTIONAL:
                continue
            array = (times if name == "t" else real_numbers)(value, f"{self.name}: {name}")
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        require_rows(self.t, self._arrays(), self.name)
        for name, x in (("v", self.v), ("a", self.a), ("clipped", self.clipped)):
            if x is not None and x.shape[1] != self.dofs:
                other = f"{'v' if self.tau is None else 'tau'} has {self.dofs}"
                raise self._error(f"{name} has {x.shape[1]} columns, but {other}; they are [n, nv]")
        if self.joints is not None:
            object.__setattr__(self, "joints", joint_names(self.joints, self._arrays(), self.name))
        require_samples(self.t, self._arrays(), self.name)
        if self.transmission is not None:
            T = transmission_matrix(self.transmission, self._arrays(), self.joints, self.name)
            object.__setattr__(self, "transmission", T)

    def __len__(self) -> int:
        return len(self.t)

    @property
    def duration(self) -> float:
        """Time from the first sample to the last, s."""
        return float(self.t[-1] - self.t[0])

    @property
    def rate(self) -> float | None:
        """Samples per second, or None where the spacing varies by more than one part in 10^6."""
        mean = self.duration / (len(self) - 1)
        # A late start costs digits of the step.
        slack = 1e-6 * mean + 4 * np.spacing(np.abs(self.t).max())
        return 1.0 / mean if np.abs(np.diff(self.t) - mean).max() <= slack else None

    @property
    def dofs(self) -> int | None:
        """The number of degrees of freedom, from the columns of `tau`, `v` or `a`; None without them."""
        return next((x.shape[1] for x in (self.tau, self.v, self.a) if x is not None), None)

    def require(self, *names: str) -> tuple[np.ndarray, ...]:
        """Return the named arrays, such as `"q"` and `"tau"`. **Raises** `DataError` for None."""
        advice = {
            "v": "velocities v: give them, or call differentiated()",
            "a": "accelerations a: call differentiated()",
            "tau": "torques tau: give them, or currents and call torque_from_current()",
            "current": "motor currents: give them",
            "control": "controls of actuators: give them",
        }
        if missing := [name for name in names if getattr(self, name) is None]:
            raise self._error(f"there are no {advice[missing[0]]}")
        return tuple(getattr(self, name) for name in names)

    def require_columns(self, model: Model) -> None:
        """Raise `DataError` unless positions, velocities and torques have as many columns as the model needs."""
        topology = model.topology
        if self.joints is not None:
            JointColumns.of(model, self.joints)
            return
        names = {"q": topology.coordinate_names, "v": topology.dof_names, "tau": topology.dof_names}
        for name, needed in names.items():
            if (x := getattr(self, name)) is None or x.shape[1] == len(needed):
                continue
            mimics = [(topology.joint_names[i], topology.joint_names[leader]) for i, leader in topology.mimics]
            follow = "".join(f"; {i} follows {leader} and has no column" for i, leader in mimics)
            advice = "; joints that were not recorded can be locked (with_locked_joints)"
            raise self._error(
                f"{name} has {x.shape[1]} columns, but the model needs {len(needed)}: {', '.join(needed)}{follow}"
                f"{advice if x.shape[1] < len(needed) else ''}"
            )

    def clipped_torques(self, model: Model | None = None) -> np.ndarray:
        """Return which torques a limit has clipped, `[n, nv]` of bool: those that stay at their largest or least value
        in motion, and those at a limit of the model that is not exceeded; after filters those with a part of these."""
        (tau,), limit = self.require("tau"), np.full(self.dofs or 0, np.inf)
        if self.clipped is not None or self.cutoff is not None:
            return np.abs(0 * tau if self.clipped is None else self.clipped) > MIXED
        if model is not None:
            used = slice(None) if self.joints is None else JointColumns.of(model, self.joints).v
            limit = np.asarray(model.effort_limit, np.float64)[used]
            limit = limit if self.transmission is None else np.where(alone(self.transmission), limit, np.inf)
        return clipped_samples(self.t, self.q, tau, limit)

    def of_joints(self) -> Recording:
        """The recording with the columns of joints, where it has those of motors (`transmission`). Torques are
        `T^-T tau_motor`, with the friction and inertia of the motors in them; fits take the recording of the motors."""
        T = self.transmission
        return self if T is None else dataclasses.replace(self, transmission=None, **joint_columns(T, self._arrays()))

    def completed(self, model: Model) -> Recording:
        """The motion of all joints of `model` where only some were recorded (`joints`) or motors were (`of_joints`);
        the recording itself otherwise.

        The loops are closed at each sample, with the recorded positions kept, from the configuration at the sample
        before; velocities and accelerations of the other joints follow from the Jacobian of the loops and its rate.
        Torques of the other joints are zero: they are passive. Where more joints were recorded than the robot has
        degrees of freedom, the motion is the nearest that the loops allow.

        **Raises** `DataError` where the loops cannot be closed, and for a joint with more than one coordinate;
        `ModelError` where the recorded joints do not determine the motion of the others; `UnknownNameError`.
        """
        if self.joints is None:
            return self.of_joints()
        full = completed(model, self.joints, self.assembly, self._arrays(), self.t)
        return dataclasses.replace(self, joints=None, assembly=None, **full)

    @naming_arguments
    def between(self, start: float, stop: float) -> Recording:
        """Return the samples with `start <= t < stop` (s). **Raises** `DataError` if fewer than two are left."""
        return self._keep((self.t >= start) & (self.t < stop), f"between {start:g} and {stop:g} s")

    @naming_arguments
    def trimmed(self, start: float = 0.0, stop: float = 0.0) -> Recording:
        """Cut off the first `start` and the last `stop` seconds. **Raises** `DataError` if too little is left."""
        if not (start >= 0 and stop >= 0):
            raise self._error(f"cannot trim {start:g} and {stop:g} s; give zero or more")
        kept = (self.t >= self.t[0] + start) & (self.t <= self.t[-1] - stop)
        return self._keep(kept, f"after trimming {start:g} and {stop:g} s")

    @naming_arguments
    def resampled(
        self, rate: float, kind: Literal["cubic", "linear"] = "cubic", max_gap: float = 0.1, model: Model | None = None
    ) -> Recording:
        """Interpolate at uniform times, `rate` samples per second from the first sample on; controls are held.

        Without anti-aliasing: to lower the rate, filter first, or noise above half the new rate folds down. **Raises**
        `DataError` for a gap of more than `max_gap` s.
        """
        if not np.isfinite(rate) or rate <= 0:
            raise self._error(f"cannot resample at {rate} samples per second; give a positive rate")
        gap = np.diff(self.t)
        if gap.max() > max_gap:
            k = int(np.argmax(gap))
            raise self._error(
                f"{gap[k]:.4g} s without samples after t = {self.t[k]:g} s; do not interpolate them. "
                f"Use between() on each side, or allow it with max_gap (now {max_gap:g} s)"
            )
        # The last time may exceed the last sample by rounding only.
        count = int(np.floor(self.duration * rate * (1 + 1e-12))) + 1
        if count < 2:
            raise self._error(f"{self.duration:g} s hold fewer than two samples at {rate:g} per second")
        t = np.minimum(self.t[0] + np.arange(count) / rate, self.t[-1])
        new = self._numbers(model)._map(lambda x: signals.interpolate(self.t, x, t, kind), t)._unit(model)
        # A time that rounding puts before a sample counts as that of the sample.
        last = np.searchsorted(self.t, t + 1e-6 / rate, side="right") - 1
        return new if self.control is None else dataclasses.replace(new, control=self.control[last])

    @naming_arguments
    def prepared(
        self, cutoff: float = 10.0, *, motion_cutoff: float | None = None, model: Model | None = None
    ) -> Recording:
        """Return the recording as fits to torques want it: a smooth motion with its derivatives, torques as measured,
        and a `cutoff` (Hz) at which fits low-pass the torques *and the torque model* alike, by the same filter.

        A filter must not act on the motion alone: the filtered torque of friction is not the friction at the filtered
        velocity, so fits to recordings that were only `filtered` have biased friction. The motion is smoothed only
        where its derivatives are mostly noise: all arrays are low-passed as by `filtered` at `motion_cutoff`, by
        default three times `cutoff` or 0.4 times the rate, whichever is less. Irregular samples are interpolated first,
        at their median rate, and a rate of more than eight times `motion_cutoff` is lowered.

        Source: Gautier, Dynamic identification of robots with power model, ICRA 1997 (parallel filters of
        torque and regressor).

        **Raises** `DataError` for gaps, too few samples, or a cutoff above 0.4 times the rate.
        """
        uniform = self if self.rate else self.resampled(1 / float(np.median(np.diff(self.t))), model=model)
        rate = uniform._uniform_rate("a filter")
        motion_cutoff = min(3 * cutoff, 0.4 * rate) if motion_cutoff is None else motion_cutoff
        if not 0 < cutoff <= motion_cutoff <= 0.4 * rate:
            raise self._error(
                f"cutoffs of {cutoff:g} Hz for fits and {motion_cutoff:g} Hz for the motion; they must be positive, "
                f"the second not below the first, and neither above 0.4 times the rate, {0.4 * rate:g} Hz"
            )
        smooth = uniform.filtered(motion_cutoff, model=model).differentiated(model=model)
        step = max(1, int(rate / (8 * motion_cutoff)))
        return dataclasses.replace(smooth._map(lambda x: x[::step]), cutoff=float(cutoff))

    @naming_arguments
    def filtered(
        self, cutoff: float, order: int = 4, trim: float | None = None, model: Model | None = None
    ) -> Recording:
        """Apply a low pass without delay to all arrays: a Butterworth filter, forwards and backwards.

        The two passes leave one quarter of the power at `cutoff` (Hz). At both ends, where the filter extends the
        samples, `trim` s are cut off; the default `2 / cutoff` is five time constants of the slowest pole at order 4.

        **Raises** `DataError` for too few or irregular samples (see `resampled`), or a cutoff of half the rate or more.
        """
        rate = self._uniform_rate("a filter")
        if not 0 < cutoff < 0.5 * rate:
            raise self._error(f"a cutoff of {cutoff:g} Hz is not between 0 and half the rate, {rate / 2:g} Hz")
        trim = 2.0 / cutoff if trim is None else trim
        if trim < 0:
            raise self._error(f"cannot trim {trim:g} s; give zero or more")
        cut, pad = int(np.ceil(trim * rate - 1e-9)), signals.padding(order)
        if len(self) < 2 * cut + 2 or len(self) <= pad:
            raise self._error(
                f"{len(self)} samples ({self.duration:.3g} s) are too few to filter at {cutoff:g} Hz: {cut} "
                f"are cut off at each end, and more than {pad} are needed; use a longer part, or a higher cutoff"
            )
        keep = slice(cut, len(self) - cut)
        new = self._numbers(model)._map(lambda x: signals.low_pass(x, rate, cutoff, order)[keep], self.t[keep])
        return new._unit(model)

    @naming_arguments
    def differentiated(
        self,
        method: Literal["central", "savitzky_golay", "spline"] = "central",
        *,
        window: float | None = None,
        degree: int | None = None,
        noise: ArrayLike | None = None,
        model: Model | None = None,
    ) -> Recording:
        """Compute accelerations from the velocities, or both from the positions if there are no velocities.

        - `"central"`: central differences. Each costs the first and the last sample.
        - `"savitzky_golay"`: derivatives of the polynomial of `degree` (default 4) through the samples within `window`
          s (which it needs) around each. Half a window is cut off at each end. Uniform samples only.
        - `"spline"`: derivatives of a smoothing quintic spline, also for samples that are not uniform. `noise` is the
          standard deviation of the noise in the differentiated array, in its units (a number, or one for each column);
          by default it is estimated from the samples as white noise.

        The last two smooth. If noise is small, filter all arrays first and take central differences: then the filter
        changes motion and torque alike.

        **Raises** `DataError` for too few samples, for options of another method, and without a `model` if `q` has
        other coordinates than `v`.
        """
        takes = {"central": (), "savitzky_golay": ("window", "degree"), "spline": ("noise",)}
        require_choice(method, takes, f"{self.name}: method", error=DataError)
        for option, value in {"window": window, "degree": degree, "noise": noise}.items():
            if value is not None and option not in takes[method]:
                raise self._error(f"{method!r} does not take the option {option}; it takes {takes[method] or 'none'}")
        if method == "central":
            return self._central(model)
        source = self._numbers(model) if self.v is None else self
        x = source.q if self.v is None else self.v
        if method == "savitzky_golay":
            rate = self._uniform_rate("a Savitzky-Golay filter")
            cut, (first, second) = signals.savitzky_golay(x, rate, window, 4 if degree is None else degree, self.name)
        else:
            if len(self) < 12:
                raise self._error(f"{len(self)} samples are too few for a smoothing spline")
            scatter = signals.noise_level(self.t, x)
            sigma = scatter if noise is None else np.broadcast_to(noise, x.shape[1:])
            if not np.all(sigma > 0.3 * scatter):
                raise self._error(
                    f"noise is {noise}, but the samples scatter by {np.round(scatter, 9)} about their neighbors, "
                    "which a spline so close to them would follow; give a larger noise, or none to have it estimated"
                )
            cut, (first, second) = 0, signals.smoothing_spline(self.t, x, sigma)
        v, a = self.v, first
        if v is None:
            v, a = signals.rates_on_manifold(self._manifold(model), source.q, first, second)
        return dataclasses.replace(self, v=v, a=a)._map(lambda x: x[cut : len(x) - cut])

    @naming_arguments
    def torque_from_current(self, gain: ArrayLike) -> Recording:
        """Compute `tau = gain * current`. `gain`, N m/A or N/A including the gear, is a number, `[nv]`, or a matrix
        `[nv, m]` if motors act on several joints. **Raises** `DataError` if it does not fit the currents."""
        (current,) = self.require("current")
        gain = np.asarray(gain, np.float64)
        count = current.shape[1]
        if not np.isfinite(gain).all() or gain.ndim > 2 or (gain.ndim and gain.shape[-1] != count):
            raise self._error(f"gain has shape {gain.shape} or is not finite; there are {count} currents")
        return dataclasses.replace(self, tau=current @ gain.T if gain.ndim == 2 else gain * current)

    @naming_arguments
    def aligned(self, delay: float) -> Recording:
        """Shift torques and currents that are `delay` s late (early, if negative) to the motion that they belong to, by
        cubic interpolation, and cut off the ends."""
        if not abs(delay) < 0.5 * self.duration:
            raise self._error(f"a delay of {delay:g} s is too long for a recording of {self.duration:g} s")
        times = self.t + delay
        keep = (times >= self.t[0]) & (times <= self.t[-1])
        late = {name: x for name, x in self._marked(None)._arrays().items() if name in _LATE}
        late = {name: signals.interpolate(self.t, x, times[keep], "cubic") for name, x in late.items()}
        return dataclasses.replace(self._map(lambda x: x[keep]), **late)

    @naming_arguments
    def unwrapped(self, joints: Sequence[int]) -> Recording:
        """Remove jumps by a turn from the angles in the columns `joints` of `q`."""
        q = self.q.copy()
        q[:, list(joints)] = np.unwrap(q[:, list(joints)], axis=0)
        return dataclasses.replace(self, q=q)

    def _central(self, model: Model | None) -> Recording:
        if len(self) < (5 if self.v is None else 3):
            raise self._error(f"{len(self)} samples are too few for central differences")
        if self.v is None:
            q = self._numbers(model).q
            rate = np.gradient(q, self.t, axis=0)
            v, _ = signals.rates_on_manifold(self._manifold(model), q, rate, np.zeros_like(rate))
            return dataclasses.replace(self, v=v)._map(lambda x: x[1:-1])._central(model)
        return dataclasses.replace(self, a=np.gradient(self.v, self.t, axis=0))._map(lambda x: x[1:-1])

    def _uniform_rate(self, what: str) -> float:
        rate = self.rate
        if rate is None:
            step = np.diff(self.t)
            raise self._error(
                f"the spacing of the samples varies from {step.min():.4g} to {step.max():.4g} s, and {what} needs a "
                "uniform one; call resampled(rate) first"
            )
        return rate

    def _numbers(self, model: Model | None) -> Recording:
        """Return the recording with coordinates that can be interpolated (`continuous_coordinates`)."""
        if model is not None:
            self.require_columns(model)
        elif self.dofs not in (None, self.q.shape[1]):
            raise self._error(
                f"q has {self.q.shape[1]} columns, the others have {self.dofs}: some coordinates are not plain "
                "numbers; give the model"
            )
        q = signals.continuous_coordinates(self.t, self.q, model, self.joints, self.name)
        return dataclasses.replace(self._marked(model), q=q)

    def _marked(self, model: Model | None) -> Recording:
        """Return the recording with `clipped`, if torques are: what mixes samples does the same to these numbers."""
        if self.tau is None or self.clipped is not None or not (clipped := self.clipped_torques(model)).any():
            return self
        return dataclasses.replace(self, clipped=1.0 * clipped)

    def _manifold(self, model: Model | None) -> Model | None:
        """The model if the coordinates are its own; those of recorded joints are plain numbers."""
        return model if self.joints is None else None

    def _unit(self, model: Model | None) -> Recording:
        q = self.q.copy()
        for k in () if model is None or self.joints is not None else model.topology.quaternion_starts:
            q[:, k : k + 4] /= np.linalg.norm(q[:, k : k + 4], axis=-1, keepdims=True)
        return dataclasses.replace(self, q=q)

    def _keep(self, kept: np.ndarray, where: str) -> Recording:
        if kept.sum() < 2:
            span = f"the recording spans {self.t[0]:g} to {self.t[-1]:g} s"
            raise self._error(f"{int(kept.sum())} samples {where}, and two are needed; {span}")
        return self._map(lambda x: x[kept])

    def _error(self, message: str) -> DataError:
        return DataError(f"{self.name}: {message}")

    def _arrays(self) -> dict[str, np.ndarray]:
        return {name: x for name in ("q", *_OPTIONAL) if (x := getattr(self, name)) is not None}

    def _map(self, function: Callable[[np.ndarray], np.ndarray], t: np.ndarray | None = None) -> Recording:
        new = {name: function(x) for name, x in self._arrays().items()}
        return dataclasses.replace(self, t=function(self.t) if t is None else t, **new)

    def printed(self) -> printing.Facts:
        """The facts that `print` shows: the duration, the rate and the arrays."""
        rate, about = self.rate, 1 / np.median(np.diff(self.t))
        steps = f"{rate:.6g} per second" if rate else f"about {about:.4g} per second, irregular"
        first = f"{self.name!r}, {self.duration:.4g} s, {len(self)} samples, {steps}"
        facts = {"t": f"{self.t[0]:.6g} to {self.t[-1]:.6g} s"}
        for name, x in self._arrays().items():
            facts[name] = f"{x.shape[1]} columns, {x.min():.4g} to {x.max():.4g}"
        for name, names in (("joints", self.joints), ("contacts at", self.contact_frames)):
            facts |= {name: printing.names(names)} if names else {}
        return first, facts | ({} if self.cutoff is None else {"cutoff": f"{self.cutoff:g} Hz"})

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table
