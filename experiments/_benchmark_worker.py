"""A process with one library and one robot, which prepares operations and times them on one core.

It reads requests from standard input, a JSON object a line, and answers each with one line; `_benchmark_pool` is the
other end.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments import _benchmark_models as models
from experiments._benchmark_models import Tree, UnsupportedError

# The largest numbers of states and of numbers that are returned for comparison.
_SAMPLE_STATES, _SAMPLE_NUMBERS = 64, 4_000_000


class Prepared:
    """A prepared run of an operation."""

    def __init__(self, run: Callable[[], Any], evaluations: int, empty: Callable[[], Any] | None = None):
        self.run, self.evaluations, self.empty = run, evaluations, empty

    def measure(self, budget: float, repeats: int) -> list[float]:
        """Measure the CPU time of one evaluation in us, `repeats` times within about `budget` seconds."""
        once = _seconds(self.run, 1)
        inner = max(1, int(budget / repeats / max(once, 1e-7)))
        if once > budget:
            repeats = 1
        out = []
        for _ in range(repeats):
            seconds = _seconds(self.run, inner)
            if self.empty is not None:
                seconds -= _seconds(self.empty, inner)
            out.append(seconds / inner / self.evaluations * 1e6)
        return out


def _seconds(run: Callable[[], Any], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        run()
    return time.process_time() - began


class NativeWorker:
    def __init__(self, peer: str, tree: Tree):
        from experiments._benchmark_native import LIBRARIES

        self.tree, self.library = tree, LIBRARIES[peer](tree)

    def prepare(self, operation: str, batch: int, steps: int, memory: float) -> tuple[Prepared, dict, Any]:
        call = self.library.call(operation, batch, steps)
        began = time.process_time()
        call.run()
        n = _sample_size(self.tree, operation, batch)
        comparable = n and not (operation == "rollout" and self.tree.free)
        results = call.results(n) if comparable else None
        info = {"first_run_s": time.process_time() - began}
        return Prepared(call.run, call.evaluations, call.empty), info, results


class JaxWorker:
    def __init__(self, peer: str, tree: Tree, dtype: str):
        import jax

        from experiments._benchmark_jax import LIBRARIES

        self.jax, self.tree = jax, tree
        self.library = LIBRARIES[peer](tree, dtype)
        # The first compilation in a process sets up the compiler, which must not count.
        x = jax.numpy.ones(3, dtype)
        jax.jit(lambda x: jax.lax.scan(lambda c, y: (c + y, c * y), 0 * x[0], x)).lower(x).compile()(x)

    def prepare(self, operation: str, batch: int, steps: int, memory: float) -> tuple[Prepared, dict, Any]:
        from experiments._benchmark_jax import operation as function_of

        jax, rolled = self.jax, operation.startswith("rollout")
        function, letters = function_of(self.library, operation, batch, steps)
        common = (models.rollout_states if rolled else models.states)(self.tree, batch)
        states = self.library.states(common)
        arrays: dict[str, Any] = dict(zip("qvta", states, strict=True))
        arrays = {k: jax.numpy.asarray(x if batch > 1 else x[0], self.library.dtype) for k, x in arrays.items()}
        if "m" in letters:
            model = operation == "aba_model_argument"
            arrays["m"] = getattr(self.library, "model") if model else self.library.parameters()[0]  # noqa: B009
        arguments = [arrays[letter] for letter in letters]
        jax.clear_caches()
        began = time.process_time()
        lowered = jax.jit(function).lower(*arguments)
        traced = time.process_time()
        compiled = lowered.compile()
        done = time.process_time()
        info: dict[str, Any] = {**self.library.origin(), "trace_s": traced - began, "compile_s": done - traced}
        analysis = compiled.memory_analysis()
        if analysis is not None:
            info["temporary_bytes"] = int(analysis.temp_size_in_bytes)
            info["output_bytes"] = int(analysis.output_size_in_bytes)
            needed = (info["temporary_bytes"] + info["output_bytes"]) / 2**30
            if needed > memory:
                raise MemoryError(f"it would take {needed:.1f} GiB, and the limit is {memory:g}; compiled {info}")

        # `aba_model_argument` measures the dispatch of a call with a model as argument, too.
        call = jax.jit(function) if operation == "aba_model_argument" else compiled
        jax.block_until_ready(call(*arguments))

        def run():
            out = call(*arguments)
            return out.block_until_ready() if isinstance(out, jax.Array) else jax.block_until_ready(out)

        began = time.process_time()
        results = run()
        info["first_run_s"] = time.process_time() - began
        info["finite"] = all(bool(jax.numpy.all(jax.numpy.isfinite(x))) for x in jax.tree.leaves(results))
        sample = self._sample(operation, batch, common, results)
        return Prepared(run, batch * (steps if rolled else 1)), info, sample

    def _sample(self, operation: str, batch: int, common: models.States, results: Any) -> Any:
        n, name = _sample_size(self.tree, operation, batch), _same_result(operation)
        if not n or name is None or not self.library.comparable(name):
            return None
        parts = [np.asarray(x, np.float64) for x in self.jax.tree.leaves(results)]
        parts = [x[:n] if batch > 1 else x[None] for x in parts]
        if name in ("aba", "rnea", "crba"):
            return self.library.back(name, models.States(*(x[:n] for x in common)), parts[0])
        return tuple(parts)


def _same_result(operation: str) -> str | None:
    """Return the operation with whose results those of an operation are compared."""
    same = {"vmap_aba": "aba", "vmap_rnea": "rnea", "aba_model_argument": "aba", "parameter_gradient": None}
    return same.get(operation, operation)


def _sample_size(tree: Tree, operation: str, batch: int) -> int:
    matrices = {"crba": 1, "inverse_mass_matrix": 1, "coriolis_matrix": 1, "aba_derivatives": 3, "rnea_derivatives": 3}
    numbers = {**matrices, "torque_regressor": 10}.get(operation, 0) * tree.nv**2
    return min(batch, _SAMPLE_STATES, _SAMPLE_NUMBERS // max(numbers, 1))


def answer(worker: Any, prepared: Prepared | None, request: dict) -> tuple[Prepared | None, dict]:
    """Answer a request; returns the prepared run after it and the answer."""
    if request["do"] == "time":
        assert prepared is not None
        return prepared, {"us": prepared.measure(request["budget"], request["repeats"]), "max_rss_mb": _rss()}
    prepared = None  # Frees its memory before the next run is prepared.
    before = _rss()
    try:
        prepared, info, sample = worker.prepare(
            request["operation"], request["batch"], request["steps"], request["memory"]
        )
    except UnsupportedError as reason:
        return None, {"status": "unsupported", "reason": str(reason)}
    except Exception as error:
        return None, {"status": "failed", "reason": _message(error)}
    if sample is not None:
        parts = sample if isinstance(sample, tuple) else (sample,)
        np.savez(request["sample"], *parts)
    return prepared, {"status": "ok", **info, "max_rss_before_mb": before, "max_rss_mb": _rss()}


def _rss() -> float:
    """The largest resident memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _message(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def main() -> None:
    peer, dtype, core, path, checkout = sys.argv[1:]
    # This package stays; `jaxdyn` is imported from the checkout.
    sys.path.insert(0, checkout)
    os.sched_setaffinity(0, {int(core)})
    # If memory runs out, the system should end this process first.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Libraries print, so the answers have a separate channel.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        tree = models.tree_from_text(Path(path).read_text(encoding="utf-8"))
        native = peer in ("pinocchio", "pinocchio_parallel", "mujoco")
        worker = NativeWorker(peer, tree) if native else JaxWorker(peer, tree, dtype)
    except ImportError as error:
        print(json.dumps({"status": "not installed", "reason": _message(error)}), file=channel)
        return
    except Exception as error:
        print(json.dumps({"status": "failed", "reason": _message(error)}), file=channel)
        return
    print(json.dumps({"status": "ok", "max_rss_mb": _rss()}), file=channel)
    prepared = None
    for line in sys.stdin:
        prepared, out = answer(worker, prepared, json.loads(line))
        print(json.dumps(out), file=channel)


if __name__ == "__main__":
    main()
