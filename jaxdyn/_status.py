"""How an iterative solve ended."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """How an iterative solve ended. An integer, so results under `jit` and `vmap` hold arrays of it; `text` says it in
    words, as in `Status(int(result.status)).text`."""

    text: str

    def __new__(cls, code: int, text: str) -> Status:
        member = int.__new__(cls, code)
        member._value_ = code
        member.text = text
        return member

    RUNNING = 0, "running: the solve has not ended"
    CONVERGED = 1, "converged: the tolerances are met"
    STALLED = 2, "stalled: no step improves the iterate, but the tolerances are not met"
    DIVERGED = 3, "diverged: a value or a derivative is not finite; the iterate is the last good one"
    OUT_OF_ITERATIONS = 4, "out of iterations: the tolerances are not met yet"
    INFEASIBLE = 5, "infeasible: the constraints contradict each other here, so no small step reduces their violation"
    UNBOUNDED = 6, "unbounded: the cost seems to fall without end"
    NO_MINIMUM = 7, "not a minimum: a stationary point with a direction of negative curvature, which no step has left"
    OUT_OF_TIME = 8, "out of time: the tolerances are not met yet"
    LEAST_VIOLATION = 9, "least violation: no trajectory found keeps the constraints, and this one violates them least"
