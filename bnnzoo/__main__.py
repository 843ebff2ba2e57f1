"""The command `bnnzoo`, and `python -m bnnzoo`.

Streams and signals are set up first, because the other imports take a second.
"""

from __future__ import annotations

from bnnzoo import clock, collector, signals, streams


def main() -> None:
    """Run the command line."""
    clock.begin()
    streams.secure()
    signals.take_over()
    collector.spare()
    from bnnzoo import cli

    cli.main()


if __name__ == "__main__":
    main()
