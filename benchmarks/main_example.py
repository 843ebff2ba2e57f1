"""The main example, `bnnzoo sample mdn penalty`, and NUTS on the same rows with the same model and prior.

    python benchmarks/main_example.py [--warmup 150] [--draws 100]

Both runs have four chains in one process each, one after the other. The run of `penalty` uses its recipe. NUTS uses all
200 000 rows in each gradient, and its chains start from trained networks, as usual. Its numbers of steps are small,
because a draw takes seconds; R-hat shows whether they suffice. ESS is the smallest bulk effective sample size of the
predictive means and log standard deviations, over all chains. "ESS/s, sampling" uses the seconds of sampling only.
"ESS/s, all" uses all seconds of the command, with compilation and training. The last lines compare the predictions of
the two runs between x = -3 and 3: the largest difference of the means, in epistemic standard deviations, and the range
of the ratio of these standard deviations.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import bnnzoo

COMMAND = Path(sys.executable).with_name("bnnzoo")
COLUMNS = (
    *("sampler", "rows per step", "draws", "ESS", "R-hat", "seconds of sampling", "seconds, all"),
    *("ESS/s, sampling", "ESS/s, all"),
)
SAME_PROBLEM = ["--data", "mdn-hills", "--model.hidden", "4", "--model.components", "1"]


def measure(words: list[str], out: Path) -> tuple[bnnzoo.Run, float]:
    """Type a command, and return its run and the seconds that it took."""
    began = time.perf_counter()
    subprocess.run([COMMAND, "sample", "mdn", *words, "-o", out, "--quiet"], check=True)
    return bnnzoo.open(out), time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--draws", type=int, default=100)
    given = parser.parse_args()
    lengths = ["--warmup", str(given.warmup), "--draws", str(given.draws)]
    commands = {"penalty": ["penalty"], "nuts": ["nuts", *SAME_PROBLEM, *lengths]}
    grid = np.linspace(-3, 3, 61)[:, None]
    predictions, rates = {}, {}
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, words in commands.items():
            run, seconds = measure(words, Path(folder, f"{name}.nc"))
            diagnosis, sampling = run.diagnose(), float(run.attributes["seconds_sampling"])
            ess, draws = diagnosis["ess_bulk"], diagnosis["chains"] * diagnosis["draws"]
            rates[name] = ess / sampling, ess / seconds
            rows = 500 if name == "penalty" else 200_000
            print(
                f"| {name} | {rows} | {draws} | {ess:.0f} | {diagnosis['rhat']:.3f} | {sampling:.1f} | {seconds:.0f} | "
                f"{rates[name][0]:.3g} | {rates[name][1]:.3g} |",
                flush=True,
            )
            predictions[name] = run.predict(grid)
    ratios = [first / second for first, second in zip(rates["penalty"], rates["nuts"], strict=True)]
    print(f"\npenalty / nuts: {ratios[0]:.3g} (sampling), {ratios[1]:.3g} (all)")
    first, second = predictions["penalty"], predictions["nuts"]
    sd = np.asarray(second["epistemic_sd"])
    difference = np.abs(np.asarray(first["mean"]) - np.asarray(second["mean"])) / sd
    sd_ratio = np.asarray(first["epistemic_sd"]) / sd
    print(f"largest difference of the means: {difference.max():.2f} epistemic sd")
    print(f"ratio of the epistemic sd: {sd_ratio.min():.2f} to {sd_ratio.max():.2f}, median {np.median(sd_ratio):.2f}")


if __name__ == "__main__":
    main()
