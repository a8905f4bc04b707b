"""What an installed package says of itself: version, types, links, and the command line as a module."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml  # pyright: ignore[reportMissingModuleSource]

import jaxdyn

ROOT = Path(__file__).parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


def test_the_version_stands_in_one_place():
    assert importlib.metadata.version("jaxdyn") == jaxdyn.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == jaxdyn.__version__
    assert (ROOT / "CHANGELOG.md").read_text().split("## ")[1].startswith(jaxdyn.__version__)


def test_the_module_is_the_command_line():
    out = subprocess.run([sys.executable, "-m", "jaxdyn", "--version"], capture_output=True, text=True, check=True)
    assert out.stdout == f"jaxdyn {jaxdyn.__version__}\n"
    wrong = subprocess.run([sys.executable, "-m", "jaxdyn", "inof"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "info" in wrong.stderr


def test_type_checkers_take_the_annotations():
    assert Path(jaxdyn.__file__).with_name("py.typed").is_file()


def test_links_of_the_package_page_are_absolute():
    metadata = importlib.metadata.metadata("jaxdyn")
    page = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    # What they lead to is in the repository.
    for link in links:
        if link.startswith((REPOSITORY, "https://raw.githubusercontent.com")):
            path = re.split(r"/main/", link)[1].split("#")[0]
            assert (ROOT / path).exists(), link
    assert metadata["Author"] == "The jaxdyn developers"
    assert {url.split(", ")[1] for url in metadata.get_all("Project-URL") or ()} >= {REPOSITORY}


@pytest.mark.parametrize(
    "file", ["CITATION.cff", "mkdocs.yml", *(f".github/ISSUE_TEMPLATE/{n}.yml" for n in ("config",))]
)
def test_files_name_the_repository_of_the_package(file):
    named = re.findall(r"https://github\.com/jaxdyn/\w+", (ROOT / file).read_text())
    assert set(named) == {REPOSITORY}


def test_forms_for_reports_are_whole():
    """GitHub shows a form only if its name, description and fields are there."""
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert len(forms) == 3
    for form in map(yaml.safe_load, (path.read_text() for path in forms)):
        assert form["name"]
        assert form["description"]
        assert all({"type", "id", "attributes"} <= set(field) for field in form["body"])


def test_contributors_are_led_to_the_page():
    (link,) = re.findall(r"\]\(([^)]+)\)", (ROOT / ".github" / "CONTRIBUTING.md").read_text())
    assert (ROOT / ".github" / link).resolve() == ROOT / "docs" / "contributing.md"
