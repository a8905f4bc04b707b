"""The site's first page and its changelog are the README and CHANGELOG of the repository, with their links to `docs/`
made relative to it. Equations become MathML, which browsers show without a script. The example scripts are also there
as notebooks, which show what their cells print."""

import contextlib
import functools
import html
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

SEARCH_BOOSTS = {
    **dict.fromkeys(("how-to/", "tour", "examples"), 6.0),
    **dict.fromkeys(("tasks/", "coming-from/", "concepts/"), 3.0),
    **dict.fromkeys(("benchmarks", "design-notes", "changelog", "model-zoo", "contributing"), 0.1),
    "reference/": 1.0,
}
"""How much pages count in the search, by the beginnings of their addresses, so that a word leads first to a page that
shows how. Guides, which are not listed, count three times as much as the reference."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    for source, page in (("README.md", "index.md"), ("CHANGELOG.md", "changelog.md")):
        text = (root / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    scripts = sorted((root / "docs" / "examples").glob("*.py"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        notebooks = pool.map(lambda script: _notebook(script.read_text(encoding="utf-8")), scripts)
        for script, content in zip(scripts, notebooks, strict=True):
            files.append(File.generated(config, f"examples/{script.stem}.ipynb", content=content))
    return files


@functools.cache
def _notebook(script: str) -> str:
    """The notebook of a script, with what its cells print when a process of its own runs them. `mkdocs serve` runs a
    script again only when it has changed."""
    notebook = jupytext.reads(script, fmt="py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(
            [sys.executable, __file__],
            input=json.dumps([cell.source for cell in cells]),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if out.returncode:
        raise PluginError(f"an example fails:\n{out.stderr}")
    for count, (cell, text) in enumerate(zip(cells, json.loads(out.stdout), strict=True), start=1):
        cell.execution_count = count
        cell.outputs = [nbformat.v4.new_output("stream", text=text)] if text else []
    return jupytext.writes(notebook, fmt="ipynb")


def _run_cells() -> None:
    """Run the cells on the standard input one after the other, and print a list of what each has printed."""
    texts, namespace, ended = [], {"__name__": "__main__"}, False
    for source in json.load(sys.stdin):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                if not ended:
                    exec(compile(source, "cell", "exec"), namespace)
            except SystemExit as end:  # an example ends early where its data are missing
                if end.code:
                    raise
                ended = True
        texts.append(printed.getvalue())
    json.dump(texts, sys.stdout)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Adds the link to the notebook of an example, which only the site has, behind that to its script."""
    boost = next((x for start, x in SEARCH_BOOSTS.items() if page.url.startswith(start)), 3.0)
    page.meta["search"] = {"boost": boost}
    return re.sub(r"(\[\w+\.py\]\((examples/\w+)\.py\))", r"\1, [notebook](\2.ipynb)", markdown)


def on_page_content(content: str, **_: Any) -> str:
    def mathml(match: re.Match) -> str:
        equation = html.unescape(match["equation"])
        return convert(equation, display="block" if match["tag"] == "div" else "inline")

    # The extension `arithmatex` marks equations, with LaTeX's own brackets around them.
    marked = r'<(?P<tag>div|span) class="arithmatex">\\[\[(](?P<equation>.*?)\\[\])]</(?P=tag)>'
    return re.sub(marked, mathml, content, flags=re.DOTALL)


if __name__ == "__main__":
    _run_cells()
