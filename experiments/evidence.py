"""A page of evidence: the claims of the documentation, the commands that check them, and how these ended, with date and
versions.

    python -m experiments.evidence [CONFIG] [--key value ...]

Runs the commands of the table of claims in `docs/benchmarks.md` one after the other: tests, and with `--kind all`
experiments and trainings, too, which take hours. Writes `evidence.md`, again after each command, so nothing is lost
where the run is stopped. The exit code is 1 if a command failed or did not end in its time.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, NamedTuple

from experiments._main import CONFIGS, experiment, version_of
from jaxdyn import DataError, cli

DEFAULT_CONFIG = CONFIGS / "evidence.toml"
ROOT = Path(__file__).parents[1]
RUNNERS = {"pytest": ("-m", "pytest"), "python": (), "jaxdyn": ("-m", "jaxdyn")}
"""The programs with which commands begin, as arguments of this Python."""
HEAD = """# Evidence

The claims of the [benchmarks](benchmarks.md), and how the commands that check them ended on {date}, on {processor}
with {cores} cores, Python {python}, {versions}. `python -m experiments.evidence` wrote this page.

| claim | figure | command | how it ended | wall time, s |
|---|---|---|---|---|
"""


@dataclasses.dataclass(frozen=True)
class Config(cli.ProgramConfig):
    """Keys of the configuration file."""

    page: str = "docs/benchmarks.md"
    """The page with the table of claims, a path below the repository."""
    kind: Literal["tests", "all"] = "tests"
    """Whether tests alone are run, or experiments and trainings, too."""
    only: str = ""
    """Claims that contain this; empty for all."""
    seconds: float = 3600.0
    """The longest time of a command, s."""


class Claim(NamedTuple):
    text: str
    command: str
    """As the page has it."""
    figure: str

    @property
    def commands(self) -> list[list[str]]:
        """Its commands as words. What begins with an option is the first command with these options."""
        words = [shlex.split(part) for part in re.findall(r"`([^`]+)`", self.command)]
        whole = [x for x in words if x[0] in RUNNERS]
        return whole + [whole[0] + x for x in words if x[0].startswith("-")]

    @property
    def is_test(self) -> bool:
        """Whether its commands are tests."""
        return all(x[0] == "pytest" for x in self.commands)


def claims(text: str) -> list[Claim]:
    """The rows of the table of claims of a page. **Raises** `DataError` if there is none, or a row has no command."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    start = next((i for i, row in enumerate(rows) if row == ["claim", "command", "figure"]), None)
    if start is None:
        raise DataError("the page has no table whose columns are claim, command, figure")
    found = [Claim(*row) for row in rows[start + 2 :] if len(row) == 3]
    for claim in found:
        if not re.search(rf"`({'|'.join(RUNNERS)}) ", claim.command):
            raise DataError(f"the claim '{claim.text}' has no command of {', '.join(RUNNERS)}")
    return found


def run(config: Config) -> int:
    """Run the commands and write the page; returns the number of commands that failed."""
    cli.require_positive_keys(config, "seconds")
    path = ROOT / config.page
    found = claims(cli.read_file(path, lambda: path.read_text(encoding="utf-8")))
    chosen = [x for x in found if config.only in x.text and (config.kind == "all" or x.is_test)]
    if not chosen:
        raise DataError(f"no claim is left of {len(found)}: only is {config.only!r}, kind is {config.kind!r}")
    folder, lines, failed = config.make_folder(), [], 0
    for claim in chosen:
        for command in claim.commands:
            cli.announce(shlex.join(command))
            start = time.perf_counter()
            passed, end = ended(command, config.seconds)
            failed += not passed
            cells = claim.text, claim.figure, f"`{shlex.join(command)}`", end, f"{time.perf_counter() - start:.0f}"
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
            write(folder / "evidence.md", lines)
    print(f"{folder / 'evidence.md'}: {len(lines)} commands, {failed} failed")
    return failed


def ended(command: list[str], seconds: float) -> tuple[bool, str]:
    """Whether a command succeeded, and its last line."""
    words = [sys.executable, *RUNNERS[command[0]], *command[1:]]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return False, f"**not ended** after {seconds:g} s"
    lines = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()
    # A run of pytest without a single test that passed shows nothing, such as where all are skipped.
    passed = done.returncode == 0 and (command[0] != "pytest" or " passed" in lines[-1])
    last = lines[-1].strip("= ")
    return passed, last if passed else f"**failed** (exit code {done.returncode}): {last}"


def write(path: Path, lines: list[str]) -> None:
    """Write the page with these rows."""
    names = ("jaxdyn", "jax", "jaxlib", "numpy", "equinox", "llvmlite", "pin", "mujoco")
    versions = ", ".join(f"{name} {version}" for name in names if (version := version_of(name)))
    head = HEAD.format(
        date=datetime.datetime.now(datetime.UTC).date(),
        processor=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count(),
        python=platform.python_version(),
        versions=versions,
    )
    cli.write_durably(path, lambda temporary: temporary.write_text(head + "".join(lines), encoding="utf-8"))


main = experiment("evidence", Config, run, DEFAULT_CONFIG, __doc__, x64=False, status=lambda failed: int(failed > 0))

if __name__ == "__main__":
    sys.exit(main())
