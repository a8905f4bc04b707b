"""The site's first page and its changelog are the README and CHANGELOG of the repository, with their links to `docs/`
made relative to it. Equations become MathML, which browsers show without a script. The example scripts are also there
as notebooks."""

import html
import re
from pathlib import Path
from typing import Any

import jupytext
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    for source, page in (("README.md", "index.md"), ("CHANGELOG.md", "changelog.md")):
        text = (root / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    for script in sorted((root / "docs" / "examples").glob("*.py")):
        notebook = jupytext.reads(script.read_text(encoding="utf-8"), fmt="py:percent")
        page = f"examples/{script.stem}.ipynb"
        files.append(File.generated(config, page, content=jupytext.writes(notebook, fmt="ipynb")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Adds the link to the notebook of an example, which only the site has, behind that to its script."""
    return re.sub(r"(\[\w+\.py\]\((examples/\w+)\.py\))", r"\1, [notebook](\2.ipynb)", markdown)


def on_page_content(content: str, **_: Any) -> str:
    def mathml(match: re.Match) -> str:
        equation = html.unescape(match["equation"])
        return convert(equation, display="block" if match["tag"] == "div" else "inline")

    # The extension `arithmatex` marks equations, with LaTeX's own brackets around them.
    marked = r'<(?P<tag>div|span) class="arithmatex">\\[\[(](?P<equation>.*?)\\[\])]</(?P=tag)>'
    return re.sub(marked, mathml, content, flags=re.DOTALL)
