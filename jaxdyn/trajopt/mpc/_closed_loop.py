"""A controller against a plant that is not its model, timed as it would be on a robot."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, ShapeError, naming_arguments, require_positive_integer
from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import count_statuses
from jaxdyn.trajopt.mpc._mpc import MPC, Plan


@dataclasses.dataclass(frozen=True)
class Latency:
    """The wall time of steps, from a measured state on the host to a control on the host."""

    seconds: np.ndarray
    """Time of each step without compilation, `[steps]`, s."""

    @property
    def p50(self) -> float:
        """The median, s."""
        return float(np.percentile(self.seconds, 50))

    @property
    def p99(self) -> float:
        """The time within which 99 % of the steps ended, s."""
        return float(np.percentile(self.seconds, 99))

    @property
    def worst(self) -> float:
        """The longest time, s."""
        return float(self.seconds.max())

    def __str__(self) -> str:
        return f"p50 {1e3 * self.p50:.2f} ms, p99 {1e3 * self.p99:.2f} ms, worst {1e3 * self.worst:.2f} ms"


@dataclasses.dataclass(frozen=True)
class ClosedLoop:
    """The record of a closed loop: `steps` controls and `steps + 1` states."""

    xs: np.ndarray
    us: np.ndarray
    status: np.ndarray
    """A `Status` for each step."""
    iterations: np.ndarray
    violation: np.ndarray
    """Largest violation of a constraint or a bound by the plan of each step, `[steps]`."""
    plan: Plan
    """Plan for the next step, with which the loop can continue."""
    latency: Latency
    compilations: int
    """Number of programs that steps compiled after the first one."""

    @property
    def message(self) -> str:
        """The number of steps with each status, in words."""
        return count_statuses(self.status, "steps ")

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        facts = {"steps": str(len(self.us)), "latency": str(self.latency)}
        facts["iterations"] = f"{printing.number(self.iterations)} a step"
        facts["violations"] = f"up to {self.violation.max():.2g}, in {np.count_nonzero(self.violation > 0)} plans"
        facts["compilations"] = f"{self.compilations} after the first step"
        return printing.status(self.status), facts | {"last state": printing.numbers(self.xs[-1])}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@contextlib.contextmanager
def count_compilations() -> Iterator[list[str]]:
    """A list that gets an entry whenever JAX compiles a program."""
    events = []

    def listen(event: str, duration_secs: float, **kwargs):
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@naming_arguments
def closed_loop(
    mpc: MPC,
    plant: Callable[[np.ndarray, np.ndarray], np.ndarray],
    x0: ArrayLike,
    steps: int,
    *,
    plan: Plan | None = None,
) -> ClosedLoop:
    """Run `mpc` for `steps` periods on `plant`, a function `(x, u) -> x` that takes and returns the state in the
    problem's coordinates: another simulator, a robot, or this library with other parameters.

    The step is compiled before the first period. `plan`: from `mpc.start`, by default without a guess. **Raises**
    `ModelError` for a number of steps below 1 or a state that is not finite, `ShapeError` for one of a wrong shape.
    """
    require_positive_integer(steps, "steps")
    dtype = np.dtype(mpc.problem.dtype)
    x = np.asarray(x0, dtype)
    plan = mpc.start(jnp.asarray(x)) if plan is None else plan
    jax.block_until_ready(mpc.step(plan, jnp.asarray(x))[0])
    xs, records, compilations = [x], [], 0
    for k in range(steps):
        with count_compilations() as compiled:
            began = time.perf_counter()
            u, plan, solution = mpc.step(plan, jnp.asarray(x))
            u = np.asarray(u)
            seconds = time.perf_counter() - began
        compilations += len(compiled)
        x = np.asarray(plant(x, u), dtype)
        if x.shape != xs[0].shape:
            raise ShapeError(f"the plant returned the shape {x.shape} in step {k}; {xs[0].shape} is needed")
        if not np.isfinite(x).all():
            raise ModelError(f"the plant's state is not finite after step {k}: {x}, under the control {u}")
        xs.append(x)
        violation = float(solution.residuals.violation)
        records.append((u, int(solution.status), int(solution.iterations), violation, seconds))
    us, status, iterations, violation, seconds = map(np.array, zip(*records, strict=True))
    return ClosedLoop(np.array(xs), us, status, iterations, violation, plan, Latency(seconds), compilations)
