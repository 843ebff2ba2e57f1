"""What a variable of a run's file may be called, whoever names it: a network's field, a site, a statistic."""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST = 180
"""Letters; a file's own words, such as `linearised_at_`, come before it, and HDF5 and the reader bound the whole."""
_TAKEN = ("chain", "draw")


def fault(name: str) -> str:
    """Why a name is none for a variable, as the end of a sentence; empty where it is one."""
    if not name:
        return "has no name"
    if len(name) > _LONGEST:
        return f"has a name of {len(name)} letters; {_LONGEST} are the most"
    if name in _TAKEN:
        return f"is called {name}, as a dimension of the file is; give it another name"
    if "/" in name or name.startswith(".") or name != name.strip() or not name.isprintable():
        return f"is called {name!a}: a name is of letters that show, without / and not beginning with a dot or space"
    return ""


def clash(ranks: Mapping[str, int]) -> str:
    """Which variable is called like a dimension of another, given how many each has; empty where none is."""
    dims = {f"{name}_dim_{i}": name for name, rank in ranks.items() for i in range(rank)}
    return next((f"is called {name}, like a dimension of {dims[name]}" for name in ranks if name in dims), "")
