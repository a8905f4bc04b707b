"""The log of a training: a record of each evaluation, and what is counted since the last one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jaxdyn._errors import DivergenceWarning, warn

# Over the first 60 updates of Gymnasium's half cheetah, means of growth and agreement were 2 to 3 and 0.54 to 0.08 by
# the default settings, and 3 to 8 and 0.51 to 0.09 by `policy_lambda=1, horizon=8`; both learned. They went from 6 and
# 0.28 to 94 and -0.06 by `policy_lambda=1` over the horizon of 32, and from 7 and 0.02 to 35 and -0.03 without a bound
# on gradients besides; neither learned.
_GROWTH, _AGREEMENT = 10.0, 0.05
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

    def warn_of_noise(self, wanted: float) -> None:
        """Warn once where the gradients of the updates before an evaluation grow over the horizon, and agree with each
        other hardly more than noise does. `wanted` is the growth that the advice is for."""
        *before, last = self.records
        if not _is_noise(last) or any(map(_is_noise, before)):
            return
        growth, horizon = _growth(last), last["horizon"]
        steps = 1 + (horizon - 1) * math.log(wanted) / math.log(growth) if math.isfinite(growth) else 1
        warn(
            f"gradients grow {growth:.3g} times over the horizon of {horizon:.0f} steps, and those of updates agree "
            f"hardly more than noise (cosine {last['agreement']:.2g}), so the policy may learn nothing. Take horizon="
            f"{max(1, int(steps))}, over which they would grow {wanted:.3g} times, or a smaller policy_lambda; "
            "jaxdyn.learn.gradient_growth(env, policy, states, steps) shows through what they grow",
            DivergenceWarning,
        )

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


def _growth(record: dict[str, Any]) -> float:
    # Numbers that are not finite are None.
    return math.inf if record["growth"] is None else record["growth"]


def _is_noise(record: dict[str, Any]) -> bool:
    """Return whether gradients grow, and agree hardly more than noise."""
    return _growth(record) > _GROWTH and record["agreement"] < _AGREEMENT
