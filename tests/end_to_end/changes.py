"""Changes to the documentation's blocks before they are typed, with reasons. `test_pages.py` detects stale entries."""

# ruff: noqa: E501  (lines of the documentation as they are)
from __future__ import annotations

import glob
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd

import bnnzoo
from bnnzoo.plugins import registry

ELSEWHERE = {
    "docs/plugins.md": "test_plugins.py types it, with the packages installed",
    "docs/bench.md": "plugins/bnnzoo-bench/tests/test_bench_docs.py types it, with the plugin loaded",
    "docs/references.md": "plugins/bnnzoo-references/tests/test_reference_docs.py types it, with the plugin loaded",
}
"""Pages whose blocks another test types."""

FULL_LENGTH = {
    "docs/evidence.md": "its blocks assert numbers that a short run does not reach",
    "docs/teaching.md": "its blocks assert numbers that a short run does not reach",
}
"""Pages whose runs keep their lengths."""

LONGER = {"docs/python.md": {"draws": 20}}
"""Larger lengths that a page needs: ArviZ's loo requires at least 25 draws of all chains."""

_CLUSTER = "needs several machines"
_MINUTES = "takes minutes, and data from elsewhere"
_MNIST = "needs the files of MNIST"
NOT_TYPED: dict[tuple[str, str], str] = {
    (
        "README.md",
        "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/bnnzoo sample mdn penalty -o run.nc      # sample the example data of the model mdn",
    ): "installs from the network",
    (
        "README.md",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest                         # the tests",
    ): "installs from the network",
    (
        "README.md",
        "bnnzoo sample MODEL SAMPLER          bnnzoo sample MODEL SAMPLER --help          bnnzoo list",
    ): "a pattern, not a command",
    (
        "docs/command-line.md",
        "srun -N 4 bnnzoo sample mlp nuts --data rows.csv --chains 16 --distributed -o shared/run.nc",
    ): _CLUSTER,
    (
        "docs/command-line.md",
        "bnnzoo sample mlp nuts --data rows.csv --coordinator 10.0.0.1:8790 --processes 2 --rank 0 -o shared/run.nc   # there",
    ): _CLUSTER,
    (
        "docs/command-line.md",
        "bnnzoo sample mlp nuts --data rows.csv --coordinator 10.0.0.1:8790 --processes 2 --rank 1 -o shared/run.nc   # elsewhere",
    ): _CLUSTER,
    ("docs/command-line.md", "dask scheduler"): _CLUSTER,
    ("docs/command-line.md", "dask worker tcp://HOST:8786 --nthreads 1"): _CLUSTER,
    ("docs/command-line.md", "bnnzoo zoo run 'mlp.*' --seeds 0-3 -o runs --scheduler tcp://HOST:8786"): _CLUSTER,
    (
        "docs/command-line.md",
        "bnnzoo sample mlp penalty --data big.parquet --stochastic identified --scheduler tcp://HOST:8786 -o big.nc",
    ): _CLUSTER,
    ("docs/command-line.md", "bnnzoo evaluate big.nc --data test.parquet --scheduler tcp://HOST:8786"): _CLUSTER,
    (
        "docs/command-line.md",
        "bnnzoo zoo run mdn.nuts",
    ): "a process of its own at full length: minutes; tests/fleet/test_fleet.py has short ones",
    ("docs/command-line.md", "bnnzoo zoo run 'airfoil-*' --data airfoil.csv --seed 1 -o runs"): _MINUTES,
    ("docs/command-line.md", "bnnzoo zoo run mlp.nuts houses.yaml --seeds 0-19 -o runs --workers 4"): _MINUTES,
    ("docs/command-line.md", "bnnzoo new model waves --into ~/plugins"): "writes into the home folder",
    (
        "docs/correctness.md",
        "python -m tests.tools.machine_mutants mutants.jsonl --sample 300 --minutes 120",
    ): "takes two hours",
    (
        "docs/gallery.md",
        "bnnzoo sample --config mnist-mlp-ensemble --chains 1 --data mnist -o mnist-descent.nc",
    ): _MNIST,
    ("docs/gallery.md", "bnnzoo sample --config mnist-mlp-sgld --data mnist -o mnist.nc"): _MNIST,
    ("docs/gallery.md", "bnnzoo plot mnist-descent.nc mnist.nc -o gallery-mnist-noise.png --only ood"): _MNIST,
    ("docs/gallery.md", "bnnzoo plot mnist.nc -o gallery-mnist-ood.png --only ood --ood kmnist-test-imgs.npz"): _MNIST,
    (
        "docs/recipes.md",
        "bnnzoo zoo run steps.yaml -o runs --workers 2",
    ): "processes of their own at full length; tests/fleet/test_fleet.py has short ones",
    (
        "docs/recipes.md",
        "bnnzoo zoo run linear.mala linear.nuts --config steps.yaml -o runs",
    ): "processes of their own at full length",
    (
        "plugins/bnnzoo-blackjax/README.md",
        "class Multinomial(AbstractKernel):",
    ): "a fragment of a plugin; it has no imports",
    ("docs/recipes.md", "@hookimpl"): "a fragment of a plugin; test_plugins.py types whole ones",
    ("docs/zoo.md", "bnnzoo zoo run 'airfoil-*' --data airfoil.csv"): _MINUTES,
    (
        "docs/zoo.md",
        "python benchmarks/airfoil.py airfoil.csv --bde PYTHON      # the same with bde, in an environment of its own",
    ): _MINUTES,
    (
        "docs/zoo.md",
        "python benchmarks/own_data.py FOLDER --bde PYTHON      # NAME.csv anywhere below, the target last; the Python of an environment with bde",
    ): _MINUTES,
    ("docs/zoo.md", "python benchmarks/own_data.py FOLDER --bde PYTHON --budget 3s"): _MINUTES,
    ("docs/zoo.md", "python benchmarks/low_rank.py UCI10 energy airfoil housing"): _MINUTES,
    (
        "docs/zoo.md",
        "python benchmarks/coordinates.py UCI10 autompg stock housing forest --maps none whitened --seeds 1",
    ): _MINUTES,
    (
        "docs/zoo.md",
        "python benchmarks/coordinates.py UCI10 autompg --sampler nuts --maps none whitened --seeds 1",
    ): _MINUTES,
    (
        "docs/zoo.md",
        "python benchmarks/coordinates.py UCI10 servo housing --likelihood heteroscedastic --maps none whitened --seeds 1",
    ): _MINUTES,
    (
        "docs/zoo.md",
        "python benchmarks/coordinates.py UCI10 servo housing yacht --likelihood heteroscedastic "
        '--maps whitened "whitened, light tails" --seeds 1',
    ): _MINUTES,
    ("docs/zoo.md", "python benchmarks/priors.py UCI10 friedman servo concreteslump"): _MINUTES,
    ("docs/zoo.md", "python benchmarks/trajectories.py UCI10 concreteslump --hidden 16"): _MINUTES,
}
"""Shell lines, and first lines of Python blocks, that are not typed, by page."""
_FEDERATED = ("plugins/bnnzoo-federated/README.md", "plugins/bnnzoo-federated/docs/federated.md")
for _page in _FEDERATED:
    NOT_TYPED[_page, "bnnzoo party serve a --data a.csv --batch-size 60 --listen tcp://10.0.0.1:8801"] = _CLUSTER
    NOT_TYPED[
        _page,
        "bnnzoo party serve a --data a.csv --public limits.csv --epsilon 4 --delta 1e-5 --clip 0.02 --noise-sd 2",
    ] = "answers until it is stopped; the plugin's tests type it"
    NOT_TYPED[_page, "bnnzoo party log a"] = "needs a party that served; the plugin's tests have one"

_POWERS = " && ".join(
    f"bnnzoo sample linear nuts --likelihood-power {power} --init prior -o power-{number}.nc"
    for number, power in enumerate((0, 0.1, 1))
)
INSTEAD: dict[tuple[str, str], tuple[str, str]] = {
    ("docs/evidence.md", "for j in 0 1 2 3 4 5 6 7 8 9 10; do"): (_POWERS, "three powers of a loop of the shell"),
    (
        "docs/evidence.md",
        'bnnzoo sample linear nuts --likelihood-power $(python3 -c "print(($j / 10) ** 5)") --init prior -o power-$j.nc',
    ): ("", "the loop's inside"),
    ("docs/evidence.md", "done"): ("", "the loop's end"),
    ("docs/command-line.md", "bnnzoo sample resnet sgld --keep predictions --keep-at new.npz -o run.nc"): (
        "bnnzoo sample resnet sgld --keep predictions -o run.nc",
        "the example data of the model are images, and no file of them is at hand",
    ),
}
"""Lines that are replaced by another line, with the reason."""

_TESTS = ["--chains", "32", "--warmup", "20", "--draws", "64", "--target", "gaussian"]
SHORTER: dict[tuple[str, ...], list[str]] = {
    ("check", "sampler"): _TESTS,
    ("check", "model", "mlp", "--model.hidden", "5", "--sbc"): ["--replicates", "32", "--warmup", "5", "--thin", "1"],
    ("audit",): ["--seconds", "1"],
    ("distill",): ["--inputs", "300", "--steps", "20", "--force"],
}
"""Options that are added to a command, by its first words, so that it takes only seconds."""

NO_VERDICT = "of so few draws there is no verdict"
NO_WEIGHTS = "so few draws have no reliable importance weights"
CODES: dict[tuple[str, ...], tuple[int, str]] = {
    ("check", "sampler"): (3, NO_VERDICT),
    ("check", "model", "mlp", "--model.hidden", "5", "--sbc"): (3, NO_VERDICT),
    ("evaluate", "run.nc", "--interval", "conformal"): (2, NO_WEIGHTS),
    ("predict", "run.nc", "--data", "new.csv", "--interval", "conformal"): (2, NO_WEIGHTS),
    ("diagnose", "run.nc", "--gate"): (3, "so few draws have not converged"),
    ("resume", "run.nc"): (2, "the page's run is complete"),
    ("sample", "mlp", "nuts", "--data"): (2, "the console blocks show errors"),
    ("show", "--config", "r.yaml"): (2, "the console blocks show errors"),
}
"""Exit codes other than 0, by the first words of the command, with the reason."""


def shorter(arguments: list[str]) -> list[str]:
    """Return the command with the options of `SHORTER`."""
    return [*arguments, *next((more for start, more in SHORTER.items() if tuple(arguments[: len(start)]) == start), [])]


def codes(page: str, command: str) -> set[int]:
    """Return the exit codes with which a command may end."""
    del page
    arguments = shlex.split(command)[1:]
    return {0, *(code for start, (code, _) in CODES.items() if tuple(arguments[: len(start)]) == start)}


def python(page: str, text: str) -> str:
    """Return a Python block with addresses on other machines replaced by parties in this process."""
    if page not in _FEDERATED:
        return text
    # Their chains do not start where the lengths of others are made shorter.
    text = re.sub(r"chains=8.*\)$", "chains=2, warmup=5, draws=5, force=True)", text, flags=re.MULTILINE)
    if "tcp://" not in text:
        return text
    inside = 'parties = {name: Party(f"{name}.csv", name, batch_size=60) for name in "abc"}'
    return "from bnnzoo_federated import Party\n" + re.sub(r"^parties = .*$", inside, text, flags=re.MULTILINE)


_WRITTEN = re.compile(r"""(?:-o|--out|>) +(\S+)|\bout=["']([^"']+)""")
"""Files that a command or a call writes."""


def prepare(page: str, text: str) -> None:
    """Make the files that the page assumes to exist, if the reader has not made them."""
    written = [name for pair in _WRITTEN.findall(text) for name in pair]
    for name in re.findall(r"[\w.-]+\.(?:csv|tsv|npz|parquet|nc)\b", text):
        if not Path(name).exists() and name not in written and "{" not in name:
            _make(page, text, name)
    for pattern in re.findall(r"\S+\*\.nc", text):
        if not glob.glob(pattern):
            Path(pattern).parent.mkdir(exist_ok=True)
            for seed in "01":
                _make(page, text, pattern.replace("*", seed))
    for name in "abc" if page in _FEDERATED else ():
        _make(page, text, f"{name}.csv")


def _make_export(path: Path) -> None:
    """Write a table with semicolons and decimal commas, in a Windows encoding."""
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"größe": rng.normal(size=60), "preis": rng.normal(size=60)})
    rows.to_csv(path, index=False, sep=";", decimal=",", encoding="utf-8" if path.stem == "export" else "cp1252")


def _make_gauge(path: Path) -> None:
    """Write a table with ten lines of remarks above the header and a row of units below it."""
    rows = pd.DataFrame({"flow": np.arange(60.0), "level": np.sin(np.arange(60.0))})
    lines = rows.to_csv(index=False, sep="\t").splitlines()
    path.write_text("\n".join([*["# remark"] * 10, lines[0], "l/s\tm", *lines[1:], ""]))


def _make_assay(path: Path) -> None:
    """Write levels of which one in five is below the limit of detection."""
    rng = np.random.default_rng(1)
    dose = rng.uniform(0, 4, 60)
    level = (dose + rng.normal(size=60)).round(2)
    cells = ["<1" if value < 1 else str(value) for value in level]
    pd.DataFrame({"dose": dose, "level": cells}).to_csv(path, index=False)


def _make_claims(path: Path) -> None:
    """Write counts, the years of observation, and an input."""
    rng = np.random.default_rng(1)
    age, years = rng.normal(size=60), rng.uniform(0.5, 2, 60)
    claims = rng.poisson(years * np.exp(0.5 * age))
    pd.DataFrame({"age": age, "years": years, "claims": claims}).to_csv(path, index=False)


_SPECIAL = {
    "export.csv": _make_export,
    "old.csv": _make_export,
    "gauge.tsv": _make_gauge,
    "assay.csv": _make_assay,
    "claims.csv": _make_claims,
}
"""Files whose content is described by a page."""


def _make(page: str, text: str, name: str) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    if name in _SPECIAL:
        _SPECIAL[name](Path(name))
    elif name.endswith(".nc"):
        _make_run(Path(name), is_for_evidence="bnnzoo evidence" in text)
    elif name == "x.npz":
        np.savez(name, x=rng.normal(size=(60, 2)))
    elif name in ("new.csv", "test.csv", "x.csv") and page != "docs/recipes.md":
        x = rng.uniform(-1, 1, 20)
        pd.DataFrame({"x0": x, "y": np.sin(3 * x)}).to_csv(name, index=False)
    elif name.endswith((".csv", ".parquet")):
        size, age = rng.uniform(50, 150, (2, 200))
        noise = rng.normal(size=200)
        rows = pd.DataFrame({"size": size, "age": age, "price": 2 * size - age + 20 * noise})
        rows.to_parquet(name) if name.endswith(".parquet") else rows.to_csv(name, index=False)


_SAMPLERS_BY_FILE = {"penalty": "penalty", "nuts": "nuts", "sgld": "sgld"}


def _make_run(path: Path, *, is_for_evidence: bool) -> None:
    """Make a short run for a file name, which gives the sampler, the seed or the likelihood power."""
    number = next(iter(re.findall(r"\d+", path.stem)), "0")
    stem = path.stem.partition("-")[0]
    is_power, is_plain = stem == "power", stem.isdigit()
    # Only draws of a few samplers give the evidence from a single run.
    usual = "importance" if is_for_evidence and not is_power else "nuts"
    sampler = _SAMPLERS_BY_FILE.get(stem, usual)
    model = "linear" if is_power or is_plain else "mdn" if "mdn" in registry.entries("models") else "linear"
    options = {"likelihood_power": (0.0, 0.1, 1.0)[int(number)], "init": "prior"} if is_power else {"seed": int(number)}
    if stem == "moons":  # rows can be drawn from a density
        model, options = "density", {"data": "two-moons", "task": "density"}
    bnnzoo.sample(model, sampler, warmup=5, draws=5, chains=2, thin=1, start_steps=250, out=path, **options)
