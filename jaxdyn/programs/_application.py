"""What every program does around its work: precision, mistakes and warnings as messages, exit codes, JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxdyn._errors import JaxdynError

FINE, DIFFERENT, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def double_precision() -> None:
    """Set JAX to double precision for the rest of the process: the choice of a program, which no module makes."""
    jax.config.update("jax_enable_x64", True)


def without_compilation_cache() -> None:
    """Have all programs compiled anew for the rest of the process, unless one was compiled before."""
    jax.config.update("jax_compilation_cache_dir", None)


def exit_code(work: Callable[[], int | None], mistakes: tuple[type[Exception], ...] = ()) -> int:
    """What `work` returns (nothing is 0); 2, with a message on stderr, for errors of the library, of files, and those
    given as `mistakes`; 130, with the message of the `KeyboardInterrupt`, if it is interrupted. Warnings are printed as
    messages, too."""
    try:
        with _plain_warnings():
            code = work() or FINE
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except (JaxdynError, OSError, *mistakes) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt as interruption:
        print(str(interruption) or "interrupted", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        yield


def print_json(work: Callable[[], Any]) -> None:
    """Print what `work` returns, and nothing else, as JSON on stdout; what it prints itself goes to stderr.

    Numbers that JSON does not have, infinite ones and those that are none, are `null`.
    """
    with contextlib.redirect_stdout(sys.stderr):
        out = work()
    print(json.dumps(_finite(out), indent=1, allow_nan=False))


def _finite(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
