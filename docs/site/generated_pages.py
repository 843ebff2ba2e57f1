"""Sphinx extension: write the generated pages, and add the doors to the first page."""

from __future__ import annotations

from typing import Any

import method_pages
import repository_pages


def write_pages(app: Any) -> None:
    """Write the pages of the methods and of the repository before Sphinx looks for pages."""
    del app
    repository_pages.write_pages()
    method_pages.write_pages()


def adapt_page(app: Any, name: str, source: list[str]) -> None:
    """Adapt a Markdown page of docs/ to the site: the doors on the first page, and links that leave docs/."""
    path = repository_pages.DOCS / f"{name}.md"
    if "/" in name or not path.exists():
        return
    text = repository_pages.rewrite_links(source[0], path)
    if name == app.config.root_doc:
        doors = (repository_pages.DOCS / "site" / "doors.md").read_text(encoding="utf-8")
        _, _, rest = text.partition("\n")
        text = f"{doors}\n## All pages\n{rest}"
        app.env.note_dependency(str(repository_pages.DOCS / "site" / "doors.md"))
    source[0] = text


def setup(app: Any) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", write_pages, priority=0)
    app.connect("source-read", adapt_page)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
