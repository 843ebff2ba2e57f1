"""Write the tables of the reference problems from a folder of raw files: `python rows.py FOLDER`.

FOLDER contains `uci/NAME/data.txt` (columns separated by white space, the target last) and `tabular/airfoil.csv`.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

ROWS = Path(__file__).parents[1] / "bnnzoo_references" / "rows"


def main(folder: Path) -> None:
    """Write one compressed CSV file without a header for each table."""
    for name in ("boston", "energy", "wine", "yacht"):
        _write(name, np.loadtxt(folder / "uci" / name / "data.txt"))
    _write("airfoil", np.loadtxt(folder / "tabular" / "airfoil.csv", delimiter=",", skiprows=1))


def _write(name: str, table: np.ndarray) -> None:
    text = "\n".join(",".join(f"{value:.10g}" for value in row) for row in table) + "\n"
    # A fixed time stamp: the same rows give the same bytes.
    (ROWS / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
