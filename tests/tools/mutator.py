"""Small mistakes in a Python source, made by rules: one operator, number, term, call, condition or statement at a time.

Code that affects no draw and no verdict is not changed: annotations, docstrings, strings, decorators, imports,
`__all__`, declarations of fields in classes, and raised errors.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple


class Change(NamedTuple):
    """A range of characters in a source, and its replacement."""

    start: int
    end: int
    line: int
    kind: str
    before: str
    after: str

    def made(self, source: str) -> str:
        return source[: self.start] + self.after + source[self.end :]


OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.MatMult: (),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
TWINS = ("min max", "minimum maximum", "argmin argmax", "sum mean", "var std", "any all", "floor ceil", "nanmin nanmax")
SWAPPED = {a: b for pair in TWINS for a, b in (pair.split(), pair.split()[::-1])}
WRAPPERS = {"exp", "log", "log1p", "expm1", "sqrt", "square", "abs", "tanh", "softplus", "log_softmax", "logsumexp"}
WRAPPERS |= {"stop_gradient"}
"""Functions of one argument that a mistake removes around their argument."""


def changes(source: str) -> list[Change]:
    """Return every mistake that the rules can make in a source, in order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()

    def place(row: int, column: int) -> int:
        return starts[row - 1] + len(lines[row - 1].encode()[:column].decode())

    results = []
    for node, kind, after in _of_body(ast.parse(source).body, in_class=False):
        start, end = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
        results.append(Change(start, end, node.lineno, kind, source[start:end], after))
    return sorted(set(results))


def _of_body(body: list[ast.stmt], *, in_class: bool) -> Iterator[tuple[Any, str, str]]:
    for number, statement in enumerate(body):
        if isinstance(statement, ast.FunctionDef):
            for default in [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]:
                yield from _of_expression(default)
            yield from _of_body(statement.body, in_class=False)
        elif isinstance(statement, ast.ClassDef):
            yield from _of_body(statement.body, in_class=True)
        elif not (in_class or _is_words(statement)):
            yield from _of_statement(statement, body[:number])


def _is_words(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, an import, or a list of names."""
    if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
        return True
    string = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return string or isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass)


def _of_statement(statement: ast.stmt, before: list[ast.stmt]) -> Iterator[tuple[Any, str, str]]:
    if isinstance(statement, ast.Raise):
        yield statement, "statement", "pass"
        return
    if isinstance(statement, ast.If | ast.While) and not isinstance(statement.test, ast.Compare | ast.UnaryOp):
        yield statement.test, "condition", f"not ({ast.unparse(statement.test)})"
    if _can_go(statement, before):
        yield statement, "statement", "pass"
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.expr):
                yield from _of_expression(child)
            elif isinstance(child, ast.withitem):
                yield from _of_expression(child.context_expr)
            elif isinstance(child, ast.ExceptHandler):
                yield from _of_body(child.body, in_class=False)
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield from _of_body(value, in_class=False)


def _can_go(statement: ast.stmt, before: list[ast.stmt]) -> bool:
    """Whether all names remain defined without the statement: a call, or a second assignment."""
    if isinstance(statement, ast.Expr | ast.AugAssign):
        return True
    if not isinstance(statement, ast.Assign):
        return False
    earlier = {ast.unparse(t) for item in before if isinstance(item, ast.Assign) for t in item.targets}
    read = {ast.unparse(node) for node in ast.walk(statement.value) if isinstance(node, ast.Name | ast.Attribute)}
    return all(ast.unparse(t) in earlier | read or isinstance(t, ast.Subscript) for t in statement.targets)


def _of_expression(node: ast.AST) -> Iterator[tuple[Any, str, str]]:
    if isinstance(node, ast.JoinedStr):
        return
    for kind, changed in _mistakes(node):
        yield node, kind, f"({ast.unparse(changed)})" if not isinstance(changed, ast.Constant) else repr(changed.value)
    for child in ast.iter_child_nodes(node):
        # Change only the sign of a negative number, because `-1` is usually an axis or a shape.
        if not (isinstance(node, ast.UnaryOp) and isinstance(child, ast.Constant)):
            yield from _of_expression(child)


def _mistakes(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.BinOp | ast.BoolOp):
        for other in OPERATORS.get(type(node.op), ()):
            yield "operator", _with(node, op=other())
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            yield "term", node.left
            yield "term", node.right
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in OPERATORS.get(type(node.ops[0]), ()):
            yield "comparison", _with(node, ops=[other()])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield "sign", node.operand
    elif isinstance(node, ast.Constant):
        yield from (("constant", ast.Constant(value)) for value in _other_values(node.value))
    elif isinstance(node, ast.IfExp):
        yield "condition", _with(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in SWAPPED and (isinstance(node.func, ast.Attribute) or SWAPPED[name] in dir(builtins)):
        other = copy.deepcopy(node.func)
        setattr(other, "attr" if isinstance(other, ast.Attribute) else "id", SWAPPED[name])
        yield "function", _with(node, func=other)
    if name in WRAPPERS and len(node.args) == 1 and not node.keywords:
        yield "wrapper", node.args[0]
    if name == "where" and len(node.args) == 3:
        yield "condition", _with(node, args=[node.args[0], node.args[2], node.args[1]])


def _other_values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if not isinstance(value, int | float):
        return ()
    return (value + 1 if value == 0 else value // 2 if value == 2 else value * 2,)


def _with(node: ast.expr, **fields: Any) -> ast.expr:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
