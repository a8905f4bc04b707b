"""The workers of the benchmarks: processes that answer requests within a limit of time."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
_STARTING_LIMIT = 300.0


class WorkerGoneError(Exception):
    """A worker did not answer in time, or ended."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Process:
    """A process that runs a module, whose requests and answers are JSON, one a line."""

    def __init__(self, module: str, *arguments: str, environment: dict[str, str]):
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._buffer = b""
        self.started = self._answer(_STARTING_LIMIT)
        """The first answer: `status`, and `reason` unless that is `ok`."""

    def ask(self, request: dict, limit: float) -> dict:
        """Return the answer to a request. **Raises** `WorkerGoneError` after it has ended the worker."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        return self._answer(limit)

    def _answer(self, limit: float) -> dict:
        assert self._process.stdout is not None
        descriptor, until = self._process.stdout.fileno(), time.monotonic() + limit
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self.close()
                raise WorkerGoneError("timeout", f"no answer within {limit:g} s")
            read = os.read(descriptor, 1 << 16)
            if not read:
                raise self._ended()
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _ended(self) -> WorkerGoneError:
        code = self._process.wait()
        self._log.seek(0)
        last = " ".join(self._log.read().decode(errors="replace").split())[-300:]
        self.close()
        return WorkerGoneError("failed", f"the process ended with code {code}: {last}")

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue


class Worker(Process):
    """A process with one library, one robot and one precision, which imports `jaxdyn` from the folder `checkout`."""

    def __init__(self, peer: str, dtype: str, core: int, tree: Path, checkout: Path = ROOT):
        self.peer, self.dtype = peer, dtype
        environment = {
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_X64": "1" if dtype == "float64" else "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if peer == "frax":  # Its documentation asks for this on CPUs.
            flags = "--xla_cpu_multi_thread_eigen=false --xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
            environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        arguments = (peer, dtype, str(core), str(tree), str(checkout))
        super().__init__("experiments._benchmark_worker", *arguments, environment=environment)
