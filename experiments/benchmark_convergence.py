"""Solve published problems of optimal control from many guesses with ddp and with IPOPT: how often, how well, how fast.

    python -m experiments.benchmark_convergence [CONFIG] [--problems NAME,NAME] [--guesses N] [--key value ...]

Each problem is solved from its published guess and from random constant controls with the default options of `ddp`, and
from the same guesses by IPOPT on the same transcription, if CasADi is installed (`pip install casadi`). IPOPT's results
are kept in a file and computed once. Solutions are judged by their cost and their violation, computed here, and by the
first-order conditions, without the solvers' multipliers.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from experiments import _job_files
from experiments._benchmark_report import conditions, number, table
from experiments._main import CONFIGS, experiment
from experiments._optimal_control import PROBLEMS, Benchmark
from experiments._optimal_control._optimality import stationarity
from experiments._resuming import arrays_by_path, require_seed
from experiments._timing import time_compilation
from jaxdyn import DataError, cli
from jaxdyn.trajopt import Problem, Status, ddp
from jaxdyn.trajopt.problem import bound_excess

DEFAULT_CONFIG = CONFIGS / "benchmark_convergence.toml"
NEAR = 0.01
"""A solution within this part of the lowest cost has found it."""
FEASIBLE = 1e-5
"""Largest violation, relative to one plus the size of the bound, and largest gap of a solution."""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    problems: str = "all"
    """Names of the problems, separated by commas, or `all`."""
    guesses: int = 24
    """Number of random constant controls for each problem, beside the published guess."""
    seed: int = 0
    """Seed of the random controls."""
    ipopt: str = ""
    """File in which IPOPT's results are kept; by default `ipopt.json` beside the summary."""
    ipopt_iterations: int = 1000
    """Largest number of iterations of IPOPT."""
    ipopt_guesses: int = 24
    """Number of the random guesses from which IPOPT starts, too: its runs on robots take a minute each; -1 for no
    IPOPT."""


def run(config: Config) -> dict[str, Any]:
    """Solve, print, and write `<results>/<name>/summary.json`; returns its content."""
    require_seed(config.seed)
    cli.require_positive_keys(config, "ipopt_iterations")
    if config.ipopt_guesses < -1:
        raise DataError(f"ipopt_guesses is {config.ipopt_guesses}; a number from -1 is needed")
    if config.guesses < 0:
        raise DataError(f"guesses is {config.guesses}; zero or a positive number is needed")
    names = list(PROBLEMS) if config.problems == "all" else [name.strip() for name in config.problems.split(",")]
    unknown = [name for name in names if name not in PROBLEMS]
    if unknown:
        raise DataError(f"problems has {', '.join(unknown)}; there are {', '.join(PROBLEMS)}")
    folder = config.make_folder()
    out: dict[str, Any] = {"config": dataclasses.asdict(config), **conditions(-1), "problems": {}}
    with cli.alone_in(folder):
        store = Store(Path(config.ipopt)) if config.ipopt else Store(folder / "ipopt.json", own=True)
        for name in names:
            out["problems"][name] = entry = solve(config, name, store)
            print(summary(name, entry), flush=True)
            cli.write_json(folder / "summary.json", out)
        print("\n".join(table(HEADER, [row(name, entry) for name, entry in out["problems"].items()])))
        out["totals"] = totals(list(out["problems"].values()))
        print(", ".join(f"{label}: {value}" for label, value in out["totals"].items()))
        cli.write_json(folder / "summary.json", out)
    print(f"wrote {folder / 'summary.json'}")
    return out


class Store:
    """IPOPT's results in a file, by problem, iteration limit and guess. A digest of its numbers follows the problem's
    name, so that results of another version of the problem are not used."""

    def __init__(self, path: Path, own: bool = False):
        """Read the file if it is there. Where it is damaged, an `own` one is set aside, and another one refused, by
        `DataError`."""
        self.path, self.content = path, {}
        if path.exists():
            try:
                self.content = cli.read_json(path, _results, "give another file as ipopt")
            except DataError as error:
                if not own:
                    raise
                cli.set_aside(path, str(error).removeprefix(f"{path}: "))

    def runs(self, config: Config, name: str, problem: Problem, guesses: list) -> list[dict[str, Any]] | None:
        """Return a result for each guess, or None where there are none: without guesses, or where CasADi is not
        installed and results are missing."""
        if not guesses:
            return None
        known = self.content.setdefault(f"{name} {digest(problem)} {config.ipopt_iterations}", {})
        keys = [digest(guess) for guess in guesses]
        missing = [i for i, key in enumerate(keys) if key not in known]
        if missing:
            if importlib.util.find_spec("casadi") is None:
                return None
            from experiments._optimal_control._ipopt import Ipopt

            solver = Ipopt(problem, max_iter=config.ipopt_iterations)
            for i in cli.ProgressBar(missing, desc=f"{name}: IPOPT"):
                found = solver(*guesses[i])
                known[keys[i]] = {
                    **outcome(problem, found, found.success),
                    "status": found.status,
                    "iterations": found.iterations,
                    "seconds": found.seconds,
                }
                cli.write_json(self.path, self.content)
        return [known[key] for key in keys]


def _results(content: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Return IPOPT's results. **Raises** `DataError` for what is not like them."""
    known = content.values() if isinstance(content, dict) else [None]
    if not all(isinstance(x, dict) and all(isinstance(y, dict) for y in x.values()) for x in known):
        raise DataError("not results by problem and guess")
    return content


def digest(tree: Any) -> str:
    """Return a short digest of the arrays of a pytree."""
    return _job_files.digest_of_arrays(arrays_by_path(tree))[:16]


def outcome(problem: Problem, found, converged: bool) -> dict[str, Any]:
    """Return what is judged alike for all solvers: cost, violation and gap of the trajectory, and for those that are
    said to be solutions the residual of the first-order conditions."""
    xs, us = jnp.asarray(found.xs), jnp.asarray(found.us)
    finite = bool(jnp.isfinite(xs).all() & jnp.isfinite(us).all())
    judged = stationarity(problem, found) if converged and finite else None
    cost, violation, gap = (float(x) for x in _measured(problem, xs, us))
    return {
        "converged": bool(converged),
        "cost": cost,
        "violation": violation,
        "gap": gap,
        "residual": None if judged is None else judged.residual,
    }


@eqx.filter_jit
def _measured(problem: Problem, xs, us):
    violations = [
        jnp.abs(bound_excess(value, low, high)) / (1 + jnp.minimum(jnp.abs(low), jnp.abs(high)))
        for value, low, high in (problem.constraints(xs, us), (us, *problem.control_box))
    ]
    violation = jnp.maximum(*(v.max(initial=0.0) for v in violations))
    return problem.total_cost(xs, us), violation, jnp.abs(problem.gaps(xs, us)).max()


def all_guesses(benchmark: Benchmark, problem: Problem, config: Config) -> list[tuple[Any, Any]]:
    """Return controls and states of the published guess and of the random ones, all in full, with the states from which
    `ddp` starts by default; they are the same for both solvers."""
    completed = jax.jit(lambda us: problem.guess(us)[::-1])
    us, xs = benchmark.guess(problem)
    controls = problem.guess(us, rolled_out=False)[1]
    published = completed(controls) if xs is None else (controls, jnp.asarray(xs))
    random = benchmark.random_guesses(problem, config.guesses, config.seed)
    return [published, *(completed(us) for us in jnp.asarray(random))]


def solve(config: Config, name: str, store: Store) -> dict[str, Any]:
    """Solve a problem from all guesses with both solvers."""
    benchmark = PROBLEMS[name]
    problem = benchmark.make()
    guesses = all_guesses(benchmark, problem, config)
    compiled = time_compilation(lambda p, us, xs: ddp(p, us, xs), (problem, *guesses[0]), time.process_time)
    runs = []
    for guess in cli.ProgressBar(guesses, desc=f"{name}: ddp"):
        began = time.process_time()
        found = jax.block_until_ready(compiled.call(problem, *guess))
        seconds = time.process_time() - began
        status = Status(int(found.status))
        judged = outcome(problem, found, status == Status.CONVERGED)
        runs.append({**judged, "status": status.name, "iterations": int(found.iterations), "seconds": seconds})
    ipopt = store.runs(config, name, problem, guesses[: config.ipopt_guesses + 1])
    known = (lowest_cost([*runs, *(ipopt or [])]), benchmark.best)
    best = min((cost for cost in known if cost is not None), default=None)
    return {
        "source": benchmark.source,
        "best": best,
        "compile_s": compiled.trace_s + compiled.compile_s,
        "ddp": runs,
        "ipopt": ipopt,
    }


def is_feasible(entry: dict[str, Any]) -> bool:
    """Tell whether violation and gap of a solution are small."""
    return entry["violation"] <= FEASIBLE and entry["gap"] <= FEASIBLE


def lowest_cost(runs: list[dict[str, Any]]) -> float | None:
    """Return the lowest cost of the runs that converged to a feasible solution, or None if there are none."""
    return min((r["cost"] for r in runs if r["converged"] and is_feasible(r)), default=None)


def counts(runs: list[dict[str, Any]] | None, best: float | None) -> dict[str, Any]:
    """Return the numbers of the table for one solver's runs: how many converged and are feasible, how many of those are
    near the best cost, and medians over those that converged."""
    if runs is None:
        return {}
    good = [r for r in runs if r["converged"] and is_feasible(r)]
    near = [r for r in good if best is not None and r["cost"] <= best + NEAR * abs(best)]
    return {
        "runs": len(runs),
        "claimed": sum(r["converged"] for r in runs),
        "converged": len(good),
        "near": len(near),
        "iterations": statistics.median(r["iterations"] for r in good) if good else None,
        "seconds": statistics.median(r["seconds"] for r in good) if good else None,
        "residual": max(r["residual"] for r in good) if good else None,
    }


HEADER = (
    *("problem", "converged", "within 1 %", "iterations", "CPU s", "worst residual", "compilation, CPU s"),
    *("IPOPT: converged", "within 1 %", "iterations", "CPU s", "best cost"),
)
"""Columns of the table; iterations and CPU times are medians over the runs that converged."""


def row(name: str, entry: dict[str, Any]) -> list[str]:
    """Return a line of the table."""
    ours, theirs = counts(entry["ddp"], entry["best"]), counts(entry["ipopt"], entry["best"])

    def cells(c: dict[str, Any]) -> list[str]:
        if not c:
            return [""] * 4
        medians = [number(c["iterations"]), number(c["seconds"])]
        return [f"{c['converged']} of {c['runs']}", str(c["near"]), *medians]

    best = "" if entry["best"] is None else f"{entry['best']:.6g}"
    judged = [number(ours["residual"]), number(entry["compile_s"])]
    return [name, *cells(ours), *judged, *cells(theirs), best]


def totals(entries: list[dict[str, Any]]) -> dict[str, int]:
    """Return the numbers of runs of `ddp` over all problems that converged, that found the lowest cost, and that found
    one as low as the best that IPOPT's own runs found; where none of those converged, the lowest cost."""
    found = [counts(entry["ddp"], entry["best"]) for entry in entries]
    peers = [lowest_cost(entry["ipopt"] or []) for entry in entries]
    as_peer = [
        counts(entry["ddp"], entry["best"] if peer is None else peer)
        for entry, peer in zip(entries, peers, strict=True)
    ]
    return {
        "runs": sum(c["runs"] for c in found),
        "converged": sum(c["converged"] for c in found),
        "within 1 %": sum(c["near"] for c in found),
        "within 1 % of IPOPT's lowest cost": sum(c["near"] for c in as_peer),
    }


def summary(name: str, entry: dict[str, Any]) -> str:
    """Return a problem's results in a line, with what the solver said where it did not converge."""
    ours, theirs = counts(entry["ddp"], entry["best"]), counts(entry["ipopt"], entry["best"])
    said: dict[str, int] = {}
    for r in entry["ddp"]:
        said[r["status"]] = said.get(r["status"], 0) + 1
    parts = [f"ddp: {ours['converged']} of {ours['runs']} converged, {ours['near']} within 1 %"]
    parts.append(", ".join(f"{n} {status}" for status, n in sorted(said.items())))
    if ours["claimed"] > ours["converged"]:
        parts.append(f"{ours['claimed'] - ours['converged']} say so, but are not feasible")
    if theirs:
        parts.append(f"IPOPT: {theirs['converged']} of {theirs['runs']} converged, {theirs['near']} within 1 %")
    return f"{name}: " + "; ".join(parts)


main = experiment("benchmark_convergence", Config, run, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
