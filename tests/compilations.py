"""The programs that XLA compiles while a test runs."""

import contextlib

import jax


@contextlib.contextmanager
def compilations():
    """Yield a list that gets an entry for each program compiled in the block, also where it comes from a cache."""
    events: list[str] = []
    active = True

    def record(event: str, *_, **__) -> None:
        if active and event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(record)
    yield events
    active = False
