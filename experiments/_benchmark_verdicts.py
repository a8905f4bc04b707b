"""The claims of the benchmark: figures, their references, and the limits of their ratios."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

OURS = "jaxdyn"
BASELINE = "baseline"
"""This library from another checkout."""
ROBOTS = ("panda", "solo12", "talos_reduced")
QUANTITIES = (
    *("inverse_mass_matrix", "coriolis_matrix", "torque_regressor", "centroidal_momentum"),
    *("centroidal_momentum_matrix", "centroidal_momentum_matrix_time_derivative", "com_jacobian"),
)
JAX_PEERS = ("brax", "frax", "mjx", "jaxsim", "jaxsim_parallel")

LIMITS = {
    ("aba", "float32"): (0.035, 0.045, 0.08),
    ("aba", "float64"): (0.08, 0.1, 0.17),
    ("rnea", "float32"): (0.06, 0.07, 0.11),
    ("rnea", "float64"): (0.12, 0.14, 0.22),
}
"""The limits of the ratios to Pinocchio's time, for each of `ROBOTS`."""
FIRST_CALLS = {
    ("aba", 1): (0.6, 0.9, 2.5),
    ("gradient", 1024): (1.0, 2.0, 6.0),
    ("aba_derivatives", 256): (1.0, 4.0, 12.0),
}
"""The limits of the seconds to trace and compile, for each of `ROBOTS`, at a batch size that is measured before others:
they share the native program."""

type Quantity = Literal["time", "compilation", "error"]
type Verdict = Literal["reached", "not reached", "not measured"]


class Key(NamedTuple):
    """The case of one measurement."""

    robot: str
    operation: str
    batch: int
    peer: str
    dtype: str


class Line(NamedTuple):
    """A claim: a quantity of `ours` is at most `limit` (times the best of `against`, where there are any)."""

    claim: str
    ours: Key
    limit: float
    against: tuple[Key, ...] = ()
    quantity: Quantity = "time"


class Judged(NamedTuple):
    """A line with its measurements."""

    line: Line
    value: float | None
    """Time of an evaluation in us, time of compilation in s, or a relative error."""
    reference: float | None
    best: str
    """The peer of `reference`, or the reason for its absence."""
    ratio: float | None
    """The ratio that is compared with the limit."""
    verdict: Verdict


def lines() -> list[Line]:
    """Return every claim for each of its robots, batches and precisions."""
    return [*_dynamics(), *_gradients(), *_rollouts(), *_own_functions(), *_chains()]


_PINOCCHIO = [("pinocchio", "float64"), ("pinocchio_parallel", "float64")]
_JAX = [(peer, "float32") for peer in JAX_PEERS]


def _line(claim: str, key: Key, limit: float, peers: Iterable[tuple[str, str]] = (), **changes) -> Line:
    """Return a claim on times beside those of peers, with the precision of each."""
    return Line(claim, key, limit, tuple(key._replace(peer=peer, dtype=dtype, **changes) for peer, dtype in peers))


def _dynamics() -> Iterator[Line]:
    for (operation, dtype), limits in LIMITS.items():
        for robot, limit in zip(ROBOTS, limits, strict=True):
            key = Key(robot, operation, 1024, OURS, dtype)
            yield _line(f"{operation} against Pinocchio, one thread", key, limit, _PINOCCHIO)
    for batch, robot in itertools.product((256, 1024), ROBOTS):
        yield _line("crba against Pinocchio", Key(robot, "crba", batch, OURS, "float32"), 1.2, _PINOCCHIO[:1])
    for (dtype, limit), robot in itertools.product((("float32", 1.0), ("float64", 2.0)), ROBOTS):
        key = Key(robot, "aba_derivatives", 256, OURS, dtype)
        yield _line("aba_derivatives against Pinocchio's", key, limit, _PINOCCHIO[:1])
    for operation, robot in itertools.product(QUANTITIES, ROBOTS):
        key = Key(robot, operation, 256, OURS, "float32")
        yield _line(f"{operation} against Pinocchio's", key, 2.0, _PINOCCHIO[:1])


def _gradients() -> Iterator[Line]:
    for dtype, robot in itertools.product(("float32", "float64"), ROBOTS):
        key = Key(robot, "gradient", 1024, OURS, dtype)
        yield _line("gradient of sum(aba^2) against aba itself", key, 4.0, [(OURS, dtype)], operation="aba")
    for robot in ROBOTS:
        key = Key(robot, "gradient", 1024, OURS, "float32")
        yield _line("gradient of sum(aba^2) against the best JAX peer", key, 1 / 3, _JAX)
    for operation, robot in itertools.product(("aba", "rnea", "crba"), ROBOTS):
        key = Key(robot, operation, 1024, OURS, "float32")
        peers = [("frax", "float32"), ("brax", "float32")]
        yield _line(f"{operation} against the best of frax and Brax", key, 0.5, peers)
    for operation, robot in itertools.product(("aba", "rnea"), ROBOTS):
        key = Key(robot, operation, 1, OURS, "float32")
        yield _line(f"{operation} of one state against the best JAX peer", key, 1.0, _JAX)


def _rollouts() -> Iterator[Line]:
    for robot in ROBOTS:
        key = Key(robot, "rollout", 1, OURS, "float32")
        yield _line("roll-out against MuJoCo's C", key, 0.3, [("mujoco", "float64")])
    for robot in ROBOTS:
        yield _line("roll-out against Brax", Key(robot, "rollout", 1, OURS, "float32"), 0.6, [("brax", "float32")])
    plants = (("MuJoCo's C", ("mujoco", "float64"), 0.02), ("Brax", ("brax", "float32"), 1.0))
    for (name, peer, limit), robot in itertools.product(plants, ROBOTS[:2]):
        yield _line(f"256 roll-outs against {name}", Key(robot, "rollout", 256, OURS, "float32"), limit, [peer])


def _own_functions() -> Iterator[Line]:
    for operation, dtype, robot in itertools.product(("aba", "rnea"), ("float32", "float64"), ROBOTS):
        key = Key(robot, f"vmap_{operation}", 1024, OURS, dtype)
        yield _line(f"jax.vmap of {operation} against its batch axes", key, 1.2, [(OURS, dtype)], operation=operation)
    for (operation, batch), seconds in FIRST_CALLS.items():
        for robot, limit in zip(ROBOTS, seconds, strict=True):
            key = Key(robot, operation, batch, OURS, "float32")
            yield Line(f"CPU seconds to trace and compile {operation}", key, limit, (), "compilation")


def _chains() -> Iterator[Line]:
    for operation, dtype in itertools.product(("aba", "rnea"), ("float32", "float64")):
        key = Key("chain512", operation, 256, OURS, dtype)
        yield _line(f"{operation} of 512 joints against 128 joints", key, 4.5, [(OURS, dtype)], robot="chain128")
    for robot, limit in (("chain32", 5e-4), ("chain128", 3e-3)):
        key = Key(robot, "aba", 256, OURS, "float32")
        # The reference of the error is the measurement in double precision.
        yield Line("relative error of aba", key, limit, (key._replace(dtype="float64"),), "error")


def needed() -> list[Key]:
    """Return the measurements for all lines, each once, sorted by robots and operations."""
    keys = {key for line in lines() for key in (line.ours, *line.against)}
    robots = [*ROBOTS, *sorted({k.robot for k in keys} - set(ROBOTS), key=_joints)]
    operations = list(dict.fromkeys(k.operation for line in lines() for k in (line.ours, *line.against)))
    return sorted(keys, key=lambda k: (robots.index(k.robot), operations.index(k.operation), k.batch))


def _joints(chain: str) -> int:
    return int(re.sub(r"\D", "", chain) or 0)


def judge(measured: Mapping[Key, dict]) -> list[Judged]:
    """Return the verdict on every claim."""
    return [_judge_line(line, measured) for line in lines()]


def _judge_line(line: Line, measured: Mapping[Key, dict]) -> Judged:
    value = _value(line.quantity, measured.get(line.ours))
    if line.quantity != "time":
        reason = "" if value is not None else _reason(line.ours, measured)
        verdict = "not measured" if value is None else "reached" if value <= line.limit else "not reached"
        return Judged(line, value, None, reason, value, verdict)
    times = {key: x for key in line.against if (x := _value("time", measured.get(key))) is not None}
    if value is None:
        return Judged(line, None, None, _reason(line.ours, measured), None, "not measured")
    if not times:
        return Judged(line, value, None, "; ".join(_reason(k, measured) for k in line.against), None, "not measured")
    best = min(times, key=lambda key: times[key])
    text = best.peer if best.peer != OURS else best.operation if best.robot == line.ours.robot else best.robot
    missing = sorted({k.peer for k in line.against} - {k.peer for k in times})
    # Pinocchio has functions of whole batches for some operations only.
    missing = [x for x in missing if x != "pinocchio_parallel"]
    if missing:
        text += f" (without {', '.join(missing)})"
    if measured[best].get("run") != measured[line.ours].get("run"):
        text += " (of another run)"
    ratio = value / times[best]
    return Judged(line, value, times[best], text, ratio, "reached" if ratio <= line.limit else "not reached")


def _value(quantity: Quantity, record: dict | None) -> float | None:
    if record is None or record["status"] != "ok":
        return None
    if quantity == "compilation":
        return record["trace_s"] + record["compile_s"]
    return record.get("error") if quantity == "error" else record["us_per_evaluation"]


def _reason(key: Key, measured: Mapping[Key, dict]) -> str:
    record = measured.get(key)
    if record is None:
        return f"{key.peer} {key.operation}: not run"
    if record["status"] == "ok":
        return f"{key.peer} {key.operation}: nothing to compare with"
    return f"{key.peer} {key.operation}: {record['status']}: {record.get('reason', '')}"[:160]


def summary(judged: Sequence[Judged]) -> str:
    """Return the counts of the verdicts."""
    counts = {v: sum(j.verdict == v for j in judged) for v in ("reached", "not reached", "not measured")}
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
