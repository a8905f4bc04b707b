"""The documentation is built as a site, with warnings as errors, and has a place for every public name."""

import importlib
import inspect
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("", ".samples", ".io", ".simulate", ".spatial", ".sysid", ".trajopt", ".viz")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
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
            assert any(f"{p}.{name}" in known for p in places) or inspect.ismodule(value), f"{package}.{name}"


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
