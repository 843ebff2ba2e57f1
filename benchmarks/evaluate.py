"""Cost of evaluation: `Run.evaluate` against a hand-written scan that accumulates sums, and its memory.

    python benchmarks/evaluate.py [--repeats 5] [--draws 1000] [--rows 10000]

There are two models on random images: a CNN for 8 x 8 images, as in `digits`, and an MLP 784-100-10. For each model, in
a separate process, the script measures the seconds of

    hand        a jitted `jax.lax.scan` over the draws that adds up class probabilities and the density of the labels,
                and computes accuracy, log density, Brier score and calibration error from them
    evaluate    `Run.evaluate(data, save=False)`: every metric with its errors

Repeats are interleaved, after one call of each that compiles. The table shows medians over the repeats. Memory is the
largest resident memory minus that before `evaluate`, when data and draws were loaded. The scan takes all rows at once.
Run the script on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

MODELS = {
    "cnn": {"name": "cnn, 8 x 8 images", "shape": (8, 8), "model": {"name": "cnn"}},
    "mlp": {
        "name": "mlp 784-100-10",
        "shape": (784,),
        "model": {"name": "mlp", "hidden": (100,), "activation": "relu"},
    },
}


def resident_mb() -> float:
    """Return the current resident memory of the process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Watch:
    """Context manager that records the largest resident memory, sampled every five milliseconds."""

    def __enter__(self) -> Watch:
        self.largest, self._done = resident_mb(), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.005):
            self.largest = max(self.largest, resident_mb())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def make_run(model: dict[str, Any], shape: tuple[int, ...], draws: int, folder: Path) -> Path:
    """Write a file of draws by a short run; the cost depends on the network's size, not on the values."""
    import bnnzoo

    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, *shape)).astype(np.float32)
    y = np.arange(500, dtype=np.int32) % 10
    path = folder / "run.nc"
    sampler = {"name": "sgld", "batch_size": 8, "step_size": 1e-6}
    options = {"chains": 4, "warmup": 0, "draws": draws // 4, "init": "prior", "chain_method": "vectorized"}
    bnnzoo.sample(model, sampler, data=(x, y), out=path, prior={"name": "normal", "scale": 0.1}, **options)
    return path


def hand_written(run: Any, x: np.ndarray, y: np.ndarray) -> Any:
    """Return the hand-written scan; it takes the network from the run and does the same arithmetic."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    posterior, draws = run.predictor.posterior, run.predictor.draws[:]
    arranged = run.predictor.inputs(x)

    @eqx.filter_jit
    def scan(posterior: Any, draws: Any, x: Any, y: Any) -> Any:
        def add(sums: Any, draw: Any) -> Any:
            probabilities = jax.nn.softmax(jax.vmap(posterior.network_at(draw))(x))
            density = jnp.log(probabilities[jnp.arange(len(y)), y])
            return (sums[0] + probabilities, jnp.logaddexp(sums[1], density)), None

        start = (jnp.zeros((len(x), 10)), jnp.full(len(x), -jnp.inf))
        return jax.lax.scan(add, start, draws)[0]

    def evaluate() -> tuple[float, ...]:
        total, density = (np.asarray(a) for a in scan(posterior, draws, jnp.asarray(arranged), jnp.asarray(y)))
        mean = total / len(draws)
        confidence, correct = mean.max(1), mean.argmax(1) == y
        index = np.minimum((confidence * 15).astype(int), 14)
        gaps = np.abs(np.bincount(index, correct - confidence, minlength=15)).sum() / len(y)
        brier = np.mean(np.sum((mean - np.eye(10)[y]) ** 2, 1))
        return float(correct.mean()), float(np.mean(density) - np.log(len(draws))), float(brier), float(gaps)

    return evaluate


def memory(path: Path, shape: tuple[int, ...], rows: int) -> float:
    """Return the megabytes that the first `evaluate` of a process adds to data, draws and a warm JAX."""
    import bnnzoo

    run = bnnzoo.open(path)
    x, y = test_rows(shape, rows)
    _ = run.predictor.draws[:].sum()
    run.predict(x[:10])
    before = resident_mb()
    with Watch() as watch:
        run.evaluate((x, y), save=False)
    return watch.largest - before


def times(path: Path, shape: tuple[int, ...], rows: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each, interleaved."""
    import bnnzoo
    from bnnzoo.sampling.devices import jax_settings

    run = bnnzoo.open(path)
    x, y = test_rows(shape, rows)
    with jax_settings.arithmetic("float32"):
        hand = hand_written(run, x, y)
        ways = {"hand": hand, "evaluate": lambda: run.evaluate((x, y), save=False)}
        accuracy, density, *_ = hand()
        metrics = run.evaluate((x, y), save=False)
        assert abs(metrics["accuracy"] - accuracy) < 1e-3
        assert abs(metrics["nll"] + density) < 1e-3
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, way in ways.items():
                started = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - started)
    return seconds


def test_rows(shape: tuple[int, ...], rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(rows, *shape)).astype(np.float32), rng.integers(0, 10, rows).astype(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--part", choices=["make", "memory", "times"], help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        about = MODELS[given.models[0]]
        if given.part == "make":
            made = make_run(about["model"], about["shape"], given.draws, given.file.parent)
            print(json.dumps(str(made)))
        elif given.part == "memory":
            print(json.dumps(memory(given.file, about["shape"], given.rows)))
        else:
            print(json.dumps(times(given.file, about["shape"], given.rows, given.repeats)))
        return

    print("| model | parameters' file, MB | hand, s | evaluate, s | evaluate / hand | MB above data and draws |")
    print("|---|---|---|---|---|---|")
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.nc"

            def part(what: str, name: str = name, path: Path = path) -> Any:
                numbers = ["--repeats", str(given.repeats), "--draws", str(given.draws), "--rows", str(given.rows)]
                command = [sys.executable, __file__, name, *numbers, "--part", what, "--file", str(path)]
                return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

            part("make")
            above, seconds = part("memory"), part("times")
            size = path.stat().st_size / 2**20
        medians = {way: float(np.median(values)) for way, values in seconds.items()}
        ratio = float(np.median(np.array(seconds["evaluate"]) / np.array(seconds["hand"])))
        cells = [f"{size:.0f}", f"{medians['hand']:.3g}", f"{medians['evaluate']:.3g}", f"{ratio:.3f}", f"{above:.0f}"]
        print(f"| {MODELS[name]['name']} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
