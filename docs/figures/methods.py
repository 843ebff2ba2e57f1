"""The pictures of the samplers' pages: the same small network by each sampler, beside a long NUTS run.

    python docs/figures/methods.py docs/images [SAMPLER ...]

The network has one hidden layer of 16 units and is fitted to the data set `tutorial-sine`. Each sampler has 15 seconds
of warm-up and draws with its default settings. A sampler that cannot sample a network (`gibbs`, `importance`,
`rejection`) is not drawn. The numbers behind the pictures are printed: the largest difference of the two bands, and the
verdict.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

import bnnzoo
from bnnzoo.errors import BnnzooError
from bnnzoo.plugins import registry

PROBLEM: dict[str, Any] = {"data": "tutorial-sine", "likelihood": "gaussian", "prior": "fan-in", "test_fraction": 0}
MODEL = {"name": "mlp", "hidden": (16,)}
BUDGET = "15s"
WITHOUT_NETWORK = ("gibbs", "importance", "rejection")


def main(images: Path, *names: str) -> None:
    """Write `method-SAMPLER.png` for the given samplers, by default for all samplers of bnnzoo."""
    warnings.simplefilter("ignore")
    own = [name for name, entry in registry.entries("samplers").items() if entry.distribution == "bnnzoo"]
    with TemporaryDirectory() as folder:
        nuts = bnnzoo.sample(MODEL, "nuts", warmup=2000, draws=2000, out=Path(folder) / "nuts (long).nc", **PROBLEM)
        for name in names or [name for name in own if name not in WITHOUT_NETWORK]:
            try:
                run = bnnzoo.sample(MODEL, name, budget=BUDGET, out=Path(folder) / f"{name}.nc", **PROBLEM)
            except BnnzooError as error:
                print(f"{name}: {error}", flush=True)
                continue
            picture = run.plot("band", others=[nuts], band="function", overlay=True)
            path = picture.save(Path(folder) / f"{name}.png")
            with Image.open(path) as image:
                image.convert("RGB").quantize(64).save(images / f"method-{name}.png", optimize=True)
            print(f"{name}: {run.summary()['verdict']}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
