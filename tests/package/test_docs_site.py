"""The documentation is built as a site, with warnings as errors, and has a place for every public name."""

import importlib
import inspect
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("", ".contact", ".geometry", ".io", ".samples", ".worlds", ".simulate", ".spatial", ".sysid", ".trajopt")
PACKAGES += (".viz",)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "docs/_site.py", str(folder)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return folder


@pytest.mark.docs
def test_every_page_is_there(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / name.parent / "index.html" if name.name == "index" else site / name / "index.html").is_file()
    first = (site / "index.html").read_text()
    assert "Differentiable rigid-body dynamics" in first
    assert 'href="how-to/load-your-robot/"' in first  # the README's links lead to pages of the site
    assert (site / "changelog" / "index.html").is_file()


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages | {"index.md", "changelog.md"} == listed


@pytest.mark.docs
def test_every_public_name_can_be_linked_to(site):
    """The inventory, which other sites use for links, lists each name as it is imported."""
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    known = {line.split(" ")[0] for line in inventory.splitlines()}
    modules = {f"jaxdyn{package}": importlib.import_module(f"jaxdyn{package}") for package in PACKAGES}
    for package, module in modules.items():
        for name in module.__all__:
            value = getattr(module, name)
            # An object that several packages offer is documented with one of them.
            places = [place for place, other in modules.items() if getattr(other, name, None) is value]
            # A function with the name of its package, such as `trajopt.ddp`, is documented in the package.
            names = {f"{place}.{name}" for place in places} | {f"{place}.{name}.{name}" for place in places}
            assert names & known or inspect.ismodule(value), f"{package}.{name}"


@pytest.mark.docs
def test_nothing_is_fetched_from_elsewhere(site):
    """The site has no script, style, font or picture from another host, so that it works without a network."""
    pattern = r'<(?:script|img)[^>]+src="(https?:[^"]+)"|<link[^>]+rel="stylesheet"[^>]+href="(https?:[^"]+)"'
    for page in site.rglob("*.html"):
        assert not re.findall(pattern, page.read_text()), page


def test_links_of_the_readme_are_files():
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / link).is_file(), link


@pytest.mark.docs
def test_every_example_is_a_notebook(site):
    """The notebooks have the code of the scripts, in several cells below a text, and what it prints."""
    scripts = sorted((ROOT / "docs" / "examples").glob("*.py"))
    assert len(scripts) == 5
    listed = (site / "examples" / "index.html").read_text()
    for script in scripts:
        notebook = json.loads((site / "examples" / f"{script.stem}.ipynb").read_text())
        cells = notebook["cells"]
        assert notebook["metadata"]["kernelspec"]["name"] == "python3"
        assert any(output["text"] for cell in cells[1:] for output in cell["outputs"])
        assert f'href="{script.stem}.ipynb"' in listed
        assert [cell["cell_type"] for cell in cells] == ["markdown"] + ["code"] * (len(cells) - 1)
        assert len(cells) >= 4
        code = [line for cell in cells[1:] for line in "".join(cell["source"]).splitlines() if line]
        source = script.read_text().split('"""\n', 1)[1]
        assert code == [line for line in source.splitlines() if line and not line.startswith("# %%")]


@pytest.mark.docs
def test_equations_are_rendered_without_scripts(site):
    page = (site / "formulations" / "index.html").read_text()
    assert page.count("<math") > 30
    assert not re.search(r"\\(dot|begin|frac|qquad)|arithmatex", page)


@pytest.mark.docs
def test_names_of_other_libraries_are_found_by_search(site):
    """The index has the names, and its separator splits them into words."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    texts = " ".join(entry["text"] for entry in index["docs"])
    for name in ("getFrameJacobian", "computeJointJacobians", "mj_jacBody", "computeMinverse", "mjx.step"):
        assert name in texts, name
    # JavaScript and Python agree on this expression.
    words = re.sub(index["config"]["separator"], " ", "getFrameJacobian mj_jacBody").lower().split()
    assert {"frame", "jacobian", "jac", "body"} <= set(words)


@pytest.mark.docs
def test_words_of_tasks_lead_to_pages_that_show_how(site):
    """Words that users type are in the index of the search, on pages other than the reference and measurements."""
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    aside = ("reference/", "benchmarks", "design-notes", "changelog", "model-zoo", "contributing")
    texts = " ".join(e["title"] + " " + e["text"] for e in entries if not e["location"].startswith(aside)).lower()
    words = "acrobot", "four-bar", "ppo", "torch", "animate", "friction", "quadruped", "payload", "swing up", "gif"
    assert [word for word in words if word not in texts] == []


@pytest.mark.docs
def test_signatures_link_their_types_and_show_their_source(site):
    page = (site / "reference" / "dynamics" / "index.html").read_text()
    assert re.search(r'href="\.\./Model/#jaxdyn\.Model"[^>]*>Model', page)
    assert re.search(r'href="\.\./#jaxdyn\._types\.Velocity"[^>]*>Velocity', page)
    assert "jaxdyn/algorithms/_aba.py" in page


@pytest.mark.docs
def test_every_class_has_a_page(site):
    """Tables of the reference lead to pages of single classes."""
    listed = (site / "reference" / "models" / "index.html").read_text()
    assert re.search(r'href="\.\./Model/"[^>]*><code>jaxdyn\.Model</code>', listed)
    page = (site / "reference" / "Model" / "index.html").read_text()
    assert 'id="jaxdyn.Model"' in page
    assert 'id="jaxdyn.Frame"' not in page
