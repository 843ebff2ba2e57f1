"""Rule-based mistakes (`mutator.py`) in samplers and diagnostics, and whether a test detects them.

    python -m tests.tools.machine_mutants TABLE [--sample 300] [--seed 0] [--minutes 120] [--jobs 1]
        [--only 'samplers/*']

TABLE has one line per mutant and can be continued: mutants in it are not run again, a larger sample extends a smaller
one, and a change of a source leaves the sample of all other sources unchanged. Each mutant runs in its own process, on
a copy of the tree in a temporary folder, with the tests of the default suite that `TESTS` names for its module, until
the first test fails; that test must pass without the mutant. Tests that reach the mutant's line run first, the fastest
before the others. `reached.py` measures this once; the result is stored beside TABLE, as TABLE.reached. An outdated
measurement only costs time. `equivalent_mutants.toml` explains survivors that no test can detect. The exit code is 1 if
any other survivor is left.

mutmut and cosmic-ray are not suitable. mutmut wraps each function, which Equinox's abstract methods and the shape
checks do not allow, and it forks a process that runs JAX. cosmic-ray has one list of tests for all modules.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .mutator import Change, changes

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.toml"

SAME = ("module", "text", "before", "after")
"""Fields that identify mutants of `equivalent_mutants.toml` even if their line has moved."""

NAME = (*SAME[:2], "kind", *SAME[2:], "number")
"""Fields that identify a mutant of a table."""

TRAINED = "likelihood_power approximate"
TESTS = {
    "samplers/sgmcmc/auto_steps": "auto_steps",
    "samplers/subsampled/batch_sizes": "regime_advice batch_sizes_auto penalty_identities",
    "samplers/common/climb": f"fit_numbers {TRAINED}",
    "samplers/common/damped": "subspace",
    "samplers/mcmc/conjugate": "gibbs",
    "samplers/common/triangle": "gibbs evidence",
    "samplers/common/control_variate": "batch_numbers control_variates likelihood_power langevin",
    "samplers/common/directions": "subspace",
    "samplers/common/spectrum": "subspace",
    "samplers/common/subspace_iteration": "subspace",
    "samplers/subsampled/rows_needed": "subspace",
    "samplers/common/curvature": f"fit_numbers {TRAINED}",
    "samplers/gaussian": "gaussian",
    "samplers/common/gradient_noise": "batch_numbers gradient_bias stochastic_gradient",
    "samplers/subsampled/influence": "batch_numbers guard row_probabilities",
    "samplers/variational/pre_activations": f"fit_numbers {TRAINED}",
    "samplers/mcmc/log_scale": "log_scale gibbs",
    "samplers/subsampled/noise_penalty": "batch_numbers penalty_identities guard control_variates",
    "samplers/subsampled/penalty_state": "batch_numbers penalty_identities",
    "samplers/mcmc/numpyro_kernels": "sampler_numbers statistics conjugate run",
    "samplers/common/preconditioner": "batch_numbers langevin control_variates batch_sizes_auto conjugate",
    "samplers/independent/proposals": "fit_numbers proposals",
    "samplers/subsampled/regime": "regime_advice guard statistics",
    "samplers/subsampled/row_probabilities": "batch_numbers row_probabilities guard",
    "samplers/sgmcmc/schedule": "stochastic_gradient",
    "samplers/sgmcmc/stochastic_gradient": "batch_numbers likelihood_power stochastic_gradient sgld_bias gradient_bias",
    "samplers/variational/training": f"fit_numbers {TRAINED} arrival",
    "samplers/minibatch": "batch_numbers regime_advice",
    "samplers/base": "sampler_numbers statistics abstract_or_final run",
    "samplers/variational/bbb": f"fit_numbers {TRAINED}",
    "samplers/variational/dropout": f"fit_numbers {TRAINED}",
    "samplers/variational/ensemble": TRAINED,
    "samplers/mcmc/gibbs": "sampler_numbers gibbs likelihood_power statistics conjugate run",
    "samplers/mcmc/hmc": "sampler_numbers statistics conjugate run",
    "samplers/independent/importance": "likelihood_power prior_samplers proposals",
    "samplers/kernel": "sampler_numbers penalty_identities nonfinite langevin",
    "samplers/variational/laplace": f"fit_numbers {TRAINED}",
    "samplers/mcmc/mala": "statistics likelihood_power langevin nonfinite batch_independence",
    "samplers/mcmc/isokinetic": "mams mclmc sampler_numbers",
    "samplers/mcmc/mams": "mams sampler_numbers statistics",
    "samplers/mcmc/mclmc": "sampler_numbers mclmc statistics",
    "samplers/mcmc/coordinates": "statistics mams sampler_numbers",
    "samplers/mcmc/low_rank": "low_rank sampler_numbers",
    "samplers/mcmc/metric": "regime_advice mclmc",
    "samplers/mcmc/nuts": "sampler_numbers statistics conjugate run",
    "samplers/subsampled/metropolis": "batch_numbers penalty_identities likelihood_power langevin row_probabilities"
    " batch_independence key_reuse batch_sizes_auto control_variates guard nonfinite statistics",
    "samplers/subsampled/penalty": "penalty_identities statistics",
    "samplers/subsampled/batched": "statistics sampler_numbers",
    "samplers/sgmcmc/psgld": "batch_numbers likelihood_power stochastic_gradient gradient_bias",
    "samplers/mcmc/random_walk": "likelihood_power nonfinite statistics conjugate",
    "samplers/independent/rejection": "fit_numbers likelihood_power prior_samplers proposals",
    "samplers/sgmcmc/sghmc": "batch_numbers likelihood_power stochastic_gradient gradient_bias",
    "samplers/sgmcmc/sgld": "batch_numbers likelihood_power sgld_bias stochastic_gradient gradient_bias",
    "samplers/sgmcmc/sms_ubu": "batch_numbers likelihood_power stochastic_gradient gradient_bias",
    "samplers/statistics": "statistics diagnose",
    "samplers/variational/swag": "batch_numbers fit_numbers regime_advice likelihood_power approximate",
    "posterior/affine": "gibbs mixing",
    "posterior/backend": "posterior_numbers posterior batch_independence penalty_identities run predict",
    "posterior/base": "posterior_numbers posterior batch_independence float32_ratio nonfinite",
    "posterior/censored": "censored",
    "posterior/count_targets": "counts likelihoods",
    "posterior/counts": "counts",
    "posterior/hyperparameter": "posterior_numbers posterior config",
    "posterior/intervals": "censored rounding",
    "posterior/input_weights": "input_weights",
    "posterior/last_layer": "last_layer",
    "posterior/layout": "posterior_numbers layout posterior",
    "posterior/likelihoods": "likelihoods posterior density predict",
    "posterior/marginals": "predictive_distribution",
    "posterior/network": "posterior layout models density batch_invariance",
    "posterior/numpyro": "posterior_numbers numpyro_posterior",
    "posterior/outputs": "posterior_numbers keep_predictions",
    "posterior/passes": "posterior_numbers posterior mesh batch_independence",
    "posterior/permutation": "posterior_numbers permutation",
    "posterior/hashing": "other_directions fit_numbers",
    "posterior/poisson": "counts likelihoods censored",
    "posterior/row_map": "row_shards",
    "posterior/predicting": "numpyro_predictions predict",
    "posterior/ard": "priors",
    "posterior/moments": "sequential",
    "posterior/priors": "priors posterior",
    "posterior/site": "numpyro_predictions",
    "posterior/stochastic": "posterior_numbers stochastic",
    "posterior/subspace": "subspace",
    "evaluation/contents/agreement": "agreement predict",
    "evaluation/audit/audit": "audit_numbers audit",
    "evaluation/audit/audit_result": "audit_outcomes",
    "evaluation/audit/bias": "audit_outcomes audit_numbers",
    "evaluation/formulas/calibration_distance": "verdict_numbers calibration",
    "evaluation/formulas/combination": "mixing",
    "evaluation/formulas/distribution_distances": "distribution_distances reference_distances",
    "evaluation/scores/reference_distances": "reference_distances",
    "evaluation/formulas/rhat": "verdict_numbers diagnose arrival",
    "evaluation/scores/count_tests": "counts",
    "evaluation/predictions/csv_text": "csv",
    "evaluation/convergence/sampler_statistics": "verdict_numbers diagnose",
    "evaluation/convergence/diagnostics": "verdict_numbers diagnose absurd guard prior_samplers",
    "evaluation/convergence/data_distance": "data_distance absurd prior_samplers",
    "evaluation/contents/draws": "effort large_runs predict",
    "evaluation/audit/drift": "audit_numbers audit",
    "evaluation/predictions/thinning": "effort large_runs",
    "evaluation/audit/estimands": "audit_outcomes",
    "evaluation/scores/evaluate": "evaluate",
    "evaluation/evidence/estimators": "evidence_numbers evidence",
    "evaluation/evidence/estimate": "evidence_numbers evidence",
    "evaluation/evidence/power_path": "evidence_numbers evidence",
    "evaluation/convergence/findings": "verdict_numbers diagnose report absurd calibration",
    "evaluation/convergence/outcome": "settling verdict_numbers diagnose mixing auto_steps",
    "evaluation/formulas/settling": "settling",
    "evaluation/formulas/weight_tail": "verdict_numbers prior_samplers",
    "evaluation/convergence/identified": "mixing",
    "evaluation/convergence/remaining_gain": "remaining_gain",
    "evaluation/predictions/loo": "verdict_numbers evaluate",
    "evaluation/formulas/metrics": "verdict_numbers metrics calibration evaluate",
    "evaluation/predictions/noise_scale": "rounding counts verdict_numbers units",
    "evaluation/scores/familiarity": "metrics evaluate",
    "evaluation/predictions/predictive": "metrics evaluate predict",
    "evaluation/predictions/new_rows": "predict",
    "evaluation/predictions/chain_weights": "chain_weights",
    "evaluation/formulas/stacking": "chain_weights",
    "evaluation/contents/predictive_groups": "evaluate predict",
    "evaluation/predictions/predictor": "predict evaluate large_runs keep_predictions",
    "evaluation/predictions/row_functions": "row_shards predict evaluate",
    "evaluation/convergence/probing": "mixing",
    "evaluation/contents/record": "diagnose predict large_runs",
    "evaluation/scores/row_scores": "calibration evaluate predict",
    "evaluation/contents/weights": "evidence large_runs",
    "evaluation/formulas/blocking": "predict evaluate",
    "evaluation/predictions/per_draw": "predict rounding evaluate",
    "evaluation/predictions/prediction_table": "predict",
    "evaluation/predictions/predictive_samples": "predict evaluate",
    "api/run_predictions": "predict predictive_distribution conformal",
    "evaluation/predictions/mixture": "predictive_distribution",
    "evaluation/predictions/predictive_distribution": "predictive_distribution",
    "evaluation/formulas/conformal_bayes": "conformal",
    "evaluation/intervals/full_conformal": "conformal",
    "evaluation/intervals/split_conformal": "conformal",
    "evaluation/intervals/prediction_intervals": "conformal",
}
"""The tested modules, and the tests of each module, the fastest first."""


class Mutant(NamedTuple):
    module: str
    text: str
    change: Change
    number: int

    @property
    def name(self) -> tuple[str, str, str, str, str, int]:
        """Return a name that does not depend on the line: `number` counts equal mutants of a module."""
        return self.module, self.text, self.change.kind, self.change.before, self.change.after, self.number

    def place(self, seed: int) -> str:
        """Return the mutant's position in the order of a seed, independently of other mutants."""
        return hashlib.sha256(json.dumps([seed, *self.name]).encode()).hexdigest()


class Reached(NamedTuple):
    """Output of `reached.py`: the seconds of tests, and the tests that reach a line, by module and text of the line."""

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[str]]]
    sound: set[str]
    """Tests that passed on this tree."""

    def first(self, mutant: Mutant, source: list[str]) -> list[str]:
        """Return the tests that reach the mutant's line, or the nearest reached line above it, the fastest first."""
        lines = self.lines.get(mutant.module, {})
        above = (lines.get(line.strip(), []) for line in reversed(source[: mutant.change.line]))
        return sorted(next(filter(None, above), []), key=lambda name: self.seconds[name])


class Tree:
    """A copy of the repository, in which one mutant at a time is applied."""

    def __init__(self, folder: Path) -> None:
        unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.nc", "*.parts", "dist", "build")
        self.root = Path(shutil.copytree(ROOT, folder, ignore=unwanted))
        self.writes = 0

    def write(self, module: str, source: str) -> None:
        path = self.root / "bnnzoo" / f"{module}.py"
        path.write_text(source)
        # Python does not recompile a source with the same size and modification time in seconds.
        self.writes += 1
        os.utime(path, (self.writes, self.writes))

    def pytest(self, tests: list[str], timeout: float, *options: str) -> tuple[int | None, str]:
        """Run pytest; return the exit code (None after a timeout) and the output."""
        arguments = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "tools.reached", "--tb=no", "--hypothesis-seed=0"]
        arguments += [*options, *tests]
        paths = os.pathsep.join([str(self.root), str(self.root / "tests")])
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "1000"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        return process.returncode, printed


def every(only: str) -> Iterator[Mutant]:
    for module in TESTS:
        if fnmatch.fnmatch(module, only):
            source = (ROOT / "bnnzoo" / f"{module}.py").read_text()
            lines, alike = source.splitlines(), Counter[tuple[str, ...]]()
            for change in changes(source):
                text = lines[change.line - 1].strip()
                fields = text, change.kind, change.before, change.after
                yield Mutant(module, text, change, alike[fields])
                alike[fields] += 1


def test_file(name: str) -> str:
    """Return the path of a test file, which is in one of the folders of the tests."""
    (path,) = (path for path in (ROOT / "tests").glob(f"*/test_{name}.py") if path.parent.name != "end_to_end")
    return path.relative_to(ROOT).as_posix()


def digest() -> str:
    """Return a digest of all sources and tests; tests that passed with the same digest are not run again."""
    files = sorted(path for folder in ("bnnzoo", "tests") for path in (ROOT / folder).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def reached(
    folder: Path, modules: Iterable[str], trees: queue.Queue[Tree], pool: concurrent.futures.Executor
) -> Reached:
    """Measure the tests that reach each line of some modules, without mutants; one file in the folder per test file."""
    folder.mkdir(exist_ok=True)
    current_digest = digest()

    def of(name: str) -> None:
        file = folder / f"{name}.json"
        if file.exists():
            return
        tree = trees.get()
        try:
            code, printed = tree.pytest([test_file(name)], 3600.0, "--reached", str(tree.root / file.name))
            if code not in (0, 5):  # exit code 5: all of its tests are slow
                raise RuntimeError(f"{test_file(name)} does not pass without a mutant:\n{printed}")
            file.write_text(json.dumps({"tree": current_digest, **json.loads((tree.root / file.name).read_text())}))
        finally:
            trees.put(tree)

    names = sorted({name for module in modules for name in TESTS[module].split()})
    list(pool.map(of, names))
    result = Reached({}, {}, set())
    for item in (json.loads((folder / f"{name}.json").read_text()) for name in names):
        result.seconds.update(item["seconds"])
        if item["tree"] == current_digest:
            result.sound.update(item["seconds"])
        for module, lines in item["lines"].items():
            for line, tests in lines.items():
                result.lines.setdefault(module, {}).setdefault(line, []).extend(tests)
    return result


def test_mutant(
    mutant: Mutant, trees: queue.Queue[Tree], sound: set[str], reached: Reached, timeout: float
) -> dict[str, Any]:
    """Return the line of a mutant for the table; `sound` are tests that are known to pass without mutants."""
    tree, began = trees.get(), time.monotonic()
    try:
        source = (ROOT / "bnnzoo" / f"{mutant.module}.py").read_text()
        tree.write(mutant.module, mutant.change.made(source))
        first = tree.root / "first.json"
        first.write_text(json.dumps(reached.first(mutant, source.splitlines())))
        files = [test_file(name) for name in TESTS[mutant.module].split()]
        code, printed = tree.pytest(files, timeout, "-x", "--first", str(first))
        tree.write(mutant.module, source)
        match = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", printed, re.MULTILINE)
        by = match[1] if match else "tests/conftest.py"
        if code and by not in sound:
            selection = [by] if match else ["--collect-only", "tests/repository/test_layers.py"]
            without, output = tree.pytest(selection, timeout)
            if without != 0:
                raise RuntimeError(f"{by} does not pass without a mutant:\n{output}")
            sound.add(by)
    finally:
        trees.put(tree)
    result = "timeout" if code is None else "killed" if code else "survived"
    seconds = round(time.monotonic() - began)
    about = {"module": mutant.module, "text": mutant.text, **mutant.change._asdict(), "number": mutant.number}
    about |= {"result": result}
    return about | ({"by": by} if code else {}) | {"seconds": seconds}


def report(rows: list[dict[str, Any]], population: int) -> int:
    """Print the counts and the survivors; return the number of unexplained survivors."""
    explained = {tuple(item[key] for key in SAME) for item in tomllib.loads(EQUIVALENT.read_text())["mutant"]}
    survivors = [row for row in rows if row["result"] == "survived"]
    unexplained = [row for row in survivors if tuple(row[key] for key in SAME) not in explained]
    for row in unexplained:
        print(f"{row['module']}.py:{row['line']}: {row['kind']}: {row['before']}  ->  {row['after']}")
    print("\n| part | mutants | killed | too slow | equivalent | left |\n|---|---|---|---|---|---|")
    for part in (*sorted({row["module"].split("/")[0] for row in rows}), ""):
        some = [row for row in rows if row["module"].startswith(part)]
        count = Counter(row["result"] for row in some)
        open_ = sum(row["module"].startswith(part) for row in unexplained)
        numbers = (len(some), count["killed"], count["timeout"], count["survived"] - open_, open_)
        print(f"| {part or f'all, of {population}'} | {' | '.join(map(str, numbers))} |")
    return len(unexplained)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, metavar="TABLE", help="JSON lines; made, or gone on with")
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0, help="no mutant begins later")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds that a mutant's tests may take")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--only", default="*", help="modules, as 'samplers/*'")
    parser.add_argument("--again", action="store_true", help="run those anew that survived or took too long")
    arguments = parser.parse_args()

    mutants = sorted(every(arguments.only), key=lambda mutant: mutant.place(arguments.seed))
    rows = [json.loads(line) for line in arguments.table.read_text().splitlines()] if arguments.table.exists() else []
    if arguments.again:
        rows = [row for row in rows if row["result"] == "killed"]
        arguments.table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {tuple(row[key] for key in NAME): row for row in rows}
    sample = mutants[: arguments.sample]
    sound, until = {row["by"] for row in rows if "by" in row}, time.monotonic() + 60 * arguments.minutes
    beside = arguments.table.with_name(f"{arguments.table.name}.reached")

    def run(mutant: Mutant) -> None:
        if mutant.name in expected or time.monotonic() > until:
            return
        row = expected[mutant.name] = test_mutant(mutant, trees, sound, coverage, arguments.timeout)
        with arguments.table.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{row['result']:<9}{row['module']}:{row['line']} {row['kind']} ({row['seconds']} s)", flush=True)

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        trees: queue.Queue[Tree] = queue.Queue()
        for number in range(arguments.jobs):
            trees.put(Tree(Path(folder) / str(number)))
        try:
            coverage = reached(beside, {mutant.module for mutant in mutants}, trees, pool)
            sound |= coverage.sound
            list(pool.map(run, sample))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    sys.exit(min(1, report([expected[mutant.name] for mutant in sample if mutant.name in expected], len(mutants))))


if __name__ == "__main__":
    main()
