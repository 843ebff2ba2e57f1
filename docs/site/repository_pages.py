"""Pages from the root of the repository and from its plugins, and links that lead from one page to another."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
FOLDER = "repository"

_FENCED_BLOCK = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def document_names() -> dict[Path, str]:
    """Return the name in the site of each page outside of docs/."""
    paths = [*ROOT.glob("*.md"), *ROOT.glob("plugins/*/README.md"), *ROOT.glob("plugins/*/docs/*.md")]
    return {path: f"{FOLDER}/{_short_name(path)}" for path in sorted(paths)}


def _short_name(path: Path) -> str:
    """Return a name for the address of a page: `bnnzoo-federated` for its README, `federated` for its page."""
    return path.parent.name if path.name == "README.md" and path.parent != ROOT else path.stem.lower()


def rewrite_links(text: str, source: Path) -> str:
    """Replace links to other pages, relative to the file `source`, by links to documents of the site."""
    names = document_names()

    def rewrite(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        if "://" in path:
            return match[0]
        target = (source.parent / path).resolve()
        if target in names:
            return f"](/{names[target]}.md{anchor})"
        if target.is_relative_to(DOCS):
            return f"](/{target.relative_to(DOCS).as_posix()}{anchor})"
        return match[0]

    pieces = _FENCED_BLOCK.split(text)
    return "".join(piece if number % 2 else _LINK.sub(rewrite, piece) for number, piece in enumerate(pieces))


def write_pages() -> None:
    """Copy the pages outside of docs/ into the folder `repository`, with links to the documents of the site."""
    for path, name in document_names().items():
        write_if_changed(DOCS / f"{name}.md", rewrite_links(path.read_text(encoding="utf-8"), path))


def write_if_changed(path: Path, text: str) -> None:
    """Write a page unless it already has this text, so that Sphinx reads only changed pages again."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    os.makedirs(path.parent, exist_ok=True)
    path.write_text(text, encoding="utf-8")
