"""Text files as UTF-8 bytes, without skipped lines."""

from __future__ import annotations

import codecs
import re
import warnings
from collections.abc import Collection
from pathlib import Path

from bnnzoo.errors import BnnzooWarning, UsageError
from bnnzoo.finding import setting

_BINARY_FORMATS = {
    b"\x1f\x8b": "packed by gzip; unpack it first (gunzip)",
    b"PK\x03\x04": "a zip archive or a spreadsheet, not text; save the table as CSV",
}
"""First bytes of files that are not text, and the messages about such files."""
_WIDE = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Byte-order marks at the beginning of a file, and the encodings to which they belong."""


def read_text(path: Path, encoding: str = "", *, has_options: bool = True) -> bytes:
    """Read a text file, and return its content as UTF-8 with lines that end in LF or CRLF.

    Args:
        path: the file.
        encoding: the encoding of the file; UTF-8 by default.
        has_options: whether error messages may recommend an option, such as `encoding`.

    Raises:
        UsageError: if the file cannot be read, is not text, is empty, or has another encoding.
    """
    where = str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{where}: cannot be read ({error.strerror})") from error
    for magic, problem in _BINARY_FORMATS.items():
        if raw.startswith(magic):
            raise UsageError(f"{where}: {problem}")
    raw = _as_utf8(raw, encoding, where) if encoding else raw
    for byte_order_mark, name in _WIDE.items():
        if raw.startswith(byte_order_mark):
            remedy = f"use {setting('encoding', name)}, or save it as UTF-8" if has_options else "save it as UTF-8"
            raise UsageError(f"{where}: {name.upper()} text, not UTF-8; {remedy}")
    start = 0
    while raw.startswith(codecs.BOM_UTF8, start):  # a file may begin with several byte-order marks
        start += len(codecs.BOM_UTF8)
    raw = raw[start:] if start else raw
    if not raw.isascii():
        _check_utf8(raw, where, has_options=has_options)
    if b"\0" in raw:
        if (name := _wide_without_mark(raw)) and has_options and not encoding:
            raise UsageError(f"{where}: likely {name.upper()} text, not UTF-8; use {setting('encoding', name)}")
        raise UsageError(f"{where}: {_line_place(raw, raw.index(0))}: a NUL byte; the file is damaged or not text")
    if b"\n" not in raw:
        raw = raw.replace(b"\r", b"\n")
    if b"\r\r\n" in raw:  # CRLF that Windows wrote in text mode
        raw = re.sub(rb"\r+\n", b"\n", raw)
    raw = raw.rstrip(b"\r\n")
    if not raw or raw.isspace():
        raise UsageError(f"{where}: the file is empty; it needs a header line and data rows")
    return raw


def without_lines(raw: bytes, lines: Collection[int], where: str) -> bytes:
    """Return the text without the lines that have these numbers. Lines count from 1.

    Raises:
        UsageError: if the file does not have one of the lines, or if no text is left.
    """
    if not lines:
        return raw
    last, count = max(lines), raw.count(b"\n") + 1
    if last > count:
        raise UsageError(f"{where}: cannot skip line {last}: the file has {count} lines; correct [[skip_rows]]")
    pieces = raw.split(b"\n", last)
    kept_lines = (line for number, line in enumerate(pieces[:last], 1) if number not in lines)
    remaining = b"\n".join([*kept_lines, *pieces[last:]])
    if not remaining.strip():
        raise UsageError(f"{where}: every line is skipped; correct [[skip_rows]]")
    return remaining


def spaces_to_tabs(raw: bytes) -> bytes:
    """Return text with each run of spaces and tabs replaced by one tab.

    Runs at the beginning and at the end of a line are removed. Runs within quotes are unchanged.
    """
    if b'"' not in raw:
        return re.sub(rb"[ \t]+", b"\t", re.sub(rb"(?m)^[ \t]+|[ \t]+(?=\r?$)", b"", raw))
    pieces = rb'("(?:[^"]|"")*")|(?m:^[ \t]+|[ \t]+(?=\r?$))|[ \t]+'
    return re.sub(pieces, lambda match: match[1] or (b"" if _is_at_line_edge(match) else b"\t"), raw)


def _is_at_line_edge(match: re.Match[bytes]) -> bool:
    """Whether a match is at the beginning or at the end of a line."""
    previous_byte = match.string[match.start() - 1 : match.start()] if match.start() else b"\n"
    return previous_byte == b"\n" or match.string[match.end() : match.end() + 1] in (b"", b"\r", b"\n")


def _wide_without_mark(raw: bytes) -> str:
    """Return the probable UTF-16 encoding of text without a byte-order mark, or "" if it does not look like UTF-16."""
    start = raw[:1000]
    if len(start) < 4 or 5 * start.count(0) < 2 * len(start):
        return ""
    return "utf-16-le" if not any(start[1:8:2]) else "utf-16-be" if not any(start[0:8:2]) else ""


def is_utf8(path: Path) -> bool:
    """Whether a file is UTF-8 text without NUL bytes."""
    try:
        raw = path.read_bytes()
    except OSError:
        return False
    return b"\0" not in raw and _is_utf8(raw)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def has_plain_line_ends(raw: bytes) -> bool:
    """Whether each carriage return is followed by a line feed."""
    return b"\r" not in raw or raw.count(b"\r") == raw.count(b"\r\n")


def _as_utf8(raw: bytes, encoding: str, where: str) -> bytes:
    codec = codecs.lookup(encoding).name
    if codec == "utf-16" and not raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = _wide_without_mark(raw) or encoding  # otherwise Python would use the byte order of the machine
    if codec == "iso8859-1" and (byte := re.search(rb"[\x80-\x9f]", raw)) and not _is_utf8(raw):
        raise UsageError(
            f"{where}: {_line_place(raw, byte.start())}: not {encoding} text (byte 0x{byte[0].hex()} is not a letter); "
            "if it is cp1252, the encoding of Western Windows, use [[encoding=cp1252]]"
        )
    if not codec.startswith("utf") and not raw.isascii() and _is_utf8(raw):
        letter = next(letter for letter in raw.decode("utf-8") if not letter.isascii())
        other = letter.encode("utf-8").decode(encoding, "replace")
        option = setting("encoding", encoding)
        text = f"{where}: the file is UTF-8 text, but {option} reads its {letter!r} as {other!r}"
        warnings.warn(f"{text}; leave [[encoding]] out", BnnzooWarning, stacklevel=4)
    try:
        return raw.decode(encoding).encode("utf-8")
    except (UnicodeError, ValueError) as error:
        raise UsageError(
            f"{where}: not {encoding} text ({' '.join(str(error).split())[:100]}); use another [[encoding]]"
        ) from error


def _check_utf8(raw: bytes, where: str, *, has_options: bool) -> None:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        try:
            raw.decode("cp1252")
            guess = "[[encoding=cp1252]] (Western Windows)"
        except UnicodeDecodeError:
            guess = "[[encoding=latin-1]]"
        option = f", or name its encoding, for instance {guess}" if has_options else ""
        raise UsageError(
            f"{where}: {_line_place(raw, error.start)}: not UTF-8 (byte 0x{raw[error.start]:02x}); "
            f"save the file as UTF-8{option}"
        ) from error


def _line_place(raw: bytes, position: int) -> str:
    """Return the place of a byte for a message. Every line of the file below the first one counts as a row."""
    row = raw.count(b"\n", 0, position)
    return f"row {row}" if row else "header"
