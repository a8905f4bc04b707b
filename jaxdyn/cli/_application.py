"""The frame around a program's work: precision, mistakes and warnings as messages, exit codes, JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax

from jaxdyn._durable_files import with_advice
from jaxdyn._errors import DataError, JaxdynError, require_positive
from jaxdyn.cli._interruption import ending_soon

FINE, DIFFERENT, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def double_precision() -> None:
    """Set JAX to double precision for the rest of the process. Only programs do so, no module of the library."""
    jax.config.update("jax_enable_x64", True)


def require_positive_keys(config: Any, *names: str) -> None:
    """Raise `DataError` unless these keys of a configuration are positive, finite numbers."""
    for name in names:
        require_positive(getattr(config, name), name, error=DataError)


def exit_code(work: Callable[[], int | None], mistakes: tuple[type[Exception], ...] = ()) -> int:
    """Run `work` and return its exit code (0 for None), with warnings as messages: 2, with a message on stderr, for
    errors of the library, of files, and those in `mistakes`; 130, with the message of the `KeyboardInterrupt`, after
    an interruption. A process that runs nothing else ends within two seconds of Ctrl-C."""
    try:
        with ending_soon(INTERRUPTED), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
            code = work() or FINE
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the output has seen enough. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except (JaxdynError, OSError, *mistakes) as error:
        error = with_advice(error) if isinstance(error, OSError) else error
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt as interruption:
        print(str(interruption) or "interrupted", file=sys.stderr)
        return INTERRUPTED


def print_json(work: Callable[[], Any], wanted: bool = True) -> None:
    """Print the result of `work` as JSON on stdout; everything that `work` prints goes to stderr. Infinite numbers and
    NaN, which JSON does not have, become `null`. Where JSON is not wanted, `work` just runs."""
    with contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext():
        out = work()
    if wanted:
        finite = json.loads(json.dumps(out), parse_constant=lambda _: None)
        print(json.dumps(finite, indent=1))
