"""Print the table of the stored references of docs/references.md: `python table.py`."""

from __future__ import annotations

from bnnzoo_references import PROBLEMS

import bnnzoo
from bnnzoo.plugins import registry
from bnnzoo.plugins.entry_files import file_of

HEADER = ("reference", "parameters", "rows", "starts", "draws", "R-hat", "ESS", "kept draws", "status")


def main() -> None:
    """Print one row per reference, from the attributes of its file."""
    print(f"| {' | '.join(HEADER)} |\n|---|{'---:|' * (len(HEADER) - 2)}---|")
    for name in PROBLEMS:
        print(f"| {' | '.join(row(name))} |")


def row(name: str) -> list[str]:
    """Return the cells of the row for the reference `name`."""
    run = bnnzoo.open(file_of(registry.find(registry.REFERENCES, name)))
    about = run.attributes
    starts, kept = run.predictor.record.shape
    counts = [about[f"reference_{key}"] for key in ("parameters", "draws")]
    return [
        f"`{name}`",
        str(counts[0]),
        str(about["rows"]),
        str(starts),
        str(counts[1]),
        f"{about['reference_rhat']:.4f}",
        f"{about['reference_ess']:.0f}",
        str(starts * kept),
        str(about["reference_status"]),
    ]


if __name__ == "__main__":
    main()
