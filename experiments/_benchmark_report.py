"""The benchmark's measurements as a table of verdicts, a report in Markdown, and plots."""

from __future__ import annotations

import itertools
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from experiments._benchmark_verdicts import OURS, Judged, Key, summary
from experiments._main import version_of
from jaxdyn.cli import pyplot, save_figure

PACKAGES = ("jaxdyn", "jax", "jaxlib", "numpy", "pin", "mujoco", "mujoco-mjx", "brax", "frax", "jaxsim")
_UNITS = {"time": "us", "compilation": "s", "error": ""}


def conditions(core: int) -> dict:
    """Return the machine and the versions of the measurements."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "measured_on_core": core,
        "system": platform.platform(),
        "python": platform.python_version(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "versions": {package: version_of(package, "not installed") for package in PACKAGES},
    }


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    line = "| " + " | ".join(header) + " |"
    return [line, "|" + "---|" * len(header), *("| " + " | ".join(row) + " |" for row in rows)]


def step_times(times: Callable[[], tuple[float, float]], count: int, **keys: str | int) -> dict[str, Any]:
    """Return, and print, a record of the steps a second: `times()` returns the time of `count` steps and that of the
    first call, s, or raises `ImportError`, which the record then has. Compilation is what the first call takes longer
    than later ones."""
    try:
        seconds, first = times()
        record = {**keys, "compile_s": max(first - seconds, 0.0), "steps_per_s": count / seconds}
    except ImportError as error:
        record = {**keys, "reason": str(error)}
    print(" | ".join(_step_row(record, keys)), flush=True)
    return record


def write_step_times(
    folder: Path, title: str, note: str, records: Sequence[dict[str, Any]], keys: Sequence[str]
) -> None:
    """Write `report.md` of records of `step_times` with these keys into a folder."""
    device, where = jax.devices()[0], conditions(-1)
    text = [
        f"# {title}",
        "",
        f"{where['date']}: {device.device_kind} ({device.platform}), {where['cpu']}; single precision (MuJoCo: "
        f"double); {note}wall time.",
        "",
        *table((*keys, "steps/s", "us a step", "compilation, s"), [_step_row(x, keys) for x in records]),
        "",
    ]
    (folder / "report.md").write_text("\n".join(text), encoding="utf-8")
    print(f"wrote {folder / 'report.md'}")


def _step_row(record: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    start = [str(record[key]) for key in keys]
    if "reason" in record:
        return [*start, f"not measured: {record['reason']}", "", ""]
    rate = record["steps_per_s"]
    return [*start, f"{rate:.3g}", number(1e6 / rate), number(record["compile_s"])]


def number(x: float | None, unit: str = "") -> str:
    if x is None:
        return ""
    text = f"{x:.3g}" if abs(x) < 100 else f"{x:,.0f}"
    return f"{text} {unit}".strip()


def _row(judged: Judged) -> list[str]:
    line = judged.line
    unit = _UNITS[line.quantity]
    limit = number(line.limit, "" if line.quantity == "time" else unit)
    reference = f"{number(judged.reference, unit)} {judged.best}" if judged.reference is not None else judged.best
    ours = line.ours
    where = [ours.robot, str(ours.batch), ours.dtype]
    ratio = number(judged.ratio) if line.quantity == "time" else ""
    measured = number(judged.value, unit)
    return [line.claim, *where, measured, _cell(reference), ratio, f"<= {limit}", judged.verdict]


_VERDICT_HEADER = ("claim", "robot", "batch", "precision", "measured", "against", "ratio", "limit", "verdict")


def print_verdicts(judged: Sequence[Judged], robots: Iterable[str]) -> None:
    """Print the verdicts on some robots; the report has all."""
    robots = set(robots)
    judged = [j for j in judged if j.line.ours.robot in robots]
    rows = [_row(j) for j in judged]
    # The reason why a figure was not measured may be long.
    rows = [[x if len(x) < 48 else x[:45] + "..." for x in row] for row in rows]
    print_columns(_VERDICT_HEADER, rows)
    print(f"\n{summary(judged)}")


def print_columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in columns. A row that is shorter than the header ends with a text that sets no width."""
    rows = [header, *rows]
    full = [row for row in rows if len(row) == len(header)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    print()
    for row in rows:
        print("  ".join(f"{x:{width}}" for x, width in zip(row, widths, strict=False)).rstrip())


def write_report(
    path: Path, conditions: Sequence[dict], measured: Mapping[Key, dict], judged: Sequence[Judged]
) -> None:
    out = ["# Benchmark", ""]
    for part in conditions:
        versions = ", ".join(f"{k} {v}" for k, v in part["versions"].items())
        config = ", ".join(f"{k} = {v}" for k, v in part["config"].items())
        out += [
            f"Measured on {part['date']}: {part['cpu']}, {part['cores']} cores, everything on core "
            f"{part['measured_on_core']}; {part['system']}, Python {part['python']}; XLA_FLAGS `{part['xla_flags']}`; "
            f"{versions}. Settings: {config}.",
            "",
        ]
    out += [*_METHOD, "", "## Claims", "", summary(judged) + ".", "", *table(_VERDICT_HEADER, map(_row, judged)), ""]
    for operation in dict.fromkeys(key.operation for key in measured):
        part = {key: r for key, r in measured.items() if key.operation == operation}
        unit = "a step" if operation.startswith("rollout") else "an evaluation"
        out += [f"## {operation}", "", f"CPU time, us {unit}:", "", *_grid(part, _time), ""]
        for title, cell in (
            ("CPU time to trace (and lower) + to compile, s:", _compilation),
            ("Temporary memory of the program, MB / largest resident memory of the process so far, MB:", _memory),
            ("Largest relative difference from the reference:", _error),
        ):
            if any(cell(r) for r in part.values()):
                out += [title, "", *_grid(part, cell), ""]
    missing = {
        (key.peer, key.dtype, key.operation, r["status"], r.get("reason", "")): None
        for key, r in measured.items()
        if r["status"] != "ok"
    }
    if missing:
        rows = []
        for peer, dtype, operation, status, reason in missing:
            where = [
                f"{k.robot} {k.batch}"
                for k, r in measured.items()
                if (k.peer, k.dtype, k.operation, r["status"], r.get("reason", ""))
                == (peer, dtype, operation, status, reason)
            ]
            rows.append([peer, dtype, operation, ", ".join(where), status, _cell(reason)])
        header = ("library", "precision", "operation", "robot and batch", "status", "reason")
        out += ["## What was not measured", "", *table(header, rows), ""]
    path.write_text("\n".join(out), encoding="utf-8")


_METHOD = (
    "Times are CPU time of one pinned core, medians over rounds in which the libraries take turns; least and largest",
    "values are in `measurements.jsonl`. States are random, the same for all libraries, and are converted to each",
    "library's conventions before the clock runs; models are constants of the compiled programs (except in",
    "`aba_model_argument`). `pinocchio` is a loop in Python over single calls, less a loop over an empty function;",
    "`pinocchio_parallel` its functions of whole batches with one thread; claims count the faster of the two. `mujoco`",
    "at batch 1 is one call from Python, less an empty one; `mj_forward` and `mj_inverse` do more than the dynamics.",
    "Roll-outs are semi-implicit Euler in one program (in MuJoCo, `mujoco.rollout` with one thread). Errors are",
    "`max|x - r| / max|r|` state by state, the worst of up to 64 states.",
)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _time(r: dict) -> str:
    return number(r["us_per_evaluation"]) if r["status"] == "ok" else r["status"]


def _compilation(r: dict) -> str:
    return f"{r['trace_s']:.2f} + {r['compile_s']:.2f}" if "compile_s" in r and r["status"] == "ok" else ""


def _memory(r: dict) -> str:
    if r["status"] != "ok" or "temporary_bytes" not in r:
        return ""
    return f"{r['temporary_bytes'] / 2**20:.1f} / {r['max_rss_mb']:.0f}"


def _error(r: dict) -> str:
    return f"{r['error']:.1e}" if "error" in r else ""


def _grid(records: Mapping[Key, dict], cell: Callable[[dict], str]) -> list[str]:
    columns = sorted({(k.peer, k.dtype) for k in records}, key=lambda x: (x[0] != OURS, x))
    rows = []
    for robot, batch in dict.fromkeys((k.robot, k.batch) for k in records):
        cells = {(k.peer, k.dtype): r for k, r in records.items() if (k.robot, k.batch) == (robot, batch)}
        rows.append([robot, str(batch), *(_cell(cell(cells[c])) if c in cells else "" for c in columns)])
    return table(("robot", "batch", *(f"{peer} {dtype}" for peer, dtype in columns)), rows)


def draw(folder: Path, measured: Mapping[Key, dict]) -> None:
    """Draw `batch_<robot>.png` for each robot, and `joints_batch<n>.png` over the chains."""
    if pyplot() is None:
        return
    ok = {key: r["us_per_evaluation"] for key, r in measured.items() if r["status"] == "ok"}
    operations = list(dict.fromkeys(k.operation for k in ok))
    for robot in dict.fromkeys(k.robot for k in ok):
        curves = {
            o: _curves({k: x for k, x in ok.items() if (k.robot, k.operation) == (robot, o)}, lambda k: k.batch)
            for o in operations
        }
        title = f"{robot}: CPU time of an evaluation, one core"
        _plot(folder / f"batch_{Path(robot).stem}.png", curves, "states in the batch", title)
    chains = {k: x for k, x in ok.items() if k.robot.startswith("chain") and k.robot[5:].isdigit()}
    batches = sorted({k.batch for k in chains})
    for batch in batches:
        part = {k: x for k, x in chains.items() if k.batch == batch}
        curves = {
            o: _curves({k: x for k, x in part.items() if k.operation == o}, lambda k: int(k.robot[5:]))
            for o in dict.fromkeys(k.operation for k in part)
        }
        title = f"Serial chains: CPU time of an evaluation, one core, batch {batch}"
        _plot(folder / f"joints_batch{batch}.png", curves, "joints", title)


type _Curves = dict[str, list[tuple[int, float]]]


def _curves(part: Mapping[Key, float], x: Callable[[Key], int]) -> _Curves:
    out: _Curves = {}
    for key, value in part.items():
        out.setdefault(f"{key.peer} {key.dtype}", []).append((x(key), value))
    return {name: sorted(points) for name, points in out.items()}


def _plot(path: Path, curves: Mapping[str, _Curves], xlabel: str, title: str) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    curves = {o: c for o, c in curves.items() if any(len(points) > 1 for points in c.values())}
    if not curves:
        return
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(4.6 * columns, 3.6 * rows + 0.9), squeeze=False)
    names = sorted({n for c in curves.values() for n in c}, key=lambda n: (not n.startswith(OURS), n))
    peers = list(dict.fromkeys(n.split()[0] for n in names))
    handles = {}
    for axis, item in itertools.zip_longest(axes.flat, curves.items()):
        if item is None:
            axis.set_axis_off()
            continue
        operation, by_name = item
        for name in names:
            if name not in by_name:
                continue
            peer, dtype = name.split()
            style = {"color": f"C{peers.index(peer)}", "lw": 2.4 if peer == OURS else 1.2}
            style |= {"ls": "-" if dtype == "float32" else "--", "marker": "o", "ms": 3}
            (handles[name],) = axis.plot(*zip(*by_name[name], strict=True), **style)
        axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel="us", title=operation)
        # Only what was measured: between two of them the steps of the logarithm would crowd.
        measured = sorted({x for points in by_name.values() for x, _ in points})
        axis.set_xticks(measured, [str(x) for x in measured])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(alpha=0.3, which="both")
    fig.suptitle(title)
    used = [name for name in names if name in handles]
    fig.legend([handles[n] for n in used], used, ncol=4, fontsize=8, loc="lower center", frameon=False)
    fig.tight_layout(rect=(0, 0.02 + 0.04 * -(-len(used) // 4) / rows, 1, 1))
    save_figure(path, fig, dpi=110)
