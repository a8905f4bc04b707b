"""The log of a training: a record of each evaluation, and what is counted since the last one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jaxdyn._errors import DivergenceWarning, warn

_SUMS = ("skipped", "episodes", "ended", "diverged", "episode_return_sum")
"""The numbers about updates that are summed in a record; of others it has the mean."""


@dataclasses.dataclass
class TrainingLog:
    """The records so far, and the sums of what has come since the last one. All fields are what JSON can hold."""

    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    """The time of the training so far, s, without what an interruption lost."""
    updates: int = 0
    sums: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, numbers: dict[str, float]) -> None:
        """Add the numbers about an update."""
        self.updates += 1
        for name, x in numbers.items():
            self.sums[name] = self.sums.get(name, 0.0) + x

    def evaluated(self, steps: int, facts: dict[str, float]) -> None:
        """Add the record of an evaluation."""
        means: dict[str, Any] = {name: x if name in _SUMS else x / self.updates for name, x in self.sums.items()}
        # JSON has no number for the mean of no episode.
        total, episodes = means.pop("episode_return_sum"), means["episodes"]
        means["training_return"] = total / episodes if episodes else None
        finite = {name: x if x is None or math.isfinite(x) else None for name, x in means.items()}
        self.records.append({"steps": steps, "seconds": round(self.seconds, 3), **facts, **finite})
        self.updates, self.sums = 0, {}

    @property
    def improved(self) -> bool:
        """Whether the last evaluation has a larger return than all before."""
        *before, last = (record["return"] for record in self.records)
        return all(last > x for x in before)

    def warn_of_faults(self) -> None:
        """Warn where updates were left out, or environments diverged."""
        for name, what in (
            ("skipped", "updates were left out, because their gradient was not finite"),
            ("diverged", "episodes ended because the simulation diverged"),
        ):
            count = round(sum(record[name] or 0 for record in self.records))
            if count:
                warn(
                    f"{count} {what}; a smaller time step, weaker actuators or softer contacts may help",
                    DivergenceWarning,
                )
