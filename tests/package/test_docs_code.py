"""Every piece of Python in README and docs runs: a page's blocks in order, in one namespace and an empty folder."""

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

ROOT = Path(__file__).parents[2]
QUICK = {"README.md", "docs/how-to/load-your-robot.md"}
"""Pages whose code runs by default; `pytest -m docs` runs the code of the others."""
NEEDS = {"docs/how-to/data-sets.md": ("submitit", "pyarrow")}
"""Packages of extras that the tests do not install, by page."""
SETTINGS = ("jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
"""Settings that a page may change; they are reset before the next page."""


class Block(NamedTuple):
    line: int
    title: str
    """Title of a block that is a separate program; empty for other blocks."""
    code: str


def blocks(page: Path) -> list[Block]:
    out = []
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r'^```python(?: title="([^"]*)")?\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL):
        out.append(Block(text[: match.start(2)].count("\n"), match[1] or "", match[2]))
    # A fence with another spelling or an indentation would escape the pattern above.
    fences = re.findall(r"^[ \t]*```+[ \t]*py", text, flags=re.MULTILINE | re.IGNORECASE)
    assert len(fences) == len(out), f"{page}: {len(fences)} fences of Python, of which {len(out)} match the pattern"
    return out


PAGES = {str(path.relative_to(ROOT)): path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]}
WITH_CODE = [name for name, path in PAGES.items() if blocks(path)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.docs]) for name in WITH_CODE]
)
def test_code_runs(name, tmp_path, monkeypatch):
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace = {"__name__": "__main__"}
    kept = {name: getattr(jax.config, name) for name in SETTINGS}
    try:
        for block in blocks(PAGES[name]):
            if block.title:
                (tmp_path / block.title).write_text(block.code)
            else:
                # Empty lines in front make an error name the line of the page.
                exec(compile("\n" * block.line + block.code, str(PAGES[name]), "exec"), namespace)
    finally:
        for setting, value in kept.items():
            jax.config.update(setting, value)


def test_there_is_code_on_the_pages():
    assert len(WITH_CODE) > 15
    assert set(WITH_CODE) >= QUICK


def test_tasks_are_short_and_checked():
    pages = {name: blocks(path) for name, path in PAGES.items() if name.startswith("docs/tasks/")}
    assert pages.pop("docs/tasks/index.md") == []
    index = PAGES["docs/tasks/index.md"].read_text(encoding="utf-8")
    assert len(pages) == 10
    for name, parts in pages.items():
        lines = [line for block in parts for line in block.code.splitlines()]
        assert 0 < len(lines) <= 25, f"{name} has {len(lines)} lines of code, but 25 is the most"
        assert any("assert" in line for line in lines[-3:]), f"{name} does not end with a check"
        assert any("print(" in line for line in lines), f"{name} prints nothing"
        assert f"]({Path(name).name})" in index, f"{name} is not in the index"


@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "program", "package"),
    [
        ("coming-from/drake.md", "with_drake.py", "pydrake"),
        ("coming-from/crocoddyl.md", "with_crocoddyl.py", "crocoddyl"),
        ("how-to/use-pytorch.md", "by_torch.py", "torch"),
    ],
)
def test_programs_with_another_library(page, program, package, tmp_path):
    """These packages are not among those of the extra `test`, so the programs run where one is installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    (block,) = (block for block in blocks(ROOT / "docs" / page) if block.title == program)
    (tmp_path / program).write_text(block.code)
    command = [sys.executable, program]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert out.returncode == 0, out.stderr


@pytest.mark.docs
def test_the_program_for_several_hosts(tmp_path):
    """The program runs with a single host; `tests/simulate/test_rollout_devices.py` tests two hosts."""
    (block,) = (block for block in blocks(ROOT / "docs" / "simulation.md") if block.title)
    (tmp_path / block.title).write_text(block.code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, block.title, f"127.0.0.1:{port}", "1", "0"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == ["0", "(256,", "11,", "2)"]
