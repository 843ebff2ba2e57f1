"""Sphinx extension: docstrings with Markdown's code spans and indented formulas become reStructuredText.

Signatures show the names and defaults of the fields as a user types them, and references to a private module lead to
the public name.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import bnnzoo
import bnnzoo.testing
from bnnzoo.recipe import Field, fields_of
from bnnzoo.recipe.fields import REQUIRED
from bnnzoo.samplers import minibatch

_CODE_SPAN = re.compile(r"(`[^`]+`)")
_SPECIAL = re.compile(r"([\\*|]|_(?=\W|$))")
_SECTIONS = ("Args:", "Returns:", "Raises:", "Warns:", "Attributes:", "Yields:")


def to_restructured_text(lines: list[str]) -> list[str]:
    """Return a docstring as reStructuredText: literal blocks after `::`, code spans in double backticks."""
    result: list[str] = []
    is_literal, margin = False, 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        is_after_blank = not result or not result[-1].strip()
        if line.strip() and is_literal and indent < margin + 4:
            is_literal = False
        if line.strip() and not is_literal and is_after_blank and indent >= margin + 4 and result:
            result += [f"{' ' * margin}::", ""]
            is_literal = True
        if line.strip() and not is_literal:
            margin = indent
        result.append(line if is_literal or line.strip() in _SECTIONS else _inline(line))
    return result


def _inline(line: str) -> str:
    pieces = _CODE_SPAN.split(line)
    return "".join(_code(piece) if number % 2 else _SPECIAL.sub(r"\\\1", piece) for number, piece in enumerate(pieces))


def _code(span: str) -> str:
    """Return a code span, as a reference if it is the name of a public class."""
    name = span.strip("`").removeprefix("bnnzoo.")
    if name in bnnzoo.__all__ and name[0].isupper():
        return f":py:obj:`~bnnzoo.{name}`"
    return f"`{span}`"


def process_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring before napoleon reads its sections."""
    del app, name, options
    is_of_type = any(lines[:1] == (inspect.getdoc(kind) or "").splitlines()[:1] for kind in (dict, type(obj)))
    if what == "data" and is_of_type:
        lines.clear()  # the docstring of a built-in type; the page describes the value
    lines[:] = to_restructured_text(lines)


def skip_member(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of a named tuple, which its docstring or its signature lists."""
    del app, what, name, skip, options
    return True if (inspect.getdoc(obj) or "").startswith("Alias for field number") else None


def process_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Return the signature of a part as keywords with defaults, as a user types them."""
    del app, name, options
    if what != "class" or not hasattr(obj, "exactness") or inspect.isabstract(obj):
        return None
    try:
        fields = fields_of(obj)
    except Exception:
        return signature, returns
    return f"({', '.join(map(_keyword, fields))})", None


def _keyword(field: Field) -> str:
    """Return a field as it is typed, with its default: numbers of float32 as Python's."""
    if field.default is REQUIRED:
        return field.name
    is_text = isinstance(field.default, str | tuple | list | bool) or field.default is None
    return f"{field.name}={field.default!r}" if is_text else f"{field.name}={field.default_text}"


@cache
def public_names() -> dict[str, str]:
    """Return the public name of each object that is also reachable in the module that defines it."""
    names = {"bnnzoo.plots._picture.Picture": "bnnzoo.plots.Picture"}
    for package in (bnnzoo, bnnzoo.testing, minibatch):
        for name in package.__all__:
            value = getattr(package, name)
            module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
            if module and qualified:
                names[f"{module}.{qualified}"] = f"{package.__name__}.{name}"
    return names


def resolve_private(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Resolve a reference to the module that defines a public name."""
    public = public_names().get(node.get("reftarget", ""))
    if public is None or node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)


def setup(app: Any) -> dict[str, Any]:
    """Register the extension."""
    app.connect("autodoc-process-docstring", process_docstring, priority=100)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("missing-reference", resolve_private)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
