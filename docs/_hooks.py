"""The site's first page and its changelog are the README and CHANGELOG of the repository, with their links to `docs/`
made relative to it."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    for source, page in (("README.md", "index.md"), ("CHANGELOG.md", "changelog.md")):
        text = (root / source).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files
