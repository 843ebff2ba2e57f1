"""Docstrings open with a verb phrase or a noun phrase, never with a relative clause."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for folder in ("bnnzoo", "plugins") for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts
)
RELATIVE = re.compile(r"(What|Of|Which|From|Those|That|How|Where)\b")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of the docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            is_text = isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)
            if is_text and (before is None or isinstance(before, ast.Assign | ast.AnnAssign)):
                yield statement.lineno, statement.value.value


def test_docstrings_open_with_no_relative_clause():
    refused = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for path in FILES
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if RELATIVE.match(text.strip())
    ]
    assert refused == []


@pytest.mark.parametrize(("text", "is_refused"), [("What counts.", True), ("Whether it counts.", False)])
def test_the_check_tells_a_clause_from_a_phrase(text, is_refused):
    (_, result), *_ = docstrings(ast.parse(f'"""{text}"""'))
    assert bool(RELATIVE.match(result)) == is_refused


def documented_arguments(node: ast.FunctionDef) -> set[str]:
    """Return the names in the section `Args:` of a docstring."""
    _, _, section = (ast.get_docstring(node) or "").partition("\nArgs:\n")
    return set(re.findall(r"^ {4}\*{0,2}(\w+):", re.split(r"\n(?=\S)", section)[0], re.MULTILINE))


def functions_with_stale_arguments(tree: ast.Module) -> Iterator[str]:
    """Yield functions whose docstring describes an argument that they do not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            stale = documented_arguments(node) - {argument.arg for argument in names if argument}
            if stale:
                yield f"{node.name}: {', '.join(sorted(stale))}"


def test_docstrings_describe_only_arguments_that_exist():
    stale = [
        f"{path.relative_to(ROOT)}: {function}"
        for path in FILES
        for function in functions_with_stale_arguments(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert stale == []


@pytest.mark.parametrize(("argument", "is_stale"), [("x", False), ("rest", False), ("old", True)])
def test_the_check_of_arguments_finds_a_renamed_one(argument, is_stale):
    docstring = f'"""Do it.\n\n    Args:\n        {argument}: a value,\n            such: as one.\n    """'
    text = f"def f(x, *rest):\n    {docstring}"
    assert bool(list(functions_with_stale_arguments(ast.parse(text)))) == is_stale
