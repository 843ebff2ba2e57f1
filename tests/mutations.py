"""Changes to a real file before a command reads it: of bytes, and of fields that an attacker would change.

A change is a list: its name, the place, and the new value. A place is a name, or a number that selects one of the
existing places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
from pydantic import ValidationError

from bnnzoo.store import npz, run_parts
from bnnzoo.store.checkpoint import load, save
from bnnzoo.store.manifest import Manifest

T = TypeVar("T")
Change = Sequence[Any]

NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, -(2**63), 10**30, 10**400, 1.5, -0.0, 1e308, "nan", "inf", "-inf"),
    *("", " ", "a" * 10_000, "\x1b[2J\x1b]0;owned\x07", "a\nbnnzoo: all is well", "\u202e\u2028", "\ud800"),
    *("../secret", "/dev/zero", "secret", "~", "run.nc", "own:os.system", "os:system", "builtins:exec"),
    *("!!python/object/apply:os.system [ls]", "&a [*a, *a]", "{", "[" * 3000, "1e999", "1_0", "0x10", "9" * 5000),
    *("linear", "cnn", "mlp", "nuts", "penalty", "diabetes", "digits", "gaussian", "categorical", "float64"),
    *([], {}, [[]], [1, 2, 3], ["a", "a"], {"a": 1}, [None], [[[[[[[[1]]]]]]]], [2**62], [0], [1000, 1000, 1000]),
    *([10**9], {"name": "mlp", "hidden": [10**9, 10**9]}, {"name": "os"}, {"__class__": "os"}),
)
"""Values that no file of bnnzoo contains."""
ARRAYS: tuple[Callable[[], Any], ...] = (
    lambda: np.zeros(0, np.float32),
    lambda: np.float32(1),
    lambda: np.zeros((4, 0), np.float32),
    lambda: np.zeros((1, 1), np.int8),
    lambda: np.full((4, 20), np.nan),
    lambda: np.full((4, 20, 10), np.inf, np.float32),
    lambda: np.full((4, 20, 1, 10), 1e38, np.float32),
    lambda: np.zeros((3, 20, 1, 10), np.float32),
    lambda: np.zeros((4, 1, 1, 10), np.float32),
    lambda: np.zeros((2**20, 2), np.uint8),
    lambda: np.array([True, False]),
    lambda: np.arange(442, dtype=np.int64) - 2**62,
    lambda: np.zeros((442, 10), np.float64),
    lambda: np.zeros((1,) * 12, np.float16),
)


def pick(choices: Sequence[T], place: Any) -> T:
    """Return the object with this name or number."""
    return choices[place % len(choices)] if isinstance(place, int) else choices[choices.index(place)]


def change_bytes(content: bytes, change: Change) -> bytes:
    """flip PLACE BIT, cut PLACE, put PLACE HEX, insert PLACE HEX, drop PLACE LENGTH, again PLACE LENGTH TIMES."""
    kind, place, *rest = change
    at = min(int(place * len(content)), max(0, len(content) - 1))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ 1 << rest[0]]) + content[at + 1 :] if content else content
    if kind == "cut":
        return content[:at]
    if kind in ("put", "insert"):
        new = bytes.fromhex(rest[0])
        return content[:at] + new + content[at + (len(new) if kind == "put" else 0) :]
    if kind == "drop":
        return content[:at] + content[at + rest[0] :]
    assert kind == "again"
    return content[:at] + content[at : at + rest[0]] * rest[1] + content[at + rest[0] :]


def change_words(document: Any, path: Sequence[Any], value: Any) -> Any:
    """Return the JSON with a value replaced at `path`; an invalid step ends the path."""
    if not path or not isinstance(document, dict | list) or not document:
        return value
    key = pick(list(document) if isinstance(document, dict) else range(len(document)), path[0])
    document[key] = change_words(document[key], path[1:], value)
    return document


def change_run_file(path: Path, change: Change) -> None:
    """attribute OBJECT NAME VALUE, json NAME PATH VALUE, recipe LINE VALUE, array NAME N, gone NAME, twin NAME."""
    kind, *rest = change
    with h5py.File(path, "r+") as file:
        file.attrs.pop("digests", None)  # an attacker who changes attributes also removes their digests
        names: list[str] = []
        file.visit(lambda name: names.append(name))
        if kind == "attribute":
            holder = file[pick(["/", *names], rest[0])]
            present = [*holder.attrs, "new"]
            _put(holder.attrs, pick(present, rest[1]), rest[2])
        elif kind == "json":
            present = [name for name in file.attrs if str(file.attrs[name])[:1] in ("{", "[")]
            name = pick(present, rest[0])
            file.attrs[name] = json.dumps(change_words(json.loads(file.attrs[name]), rest[1], rest[2]))
        elif kind == "recipe":
            file.attrs["recipe"] = change_line(file.attrs["recipe"], *rest)
        elif kind == "gone":
            del file[pick(names, rest[0])]
        elif kind == "array":
            name = pick([name for name in names if isinstance(file[name], h5py.Dataset)], rest[0])
            del file[name]
            file[name] = pick(ARRAYS, rest[1])()
        else:
            assert kind == "twin"
            name = pick(names, rest[0])
            file.copy(name, f"{name}_")


def _put(attributes: Any, name: str, value: Any) -> None:
    """Store a value as an attribute, if HDF5 has a suitable type."""
    if isinstance(value, str) and value.isprintable() and value in ("nan", "inf", "-inf"):
        value = float(value)
    if isinstance(value, dict) or value is None:
        value = json.dumps(value)
    try:
        attributes[name] = value
    except (TypeError, ValueError, OverflowError, OSError, UnicodeError):
        attributes[name] = np.bytes_(repr(value).encode()[:60_000] + b"\xff\xfe")


def change_line(text: str, place: int, value: Any) -> str:
    """Return the YAML with one value replaced; for a negative place, one key."""
    lines = text.splitlines()
    at = abs(place) % len(lines)
    new = value if isinstance(value, str) else json.dumps(value)
    before, colon, after = lines[at].partition(":")
    lines[at] = f"{before}{colon} {new}" if place >= 0 else f"{new}{colon}{after}"
    return "\n".join(lines) + "\n"


def change_parts(folder: Path, change: Change) -> None:
    """words FILE PATH VALUE, inner NAME PATH VALUE, recipe LINE VALUE, npz FILE NAME N, gone FILE, bytes FILE."""
    kind, *rest = change
    files = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name not in ("lock", "owner.json"))
    if kind == "words":
        _edit_json(folder / pick(["header.json", "p000.json"], rest[0]), lambda w: change_words(w, *rest[1:]))
    elif kind == "inner":

        def inside(header: Any) -> Any:
            about = header["attributes"]
            name = pick([n for n, v in about.items() if str(v)[:1] in ("{", "[")], rest[0])
            about[name] = json.dumps(change_words(json.loads(about[name]), *rest[1:]))
            return header

        _edit_json(folder / "header.json", inside)
    elif kind == "recipe":

        def recipe(header: Any) -> Any:
            header["attributes"]["recipe"] = change_line(header["attributes"]["recipe"], *rest)
            return header

        _edit_json(folder / "header.json", recipe)
    elif kind == "npz":
        path = folder / pick([name for name in files if name.endswith(".npz")], rest[0])
        change_npz(path, rest[1:])
    elif kind == "gone":
        (folder / pick(files, rest[0])).unlink()
    else:
        assert kind == "bytes"
        path = folder / pick(files, rest[0])
        path.write_bytes(change_bytes(path.read_bytes(), rest[1]))


def seal(folder: Path, checkpoint: Any) -> None:
    """Recompute every digest, as an attacker would; the checkpoint stays the same."""
    contents = json.loads((folder / "p000.json").read_text())
    contents["header"] = npz.sha256(folder / "header.json")
    for entry in [*contents["static"], *contents["parts"]]:
        path = folder / str(entry["file"])
        if path.is_file() and path.parent == folder:
            entry["sha256"] = npz.sha256(path)
            if "bytes" in entry:
                entry["bytes"] = path.stat().st_size
    (folder / "p000.json").write_text(json.dumps(contents))
    seal_words(folder)
    save(folder, checkpoint, run=contents["header"])


def seal_words(folder: Path) -> None:
    """Recompute the manifest's digest of itself, if it is still a valid manifest."""
    with suppress(ValidationError):
        manifest = Manifest.model_validate_json((folder / "p000.json").read_bytes())
        manifest.seal = run_parts.seal(manifest)
        run_parts.write_json(folder / "p000.json", manifest)


def checkpoint_of(folder: Path) -> Any:
    """Return the newest checkpoint of an unmodified run."""
    return load(folder / "checkpoint.npz", run=run_parts.load(folder).manifest.header)


def change_npz(path: Path, change: Change) -> None:
    """NAME N: replace the array of this name; for a negative number, remove it."""
    with np.load(path) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    name = pick(sorted(arrays), change[0])
    if change[1] < 0:
        del arrays[name]
    else:
        arrays[name] = pick(ARRAYS, change[1])()
    with open(path, "wb") as out:
        np.savez(out, **arrays)


def change_cell(text: str, row: int, column: int, value: Any) -> str:
    """Return a text table with one cell replaced (row 0 is the header)."""
    rows = [re.split(",", line) for line in text.splitlines()]
    cells = rows[row % len(rows)]
    cells[column % len(cells)] = value if isinstance(value, str) else json.dumps(value)
    return "\n".join(",".join(cells) for cells in rows) + "\n"


def _edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
