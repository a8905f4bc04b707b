"""The source keeps the rules that a program can check: sizes, docstrings' beginnings, private modules, batching."""

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

from tests.package.sources import PACKAGE, nodes, trees
from tests.package.test_layering import FLOORS

EVERYBODYS = {name for name in FLOORS if name.startswith("_")}
"""Private modules beside the packages, which every package above them may import."""
BEGINNING = re.compile(r"(Of|By|That of|Those of|What)\b")
BOOKKEEPING = {"rank", "full", "rows_of", "packed_rows", "to_leading"}
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for file, inside in nodes().items():
        for node in inside:
            if isinstance(node, FUNCTION):
                yield f"{file}:{node.lineno} {node.name}", node


def is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def names_of(node: ast.AST) -> list[str]:
    """The names that a definition or an assignment binds."""
    if isinstance(node, FUNCTION | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def public_notes(node: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    """The lines and texts of the docstrings of public definitions, and of the notes below public assignments."""
    for before, statement in zip([node, *node.body], node.body, strict=False):
        public = before is node or any(not name.startswith("_") or name == "__init__" for name in names_of(before))
        if is_string(statement) and public:
            yield statement.lineno, statement.value.value
    for statement in node.body:
        if isinstance(statement, FUNCTION | ast.ClassDef) and not statement.name.startswith("_"):
            if isinstance(statement, ast.ClassDef):
                yield from public_notes(statement)
            elif is_string(statement.body[0]):
                yield statement.lineno, statement.body[0].value.value


def test_files_have_at_most_450_lines():
    lines = {file: len((PACKAGE / file).read_text().splitlines()) for file in trees()}
    assert len(lines) > 20
    long = {file: n for file, n in lines.items() if n > 450}
    assert not long, "\n".join(f"{name}: {n}" for name, n in long.items())


def test_functions_have_at_most_80_lines():
    """The docstring is not counted."""
    long = {}
    for name, node in functions():
        docstring = node.body[0] if is_string(node.body[0]) else None
        lines = node.end_lineno - node.lineno + 1
        lines -= docstring.end_lineno - docstring.lineno + 1 if docstring else 0
        if lines > 80:
            long[name] = lines
    assert not long, "\n".join(f"{name}: {n}" for name, n in long.items())


def test_functions_have_at_most_12_parameters():
    """`self` and `cls` are not counted."""
    long = {}
    for name, node in functions():
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        n = sum(x.arg not in ("self", "cls") for x in parameters)
        if n > 12:
            long[name] = n
    assert not long, "\n".join(f"{name}: {n}" for name, n in long.items())


def test_public_docstrings_begin_with_what_they_are_about():
    bad = []
    for file, tree in trees().items():
        bad += [f"{file}:{line} {text[:60]!r}" for line, text in public_notes(tree) if BEGINNING.match(text.strip())]
    assert not bad, "\n".join(bad)


def imports(inside: list[ast.AST]) -> Iterator[tuple[int, list[str]]]:
    """The line and the dotted parts of each name that a file with these nodes imports from the library."""
    for node in inside:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxdyn":
            for alias in node.names:
                yield node.lineno, [*node.module.split("."), alias.name]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")


def test_private_modules_stay_in_their_package():
    bad = {}
    for file, inside in nodes().items():
        package = Path(file).parts[0].removesuffix(".py")
        for line, parts in imports(inside):
            if parts[0] != "jaxdyn" or len(parts) < 2 or parts[1] in (package, *EVERYBODYS):
                continue
            if any(part.startswith("_") and not part.startswith("__") for part in parts[1:]):
                bad[f"{file}:{line}"] = ".".join(parts)
    assert not bad, "\n".join(f"{place} {name}" for place, name in bad.items())


def test_algorithms_keep_no_books():
    """Algorithms leave rows and batch axes to the decorator."""
    bad = []
    for file, inside in nodes().items():
        if not file.startswith("algorithms/") or file.startswith("algorithms/recursions/"):
            continue
        for node in inside:
            name = next((getattr(node, key) for key in ("id", "attr", "arg") if hasattr(node, key)), None)
            name = getattr(node, "name", name)
            array_function = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np", "jnp")
            if name in BOOKKEEPING and not array_function:
                bad.append(f"{file}:{getattr(node, 'lineno', 0)} {name}")
    assert not bad, "\n".join(bad)


TESTS = Path(__file__).parents[1]
PRIVATE_IMPORT = re.compile(
    r"^ *(?:from (?:jaxdyn\S*\._\S* import|jaxdyn\S* import \(?_[a-z])|import jaxdyn\S*\._)", re.MULTILINE
)
PRIVATE_IMPORTS = 96
"""Imports of private modules and names by tests, a number that may only shrink: tests use what the packages offer."""


def test_tests_import_public_names():
    """The parts of native programs and of solves have no other users than their packages, so their tests are free."""
    files = [x for x in TESTS.rglob("*.py") if x.parent.name not in ("native", "solve")]
    count = sum(len(PRIVATE_IMPORT.findall(file.read_text())) for file in files)
    assert count <= PRIVATE_IMPORTS, "use a public name of the package, or test what the package does"
    assert count > PRIVATE_IMPORTS - 5, f"lower the number to {count}"


SHARED_CLASSES = {"Plan", "Problem", "Solution", "_Touching"}
"""Names of classes that stand for several things. The list may only shrink: a name stands for one thing."""
SHARED_MODULES = {"_step"}
"""Names of modules that stand for several things, a list that may only shrink, too."""


def shared(names: Iterator[str]) -> set[str]:
    return {name for name, count in collections.Counter(names).items() if count > 1}


def test_a_name_of_a_class_stands_for_one_thing():
    classes = shared(node.name for tree in trees().values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert classes == SHARED_CLASSES, "take names that are gone from the list, and choose others for those that are new"


def test_a_name_of_a_module_stands_for_one_thing():
    modules = shared(Path(file).stem for file in trees() if not Path(file).stem.startswith("__"))
    assert modules == SHARED_MODULES, "take names that are gone from the list, and choose others for those that are new"
