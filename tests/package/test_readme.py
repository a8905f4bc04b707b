"""The README is short: one piece of code, two commands, and claims with their figures."""

import re
from pathlib import Path

from experiments import evidence

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_page_is_short():
    assert len(README.read_text().splitlines()) <= 94
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line]) <= 12


def test_each_command_is_one_line_that_installs():
    run, test = blocks("sh")
    for command in (run, test):
        assert len(command.splitlines()) == 1
        assert "pip install" in command
    assert "experiments.identify" in run
    assert "pytest" in test


def rows(text: str, title: str) -> list[list[str]]:
    """The cells of the table below a title, without the header and the first column."""
    return [row[1:] for row in rows_of(text.split(f"## {title}")[1].split("\n## ")[0])]


def rows_of(text: str) -> list[list[str]]:
    """The cells of a text's table, without its header."""
    return [[x.strip() for x in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")][2:]


def test_figures_beside_peers_are_those_of_the_measurements():
    """Every number of the table of other libraries stands on a page of measurements."""
    pages = [page.read_text() for page in sorted((ROOT / "docs" / "benchmarks").glob("*.md"))]
    measured = "\n".join(pages)
    numbers = set(re.findall(r"(?<= )\d+(?:\.\d+)?|(?<=\*\*)\d+(?:\.\d+)?(?=\*\*)", measured))
    table = rows((ROOT / "docs" / "benchmarks.md").read_text(), "Beside its peers")
    cells = [figure for row in table for cell in row for figure in re.findall(r"\d+(?:\.\d+)?", cell)]
    assert len(cells) > 40
    rounded = {f"{float(x):.1f}" for x in numbers} | {f"{float(x):.2f}" for x in numbers}
    unknown = [x for x in cells if x not in numbers | rounded | {"0"}]
    assert not unknown, unknown


def test_each_claim_has_a_figure_and_a_command():
    """The figures of the README stand on the page of benchmarks, and its commands can be run."""
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    claims = rows(README.read_text(), "Instead of")
    assert len(claims) >= 5
    for _gain, _loss, figure, command in claims:
        numbers = re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", figure)
        assert numbers
        for number in numbers:
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d])", measured), (number, command)
        (target,) = re.findall(r"tests/[\w/]+\.py|experiments\.\w+", command)
        file = ROOT / target if target.endswith(".py") else ROOT / f"{target.replace('.', '/')}.py"
        assert file.is_file(), command


def test_evidence_says_how_the_commands_of_claims_ended(tmp_path, monkeypatch, capsys):
    table = """
| claim | command | figure |
|---|---|---|
| one test passes | `pytest tests/test_it.py -k one` | 1 |
| all tests pass | `pytest tests/test_it.py`, `-k two` | 2 |
| it prints | `python -m platform` | 3 |
"""
    (tmp_path / "page.md").write_text(table)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_one():\n    pass\n\ndef test_two():\n    assert False\n")
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    arguments = ["--page", "page.md", "--results", str(tmp_path)]
    assert evidence.main([*arguments, "--kind", "all"]) == 1
    page = (tmp_path / "evidence" / "evidence.md").read_text()
    ends = [(row[2], row[3].split(" in ")[0]) for row in rows_of(page)]
    assert ends[:3] == [
        ("`pytest tests/test_it.py -k one`", "1 passed, 1 deselected"),
        ("`pytest tests/test_it.py`", "**failed** (exit code 1): 1 failed, 1 passed"),
        ("`pytest tests/test_it.py -k two`", "**failed** (exit code 1): 1 failed, 1 deselected"),
    ]
    assert ends[3][0] == "`python -m platform`"
    assert "jax " in page
    assert evidence.main([*arguments, "--only", "one test"]) == 0
    assert evidence.main([*arguments, "--only", "nothing"]) == 2
    assert "no claim is left of 3" in capsys.readouterr().err
    assert len(evidence.claims((ROOT / "docs" / "benchmarks.md").read_text())) > 15
