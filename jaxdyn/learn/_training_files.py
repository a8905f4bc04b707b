"""The folder of a training: how it was begun, checkpoints, the log, the curve and the policy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxdyn._durable_files import holding_folder, write_durably
from jaxdyn._errors import DataError, warn
from jaxdyn.learn._array_files import load_policy, read_tree, save_policy, write_tree
from jaxdyn.learn._networks import Policy

MANIFEST, CHECKPOINT, LOG, CURVE = "manifest.json", "checkpoint.npz", "log.jsonl", "curve.png"
POLICY, BEST = "policy.npz", "best.npz"


class TrainingFolder:
    """The files of one training. All are replaced as a whole, so that a kill at any time leaves the last of each."""

    def __init__(self, path: Path, manifest: dict[str, Any]):
        self.path = path
        # What is compared is what JSON returns, such as lists for tuples.
        self._manifest = json.loads(json.dumps(manifest))

    @contextlib.contextmanager
    def held(self, resume: bool) -> Iterator[None]:
        """Hold the folder for this process, and write down or compare how the training was begun. **Raises**
        `DataError`."""
        self.path.mkdir(parents=True, exist_ok=True)
        with holding_folder(self.path / ".lock") as held:
            if not held:
                raise DataError(f"{self.path}: another process trains here; wait until it ends, or take another folder")
            self._begin(resume)
            yield

    def _begin(self, resume: bool) -> None:
        path = self.path / MANIFEST
        if not path.exists():
            _write_text(path, json.dumps(self._manifest, indent=1) + "\n")
            return
        if not resume:
            raise DataError(
                f"{self.path}: a training was begun here; continue it (--resume, or resume=True), or take another "
                "folder"
            )
        before = read_manifest(self.path)
        missing = "nothing"
        other = [
            f"{name} was {before.get(name, missing)!r} and is {self._manifest.get(name, missing)!r}"
            for name in dict.fromkeys((*before, *self._manifest))
            if before.get(name, missing) != self._manifest.get(name, missing)
        ]
        if other:
            raise DataError(
                f"{path}: this training was begun otherwise, so it cannot continue: {'; '.join(other)}. Give what was "
                "given before, or take another folder"
            )

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """Return the state and the facts of the last checkpoint, or None where there is none, or a damaged one, which
        is renamed with a warning."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            return read_tree(path, lambda _: like)
        except DataError as error:
            path.replace(path.with_name(f"{CHECKPOINT}.damaged"))
            warn(f"{error}; it is kept as {CHECKPOINT}.damaged, and the training begins anew", UserWarning)
            return None

    def save(self, state: Any, facts: dict[str, Any]) -> None:
        """Write a checkpoint."""
        write_tree(self.path / CHECKPOINT, state, facts)

    def write_log(self, records: list[dict[str, Any]]) -> None:
        """Write the evaluations, one a line."""
        _write_text(self.path / LOG, "".join(json.dumps(record) + "\n" for record in records))

    def save_best(self, policy: Policy) -> None:
        """Write the policy of the best evaluation so far. A training that was killed before its next checkpoint finds
        the same policy again."""
        save_policy(self.path / BEST, policy)

    def best(self) -> Policy:
        """Return the policy of the best evaluation so far."""
        return load_policy(self.path / BEST)

    def finish(self, policy: Policy, records: list[dict[str, Any]]) -> None:
        """Write the policy, and the curve where Matplotlib is installed."""
        save_policy(self.path / POLICY, policy)
        with contextlib.suppress(ImportError):
            figure = plot_training(records)
            write_durably(self.path / CURVE, lambda temporary: figure.savefig(temporary, dpi=120))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return how a training was begun. **Raises** `DataError` where none was."""
    try:
        return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder}: no training was begun here ({MANIFEST} is missing)") from None
    except ValueError as error:
        raise DataError(f"{folder / MANIFEST}: cannot be read ({error})") from None


def plot_training(records: list[dict[str, Any]]) -> Any:
    """Return a `matplotlib.figure.Figure` of the returns of a training's evaluations, and of the norm of its gradients,
    over its steps. **Raises** `ImportError` without matplotlib."""
    from jaxdyn.viz import COLORS, figure_class

    figure = figure_class()(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    steps = [r["steps"] for r in records]
    above.plot(steps, [r["return"] for r in records], color=COLORS[0], label="mean")
    low, high = ([r[name] for r in records] for name in ("return_min", "return_max"))
    above.fill_between(steps, low, high, color=COLORS[0], alpha=0.2, lw=0, label="least to largest")
    above.set_ylabel("return of an episode")
    above.legend(frameon=False, fontsize=8)
    below.semilogy(steps, [r["gradient_norm"] for r in records], color=COLORS[1])
    below.set_ylabel("norm of the gradient")
    below.set_xlabel("steps of the environments")
    return figure


def _write_text(path: Path, text: str) -> None:
    write_durably(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
