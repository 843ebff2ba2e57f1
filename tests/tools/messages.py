"""Collect every message of bnnzoo from its source, so that all of them can be read in one place.

Messages are the texts of errors, warnings, notes, findings, verdicts and pictures. `python tests/tools/messages.py`
prints their templates, and `--write` stores them in `tests/golden/messages.txt`. A field of an f-string is shown as
`{...}`, and a field with two fixed texts as `{one|other}`. A setting such as `[[warmup=500]]` becomes an option or a
keyword for the reader. The file holds no line numbers, so that moved code does not change it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "messages.txt"
COMMAND = "python tests/tools/messages.py --write"
FIELD = "{...}"
RAISED = re.compile(r"Error$|Warning$|^_?(warn|Finding|Fault|Refused|fault|damaged|refuse)")
"""Functions whose texts are messages even if they have two words only."""
NO_MESSAGE = frozenset({"compile", "Doc", "TypeVar", "getLogger", "Literal", "Option", "Argument", "namedtuple"})
"""Functions whose texts are not messages: patterns, types, and the help of options."""
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9.-]*|-[oq]\b)")
SENTENCE = re.compile(r"[A-Za-z{|}'.]+[,;:]? [\w(]\S* ")
CODE = re.compile(r"</?[a-z]+[ >/]|^\s*[.\w-]+\s*\{[^}.|]*:|^[\w.]+\([^ ]*\)$|^outside ")
"""Texts that are read by programs: markup, style sheets, calls, places of legends."""


class Template(NamedTuple):
    """The text of one message, with the place where it is used."""

    module: str
    line: int
    kind: str
    """The error or the call that the text is given to, or "text"."""
    text: str


def literal(node: ast.expr) -> str | None:
    """Return the text of a string expression with its fields as `{...}`, or None if it is no string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(literal(part) or FIELD for part in parts)
        case ast.FormattedValue(value=ast.IfExp(body=one, orelse=other)) | ast.IfExp(body=one, orelse=other):
            texts = literal(one), literal(other)
            return None if None in texts else "{" + "|".join(str(text) for text in texts) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            pieces = literal(left), literal(right)
            return None if pieces == (None, None) else "".join(FIELD if piece is None else piece for piece in pieces)
    return None


def called(node: ast.Call) -> str:
    """Return the last name of a called function."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_docstring(statement: ast.stmt) -> bool:
    """Return whether a statement is only a string."""
    return isinstance(statement, ast.Expr) and literal(statement.value) is not None


def strings(node: ast.AST, kind: str = "text") -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of the string expressions below a node, in the order of the source."""
    if isinstance(node, ast.expr) and (text := literal(node)) is not None:
        yield node.lineno, kind, text
        for inner in ast.walk(node):
            if isinstance(inner, ast.FormattedValue) and literal(inner) is None:
                yield from strings(inner.value, "text")
        return
    if isinstance(node, ast.stmt) and is_docstring(node):
        return
    if isinstance(node, ast.Call):
        if called(node) in NO_MESSAGE:
            return
        if RAISED.search(called(node)):
            kind = called(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "pattern", "slice"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from strings(child, kind)


def is_message(kind: str, text: str) -> bool:
    """Return whether a text is prose: all texts of errors, and elsewhere texts of three words or more."""
    literal = text.replace(FIELD, "x")
    if CODE.search(text) or not re.search(r"[A-Za-z]{2}", text.replace(FIELD, "")):
        return False
    return " " in literal.strip() if kind != "text" else SENTENCE.search(literal) is not None


def collect(paths: Iterable[Path], root: Path) -> list[Template]:
    """Return the messages of these files, by module and line."""
    return sorted({template for path in paths for template in of_file(path, root) if is_message(*template[2:])})


def of_file(path: Path, root: Path) -> Iterator[Template]:
    """Yield all texts of a file except docstrings, patterns and the help of options."""
    module = path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
    for line, kind, text in strings(ast.parse(path.read_text(encoding="utf-8"))):
        yield Template(module, line, kind, text)


def options_outside_the_command_line(paths: Iterable[Path], root: Path) -> set[tuple[str, str]]:
    """Return module and option of all texts outside `bnnzoo.cli` that name an option of the command line."""
    named = {
        (template.module, option)
        for path in paths
        for template in of_file(path, root)
        for option in OPTION.findall(template.text)
    }
    return {(module, option) for module, option in named if not module.startswith("bnnzoo.cli.")}


def package() -> list[Path]:
    """Return the source files of bnnzoo, without the templates of new plugins."""
    return sorted(path for path in (ROOT / "bnnzoo").rglob("*.py") if "templates" not in path.parts)


def written(templates: Iterable[Template]) -> str:
    """Return the golden file: the messages under their modules."""
    lines: list[str] = []
    module = ""
    for template in templates:
        if template.module != module:
            module = template.module
            lines += ["", f"[{module}]"]
        text = template.text.replace("\n", "\\n")
        lines.append(f"{template.kind}: {text}")
    return "\n".join(lines[1:]) + "\n"


if __name__ == "__main__":
    text = written(collect(package(), ROOT))
    if "--write" in sys.argv[1:]:
        GOLDEN.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
