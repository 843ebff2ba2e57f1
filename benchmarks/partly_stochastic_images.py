"""Partly stochastic networks against other methods on MNIST, at equal seconds.

    python benchmarks/partly_stochastic_images.py MNIST KMNIST.npz [--budget 60s] [--only identified laplace]

MNIST is a folder with the four IDX files. KMNIST is a file of unfamiliar images (another alphabet). Every method
samples or approximates the posterior of a perceptron with one hidden layer of 50 units (39 760 parameters). The command
of each method is `bnnzoo sample mlp METHOD --budget ...`, so the budget includes training and warm-up; the scores are
those of `bnnzoo evaluate --ood`. AUROC is for separating the test digits from the unfamiliar images by the largest
predicted probability, and by the entropy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bnnzoo

METHODS = {
    "identified": ("penalty", "--stochastic", "identified"),
    "linearised": ("penalty", "--stochastic", "linearised"),
    "last layer": ("penalty", "--stochastic", "last"),
    "one trained network": ("ensemble", "--chains", "1"),
    **{name: (name,) for name in ("laplace", "swag", "ensemble", "sgld", "nuts")},
}
"""The sampler and further options of each method."""
SCORES = ("accuracy", "nll", "ece", "ood_auroc_max_probability", "ood_auroc_entropy")


def command(*words: str) -> str:
    """Run bnnzoo and return what it prints.

    Raises:
        subprocess.CalledProcessError: if the command fails.
    """
    process = subprocess.run([sys.executable, "-m", "bnnzoo", *words], capture_output=True, text=True)
    if process.returncode not in (0, 3):  # 3: the chains have not converged
        raise subprocess.CalledProcessError(process.returncode, words, process.stdout, process.stderr)
    return process.stdout


def row(name: str, arguments: argparse.Namespace, run: Path) -> str:
    """Return the line of the table of one method; if it fails, the last line of its message."""
    sampler, *options = METHODS[name]
    sizes = ("--data", str(arguments.mnist), "--model.hidden", "[50]", "--budget", arguments.budget)
    start = time.perf_counter()
    try:
        command("sample", "mlp", sampler, *options, *sizes, "-o", str(run), "-q")
    except subprocess.CalledProcessError as error:
        return f"| {name} | failed: {error.stderr.strip().splitlines()[-1]} |"
    seconds = time.perf_counter() - start
    scores = json.loads(command("evaluate", str(run), "--ood", str(arguments.unfamiliar), "--json"))
    verdict = str(bnnzoo.open(run).attributes["verdict"]).split(":")[0]
    cells = " | ".join(f"{scores[score]:.4f}" for score in SCORES)
    return f"| {name} | {cells} | {seconds:.0f} | {verdict} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist", type=Path)
    parser.add_argument("unfamiliar", type=Path)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    arguments = parser.parse_args()
    print("| method | accuracy | NLL | ECE | AUROC, probability | AUROC, entropy | seconds | verdict |")
    print("|---" * 8 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            print(row(name, arguments, Path(folder) / f"{name.replace(' ', '-')}.nc"), flush=True)


if __name__ == "__main__":
    main()
