"""Build the documentation as a site: `python docs/_site.py [FOLDER] [--serve]`.

The pages are prepared in `build/pages`, where MkDocs, or another generator of pages from Markdown, reads them:
- the first page and the changelog are the README and CHANGELOG of the repository;
- a class of the reference has a page of its own, to which a table of its module's page leads;
- the example scripts are also there as notebooks, which show what their cells print.

Afterwards, equations in the pages of the site become MathML, which browsers show without a script."""

import argparse
import contextlib
import functools
import html
import http.server
import inspect
import io
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupytext
import nbformat
from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
SEARCH_BOOSTS = {
    **dict.fromkeys(("how-to/", "tour", "examples"), 6.0),
    **dict.fromkeys(("tasks/", "coming-from/", "concepts/"), 3.0),
    **dict.fromkeys(("benchmarks", "design-notes", "changelog", "model-zoo", "contributing"), 0.1),
    "reference/": 1.0,
}
"""How much pages count in the search, by the beginnings of their addresses, so that a word leads first to a page that
shows how. Guides, which are not listed, count three times as much as the reference."""


def prepare() -> None:
    """Write all pages, pictures and notebooks into `PAGES`."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("_*"))
    for source, page in (("README.md", "index.md"), ("CHANGELOG.md", "changelog.md")):
        text = (ROOT / source).read_text(encoding="utf-8")
        (PAGES / page).write_text(re.sub(r'(\]\(|src(?:set)?=")docs/', r"\1", text), encoding="utf-8")
    for page in (PAGES / "reference").glob("*.md"):
        give_classes_pages(page)
    for page in PAGES.rglob("*.md"):
        address = page.relative_to(PAGES).as_posix()
        boost = next((x for start, x in SEARCH_BOOSTS.items() if address.startswith(start)), 3.0)
        text = page.read_text(encoding="utf-8")
        # Only the site has notebooks; their links stand behind those to the scripts.
        text = re.sub(r"(\[\w+\.py\]\((examples/\w+)\.py\))", r"\1, [notebook](\2.ipynb)", text)
        page.write_text(f"---\nsearch:\n  boost: {boost}\n---\n{text}", encoding="utf-8")
    scripts = sorted((PAGES / "examples").glob("*.py"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        notebooks = pool.map(lambda script: notebook_of(script.read_text(encoding="utf-8")), scripts)
        for script, content in zip(scripts, notebooks, strict=True):
            script.with_suffix(".ipynb").write_text(content, encoding="utf-8")


def give_classes_pages(page: Path) -> None:
    """Move each class of a page of the reference to a page of its own. Tables of the classes that stood one after the
    other take their places."""
    parts = re.split(r"^::: (\S+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    title = re.search(r"^# (.*)$", parts[0], flags=re.MULTILINE)
    assert title is not None, page
    out, in_table = [parts[0]], False
    for name, behind in zip(parts[1::2], parts[2::2], strict=True):
        value = pkgutil.resolve_name(name)
        # Options of a directive, which are indented below it, keep an entry where it is.
        if not inspect.isclass(value) or behind.startswith("\n    "):
            out += ["\n" * in_table + f"::: {name}", behind]
            in_table = False
            continue
        own = f"{name.removeprefix('jaxdyn.')}.md"
        above = f"[{title[1]}]({page.name}) has what belongs to it.\n\n"
        text = f"# {name.rsplit('.', 1)[1]}\n\n{above}::: {name}\n    options:\n      heading_level: 2\n"
        (page.parent / own).write_text(text, encoding="utf-8")
        if not in_table:
            out.append("| class | |\n|---|---|\n")
        first = re.split(r"(?<=[.:;]) |\n\n", (inspect.getdoc(value) or "").replace("|", "\\|"), maxsplit=1)[0]
        out.append(f"| [`{name}`]({own}) | {' '.join(first.split())} |\n")
        in_table = not behind.strip()
        if not in_table:
            out.append(behind)
    page.write_text("".join(out), encoding="utf-8")


@functools.cache
def notebook_of(script: str) -> str:
    """Return the notebook of a script, with what its cells print when a process of its own runs them."""
    notebook = jupytext.reads(script, fmt="py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run(
            [sys.executable, __file__, "--run-cells"],
            input=json.dumps([cell.source for cell in cells]),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if out.returncode:
        raise SystemExit(f"an example fails:\n{out.stderr}")
    for count, (cell, text) in enumerate(zip(cells, json.loads(out.stdout), strict=True), start=1):
        cell.execution_count = count
        cell.outputs = [nbformat.v4.new_output("stream", text=text)] if text else []
    return jupytext.writes(notebook, fmt="ipynb")


def run_cells() -> None:
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


def render_equations(site: Path) -> None:
    """Replace the equations in all pages of a site, which the extension `arithmatex` marks, by MathML."""

    def mathml(match: re.Match) -> str:
        equation = html.unescape(match["equation"])
        return convert(equation, display="block" if match["tag"] == "div" else "inline")

    # LaTeX's own brackets stand around each equation.
    marked = r'<(?P<tag>div|span) class="arithmatex">\\[\[(](?P<equation>.*?)\\[\])]</(?P=tag)>'
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(re.sub(marked, mathml, text, flags=re.DOTALL), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "build" / "site", help="where the site is written"
    )
    parser.add_argument("--serve", action="store_true", help="serve the site at http://127.0.0.1:8000 afterwards")
    parser.add_argument("--run-cells", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_cells:
        run_cells()
        return 0
    prepare()
    # Warnings, such as links that lead nowhere, are errors.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(options.folder.resolve())]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        return code
    render_equations(options.folder)
    if options.serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(options.folder))
        with contextlib.suppress(KeyboardInterrupt):
            http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
