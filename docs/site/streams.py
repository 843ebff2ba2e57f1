"""Sphinx extension: pieces of printed output are joined as they were printed.

MyST-NB ends each piece with a new line, also in the middle of a word.
"""

from __future__ import annotations

from typing import Any

import myst_nb.core.render


def join_streams(outputs: list[Any]) -> list[Any]:
    """Return the outputs of a cell with all pieces of a stream in the place of its first piece."""
    joined: list[Any] = []
    first_pieces: dict[str, Any] = {}
    for output in outputs:
        if output["output_type"] != "stream":
            joined.append(output)
        elif output["name"] in first_pieces:
            first_pieces[output["name"]]["text"] += output["text"]
        else:
            first_pieces[output["name"]] = output.copy()
            joined.append(first_pieces[output["name"]])
    return joined


def setup(app: Any) -> dict[str, Any]:
    """Register the extension."""
    del app
    myst_nb.core.render.coalesce_streams = join_streams
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
