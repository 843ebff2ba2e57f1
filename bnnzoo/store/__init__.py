"""A run on disk."""

from bnnzoo.store.writer import (
    Attributes,
    Store,
    add_groups,
    check_room,
    open_tree,
    parts_folder,
    read_header,
    read_static,
    refuse_existing,
)

__all__ = [
    "Attributes",
    "Store",
    "add_groups",
    "check_room",
    "open_tree",
    "parts_folder",
    "read_header",
    "read_static",
    "refuse_existing",
]
