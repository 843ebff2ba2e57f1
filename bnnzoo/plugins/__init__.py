"""Plugins: the hooks, the built-in entries, discovery, and lookup by name."""
