"""Rules for the names of variables in the file of a run: parameters, sample sites and statistics."""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST = 180
"""Largest number of characters of a name.

In the file, a name can get a prefix such as `linearised_at_`. HDF5 and the reader limit the length with the prefix.
"""
_DIMENSIONS = ("chain", "draw")
"""Names of the dimensions of the file."""


def fault(name: str) -> str:
    """Return the reason why a name is invalid for a variable, as the end of a sentence, or "" if it is valid."""
    if not name:
        return "has no name"
    if len(name) > _LONGEST:
        return f"has a name of {len(name)} characters, but at most {_LONGEST} are allowed"
    if name in _DIMENSIONS:
        return f"has the name {name}, which bnnzoo needs for a dimension of the file; rename it"
    if "/" in name or name.startswith(".") or name != name.strip() or not name.isprintable():
        return (
            f"has the name {name!a}, but a name must be printable, without /, a dot at the start, or spaces at the ends"
        )
    return ""


def clash(ranks: Mapping[str, int]) -> str:
    """Return the reason why a variable clashes with a dimension, as the end of a sentence, or "" if none clashes.

    Args:
        ranks: the number of dimensions of each variable. The dimensions of `a` have the names `a_dim_0`, `a_dim_1`, ...
    """
    dims = {f"{name}_dim_{i}": name for name, rank in ranks.items() for i in range(rank)}
    return next(
        (f"has the name {name}, which bnnzoo needs for a dimension of {dims[name]}" for name in ranks if name in dims),
        "",
    )
