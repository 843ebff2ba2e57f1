"""The command `bnnzoo`, and `python -m bnnzoo`.

Streams and signals are set up first, because the other imports take a second.
"""

from __future__ import annotations

from bnnzoo.process import clock, garbage_collection, signals, standard_streams


def main() -> None:
    """Run the command line."""
    clock.set_run_start()
    standard_streams.protect_standard_streams()
    signals.handle_signals()
    garbage_collection.relax_garbage_collection()
    from bnnzoo import cli

    cli.main()


if __name__ == "__main__":
    main()
