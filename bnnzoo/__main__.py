"""The command `bnnzoo`, and `python -m bnnzoo`. Signals first: all else takes a second to import."""

from __future__ import annotations

from bnnzoo import signals


def main() -> None:
    """Run the command line."""
    signals.take_over()
    from bnnzoo import cli

    cli.main()


if __name__ == "__main__":
    main()
