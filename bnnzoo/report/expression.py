"""Evaluation of an expression of x in text: arithmetic and a few functions, and no other Python."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from bnnzoo.errors import UsageError

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name) for name in ("sin", "cos", "tan", "tanh", "exp", "log", "sqrt", "abs", "sign")
}
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def evaluate(text: str, x: Float[np.ndarray, " point"]) -> Float[np.ndarray, " point"]:
    """Return the values of an expression at x, such as `10 * sin(2 * pi * x)`; non-finite where it is undefined.

    Raises:
        UsageError: for anything but numbers, x, pi, e, + - * / ** and sin, cos, tan, tanh, exp, log, sqrt, abs, sign.
    """
    names = {"x": x.astype(np.float64), "pi": np.float64(np.pi), "e": np.float64(np.e)}

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return np.float64(number)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(operand))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](value(argument))
        raise ValueError

    try:
        with np.errstate(all="ignore"):
            return np.broadcast_to(value(ast.parse(text.strip(), mode="eval").body), x.shape)
    except (ValueError, SyntaxError, OverflowError, RecursionError, MemoryError):
        raise UsageError(
            f"{text}: must be a file or an expression of x, with numbers, x, pi, e, + - * / **, {', '.join(_FUNCTIONS)}"
        ) from None
