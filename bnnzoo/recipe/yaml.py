"""Reader and writer of recipes in a subset of YAML 1.2. The reader keeps the position of each value.

Tags, merge keys and repeated keys are errors. Without tags, a recipe contains only data and no code. The size, the
depth and the number of aliases are limited. Error messages contain the line and the column.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, Event, NodeEvent, ScalarEvent, SequenceStartEvent

from bnnzoo.errors import UsageError

MAX_BYTES = 250_000
"""Largest size of a recipe in bytes. The parser ruamel takes one to four seconds per megabyte."""
MAX_ALIASES = 100
MAX_DEPTH = 50
MAX_VALUES = 10_000

_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+-]*")


class _IntegerWithText(int):
    """An integer with its text in the file. The text is needed if the value is the name of a column, such as 007."""

    text: str


class _FloatWithText(float):
    """A number with its text in the file."""

    text: str


class Node(NamedTuple):
    """A value and its position in the file.

    Attributes:
        value: a scalar, a list of nodes, or a dictionary of nodes.
        where: the position of the value.
        key_where: if the value belongs to a key, the position of the key.
    """

    value: Any
    where: str
    key_where: str = ""


def read(path: Path) -> Node:
    """Return the parsed document in a file or in a pipe. A pipe cannot be read twice, so the file is opened only once.

    Raises:
        UsageError: if the file is unreadable or invalid. If the position of the problem is known, the message has the
            form `FILE:LINE:COLUMN: problem`.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    _refuse_long(raw, str(path))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> Node:
    """Return the parsed document in a text. `source` is the name of the text in messages.

    Raises:
        UsageError: if the text is invalid. If the position of the problem is known, the message has the form
            `SOURCE:LINE:COLUMN: problem`.
    """
    _refuse_long(text, source)
    reader = _Reader(source)
    try:
        return reader.document(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UsageError(f"{_position(source, mark)}: {error.problem or error.context}") from error
    except YAMLError as error:
        raise UsageError(f"{source}: {' '.join(str(error).split())}") from error


def write(values: dict[str, Any]) -> str:
    """Return values as YAML in the given order. Reading the text gives the same values.

    Raises:
        UsageError: if the text is longer than `read` accepts.
    """
    text = "".join(_lines(values, ""))
    _refuse_long(text, "the whole recipe")
    return text


def _refuse_long(text: str | bytes, source: str) -> None:
    if len(text) > MAX_BYTES:
        raise UsageError(f"{source}: larger than {MAX_BYTES // 1000} kB, which is too large for a recipe")


class _Reader:
    """Converter of the events of the YAML parser to nodes. All aliases of an anchor share the node of the anchor."""

    def __init__(self, source: str):
        self.source = source
        self.anchors: dict[str, Node] = {}
        self.aliases = self.values = 0

    def document(self, events: Iterator[Event]) -> Node:
        """Return the node of the only document. An empty document gives an empty mapping.

        Raises:
            UsageError: if there is a second document.
        """
        root: Node | None = None
        for event in events:
            if isinstance(event, NodeEvent):
                if root is not None:
                    raise UsageError(
                        f"{self.position_of(event)}: a second document; a recipe must be a single document"
                    )
                root = self.node(event, events, 1)
        return Node({}, f"{self.source}:1:1") if root is None or root.value is None else root

    def node(self, event: Any, events: Iterator[Event], depth: int) -> Node:
        """Return the node that starts with this event.

        Raises:
            UsageError: if the node contains a tag, or exceeds the limits of depth and size.
        """
        where = self.position_of(event)
        self.values += 1
        if depth > MAX_DEPTH:
            raise UsageError(f"{where}: nested deeper than {MAX_DEPTH} levels")
        if self.values > MAX_VALUES:
            raise UsageError(f"{where}: more than {MAX_VALUES} values, which are too many for a recipe")
        if isinstance(event, AliasEvent):
            return self.alias(event, where)
        if event.tag:
            raise UsageError(f"{where}: tags are not allowed ({str(event.tag)[:60]})")
        if isinstance(event, ScalarEvent):
            node = Node(_scalar(event.value, plain=event.style in (None, "")), where)
        elif isinstance(event, SequenceStartEvent):
            node = Node([self.node(item, events, depth + 1) for item in _until_end(events)], where)
        else:
            node = Node(self.mapping(events, depth), where)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def alias(self, event: AliasEvent, where: str) -> Node:
        """Return the node of the anchor to which an alias refers.

        Raises:
            UsageError: if there is no such anchor before the alias, or if there are too many aliases.
        """
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise UsageError(f"{where}: more than {MAX_ALIASES} aliases")
        if event.anchor not in self.anchors:
            raise UsageError(f"{where}: the alias *{event.anchor} has no anchor &{event.anchor} before it")
        return self.anchors[event.anchor]._replace(where=where)

    def mapping(self, events: Iterator[Event], depth: int) -> dict[str, Node]:
        """Return the nodes of a mapping by key.

        Raises:
            UsageError: if a key is repeated, is a merge key, or is not a plain word.
        """
        nodes: dict[str, Node] = {}
        for event in _until_end(events):
            if not isinstance(event, ScalarEvent):
                raise UsageError(f"{self.position_of(event)}: a key must be a plain word")
            where, key = self.position_of(event), event.value
            if key == "<<":
                raise UsageError(f"{where}: merge keys (<<) are not allowed; copy the merged keys to this place")
            if key in nodes:
                raise UsageError(f"{where}: {key}: repeated key (first at {nodes[key].key_where})")
            nodes[key] = self.node(next(events), events, depth + 1)._replace(key_where=where)
        return nodes

    def position_of(self, event: Event) -> str:
        """Return the position of an event: SOURCE:LINE:COLUMN."""
        return _position(self.source, event.start_mark)


def _until_end(events: Iterator[Event]) -> Iterator[Event]:
    """Yield the first event of each item, up to the end of a sequence or a mapping.

    The caller must consume the other events of an item before it asks for the next item.
    """
    return itertools.takewhile(lambda event: not isinstance(event, CollectionEndEvent), events)


def _position(source: str, mark: Any) -> str:
    return f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source


def _scalar(text: str, *, plain: bool) -> Any:
    """Convert a scalar by the core schema of YAML 1.2.

    For example, 1e-3 is a number. In contrast to YAML 1.1, `no` is text, 010 is ten, and 1_0 is text.
    """
    if not plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) and len(text) < 400:
        return _with_text(_IntegerWithText(text), text)
    if _FLOAT.fullmatch(text) and not _INT.fullmatch(text):
        return _with_text(_FloatWithText(text.lower().replace(".inf", "inf").replace(".nan", "nan")), text)
    return text


def _with_text(value: Any, text: str) -> Any:
    if str(value) == text:
        return value.__class__.__base__(value)
    value.text = text
    return value


def _lines(values: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:\n"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {_text(value)}\n"


def _quote(text: str) -> str:
    """Return text in quotes, with the escapes that YAML and JSON share. Unprintable characters are escaped too."""
    return "".join(c if c.isprintable() else _escape(c) for c in json.dumps(text, ensure_ascii=False))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and _scalar(value, plain=True) == value else _quote(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, int):
        return str(value)
    # `str` of a NumPy scalar has only the digits that its precision needs to represent the same number.
    text = str(value)
    return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(text, text)
