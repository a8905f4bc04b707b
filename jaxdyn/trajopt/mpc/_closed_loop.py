"""A controller against a plant that is not its model, timed as it would be on a robot."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn.trajopt._solution import Status
from jaxdyn.trajopt.mpc import _mpc
from jaxdyn.trajopt.mpc._mpc import MPC, Plan


@dataclasses.dataclass(frozen=True)
class Latency:
    """Wall time of steps, s, from a measured state on the host to a control on the host."""

    seconds: np.ndarray
    """Of every step, `[steps]`, without the compilation."""

    @property
    def p50(self) -> float:
        """The median, s."""
        return float(np.percentile(self.seconds, 50))

    @property
    def p99(self) -> float:
        """99 % of steps were faster, s."""
        return float(np.percentile(self.seconds, 99))

    @property
    def worst(self) -> float:
        """The longest, s."""
        return float(self.seconds.max())

    def __str__(self) -> str:
        return f"p50 {1e3 * self.p50:.2f} ms, p99 {1e3 * self.p99:.2f} ms, worst {1e3 * self.worst:.2f} ms"


@dataclasses.dataclass(frozen=True)
class ClosedLoop:
    """What happened: `steps` controls and `steps + 1` states."""

    xs: np.ndarray
    us: np.ndarray
    status: np.ndarray
    """A `Status` for each step."""
    iterations: np.ndarray
    plan: Plan
    """To go on with."""
    latency: Latency
    compilations: int
    """Of further programs after the first, while the loop ran."""

    @property
    def message(self) -> str:
        """How many steps ended how, in words."""
        numbers, counts = np.unique(self.status, return_counts=True)
        return "\n".join(
            f"{c} of {self.status.size} steps {Status(int(n)).words}" for n, c in zip(numbers, counts, strict=True)
        )


def closed_loop(
    mpc: MPC,
    plant: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x0,
    steps: int,
    *,
    plan: Plan | None = None,
) -> ClosedLoop:
    """Run `mpc` for `steps` periods on `plant`, a function `(x, u) -> x` that takes and returns the state in the
    problem's coordinates: another simulator, a robot, or this library with other parameters.

    The step is compiled before the first period. `plan`: from `mpc.start`, by default that of no guess.

    **Raises** `ModelError` for a number of steps below 1, and where the plant returns a state that is not finite;
    `ShapeError` where its shape is wrong.
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ModelError(f"steps is {steps!r}; a positive int is needed")
    dtype = np.dtype(mpc.problem.dtype)
    x = np.asarray(x0, dtype)
    plan = mpc.start(jnp.asarray(x)) if plan is None else plan
    jax.block_until_ready(mpc.step(plan, jnp.asarray(x))[0])
    before = _mpc.traces
    xs, us, status, iterations, seconds = [x], [], [], [], []
    for k in range(steps):
        began = time.perf_counter()
        u, plan, solution = mpc.step(plan, jnp.asarray(x))
        u = np.asarray(u)
        seconds.append(time.perf_counter() - began)
        x = np.asarray(plant(x, u), dtype)
        if x.shape != xs[0].shape:
            raise ShapeError(f"the plant returned the shape {x.shape} in step {k}; {xs[0].shape} is needed")
        if not np.isfinite(x).all():
            raise ModelError(f"the plant's state is not finite after step {k}: {x}, under the control {u}")
        xs.append(x)
        us.append(u)
        status.append(int(solution.status))
        iterations.append(int(solution.iterations))
    return ClosedLoop(
        np.array(xs),
        np.array(us),
        np.array(status),
        np.array(iterations),
        plan,
        Latency(np.array(seconds)),
        _mpc.traces - before,
    )
