"""The source files of the library, which tests of the package as a whole read."""

import ast
import functools
from pathlib import Path

import jaxdyn

PACKAGE = Path(jaxdyn.__file__).parent


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every file, by its path below the package."""
    return {str(file.relative_to(PACKAGE)): ast.parse(file.read_text()) for file in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def nodes() -> dict[str, list[ast.AST]]:
    """The nodes of the syntax tree of every file; to walk through the trees takes a second."""
    return {file: list(ast.walk(tree)) for file, tree in trees().items()}
