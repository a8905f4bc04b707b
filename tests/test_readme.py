"""The README's commands are single lines that install, and its tour is short. `test_docs_code.py` runs its code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_tour_is_five_short_pieces():
    pieces = blocks("python")
    assert len(pieces) == 5
    assert max(len(code.splitlines()) for code in pieces) <= 14


def test_each_command_is_one_line_that_installs():
    run, test = blocks("sh")
    for command in (run, test):
        assert len(command.splitlines()) == 1
        assert "pip install" in command
    assert "experiments.identify" in run
    assert "pytest" in test


def test_figures_are_those_of_the_benchmarks():
    """Every number of the table of other libraries stands in the benchmarks."""
    table = README.read_text().split("## Beside its peers")[1].split("## ")[0]
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    numbers = set(re.findall(r"(?<= )\d+(?:\.\d+)?|(?<=\*\*)\d+(?:\.\d+)?(?=\*\*)", measured))
    pairs = re.findall(r"(\d+\.\d+) \+ (\d+\.\d+)", measured)
    allowed = numbers | {f"{float(a) + float(b):.1f}" for a, b in pairs}
    rows = [line.split("|")[2:-1] for line in table.splitlines() if line.startswith("|")][2:]
    cells = [figure for row in rows for cell in row for figure in re.findall(r"\d+(?:\.\d+)?", cell)]
    assert len(cells) > 40
    rounded = {f"{float(x):.1f}" for x in numbers} | {f"{float(x):.2f}" for x in numbers}
    unknown = [x for x in cells if x not in allowed | rounded | {"0"}]
    assert not unknown, unknown
