"""Iterations until they end or the time is up."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn.trajopt._solution import Status


def iterated(iterate: Callable, start: Any, reached: Callable, time_limit) -> Any:
    """The state after iterations that begin while its status is `RUNNING`, and with a time limit, in s, while one that
    takes as long as the longest so far would end in time.

    `iterate(state, late)` is one iteration; `late(number)` tells whether the time is up once a number is known, so that
    long searches within an iteration can end. `reached(state)` is a number that an iteration computes last. The clock
    is read on the host, so a solve is one program also with a limit."""

    def running(state):
        return state.status == Status.RUNNING

    if time_limit is None:
        return lax.while_loop(running, lambda state: iterate(state, lambda _: jnp.array(False)), start)
    began = microseconds(reached(start))

    def late_after(number):
        return microseconds(number) - began > 1e6 * time_limit

    def timed(carry):
        state, last, longest = carry
        state = iterate(state, late_after)
        now = microseconds(reached(state))
        longest = jnp.maximum(longest, now - last)
        late = (now - began + longest) > 1e6 * time_limit
        status = jnp.where(running(state) & late, Status.OUT_OF_TIME, state.status).astype(jnp.int32)
        return state._replace(status=status), now, longest

    return lax.while_loop(lambda carry: running(carry[0]), timed, (start, began, jnp.zeros((), jnp.int32)))[0]


def host_microseconds() -> np.ndarray:
    """The time of the host's clock now, in microseconds, as `microseconds`."""
    return np.array(time.perf_counter_ns() // 1000 % 2**32, np.uint32).view(np.int32)


def microseconds(after) -> jax.Array:
    """The time of the host's clock once a number is known, in microseconds; differences are right up to half an hour,
    after which 32 bits begin anew."""
    return jax.pure_callback(
        lambda _: host_microseconds(), jax.ShapeDtypeStruct((), jnp.int32), after, vmap_method="sequential"
    )
