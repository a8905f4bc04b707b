"""The code of the README runs, and its commands are what they are said to be."""

import pathlib
import re

README = pathlib.Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_python_runs(capsys):
    (code,) = blocks("python")
    assert len(code.splitlines()) <= 14
    exec(compile(code, str(README), "exec"), {})
    assert "[" in capsys.readouterr().out


def test_each_command_is_one_line_that_installs():
    run, test = blocks("sh")
    for command in (run, test):
        assert len(command.splitlines()) == 1
        assert "pip install" in command
    assert "experiments.identify" in run
    assert "pytest" in test
