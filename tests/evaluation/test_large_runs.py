"""Runs whose draws do not fit into memory: read in pieces with equal results, or analysed in part within seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

import bnnzoo
from bnnzoo.api import entrances
from bnnzoo.evaluation.contents import draws, weights
from bnnzoo.evaluation.predictions import thinning
from bnnzoo.store import Store

MEASURED = """
import sys, time
import bnnzoo.cli
import jax, arviz_stats, matplotlib.figure, xarray
def now(name):
    return 1024 * int(next(l for l in open("/proc/self/status") if l.startswith(name)).split()[1])
open("/proc/self/clear_refs", "w").write("5")
before, started = now("VmRSS"), time.process_time()
code = bnnzoo.cli.run(sys.argv[1:])
print(code, time.process_time() - started, now("VmHWM") - before, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("small") / "run.nc"
    entrances.run_recipe(
        tiny.recipe("sgld", draws=60, likelihood="gaussian", **{"likelihood.scale": "learned"}), out=out
    )
    return out


@pytest.fixture
def in_pieces(monkeypatch) -> list[int]:
    """Nothing is kept, and a piece is of seven draws: how many draws were asked for at once."""
    calls: list[int] = []
    original = draws.Draws._read

    def counted(self: draws.Draws, numbers: np.ndarray) -> np.ndarray:
        calls.append(len(numbers))
        return original(self, numbers)

    monkeypatch.setattr(draws, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(draws, "_PIECE_BYTES", 7 * 12 * 4)
    monkeypatch.setattr(draws.Draws, "_read", counted)
    return calls


def summarise(path: Path) -> dict[str, Any]:
    run = bnnzoo.open(path)
    rows = [{key: value for key, value in row.items() if key != "block"} for row in run.blocks()]
    table = run.predict(run.test_rows()[0])
    diagnosis = {key: value for key, value in run.diagnose().items() if isinstance(value, float)}
    return {"table": table.to_numpy(), "evaluation": run.evaluate(save=False), "diagnosis": diagnosis, "rows": rows}


@pytest.mark.slow
def test_piecewise_evaluation_agrees_with_evaluation_at_once(small, request):
    expected = summarise(small)
    counts = request.getfixturevalue("in_pieces")
    pieces = summarise(small)
    assert counts
    assert max(counts) <= 7
    np.testing.assert_allclose(pieces["table"], expected["table"], rtol=1e-4, atol=1e-5)
    for key in ("evaluation", "diagnosis"):
        assert pieces[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-5, nan_ok=True)
    assert pieces["rows"] == [pytest.approx(row) for row in expected["rows"]]


def test_draws_read_in_pieces_agree_for_every_index(small, request):
    draws = bnnzoo.open(small).predictor.draws[:]
    request.getfixturevalue("in_pieces")
    result = bnnzoo.open(small).predictor.draws
    for index in (slice(3, 4), np.array([200, 3, 3, 61, 60]), np.arange(0, 240, 7)):
        np.testing.assert_array_equal(result[index], draws[index])


@pytest.mark.parametrize("length", [10, 3])
def test_parameter_blocks_are_summarised_alike_in_pieces(length, monkeypatch):
    """Two chains of five draws; pieces of three begin with one that stands still, one that moves, and one alone."""
    first = [[3, 4], [3, 4], [0, 0], [0, 0], [6, 8]]
    second = [[6, 8], [0, 0], [0, 0], [3, 4], [0, 5]]
    thetas = np.column_stack([np.array(first + second), np.full(10, 2)]).astype(np.float32)

    def cut(values: Any, count: int) -> list[slice]:
        return [slice(start, min(count, start + length)) for start in range(0, count, length)]

    monkeypatch.setattr(weights, "draw_slices", cut)
    result = weights.Weights.from_draws(thetas, {"weight": 2, "bias": 1}, (2, 5))
    np.testing.assert_array_equal(result.has_moved, [[0, 1, 0, 1], [1, 0, 1, 1]])
    weight, bias = result.rows()
    # The norms are 5, 5, 0, 0, 10, 10, 0, 0, 5, 5; the weights sum to 7 + 7 + 14 + 14 + 7 + 5.
    expected = {"block": "weight", "parameters": 2, "norm": 4.0, "mean": 54 / 20, "sd": (300 / 20 - 2.7**2) ** 0.5}
    assert {name: weight[name] for name in expected} == pytest.approx(expected)
    expected = {"block": "bias", "parameters": 1, "norm": 2.0, "mean": 2.0, "sd": 0.0}
    assert {name: bias[name] for name in expected} == pytest.approx(expected)


def test_a_blocks_rhat_is_the_largest_of_fifty_of_its_weights():
    """Four chains apart in one weight: of 99 every second but one is looked at, and never another block's."""
    rng = np.random.default_rng(0)
    thetas = rng.normal(size=(4, 50, 102))
    looked = 3 + np.linspace(0, 98, 50).round().astype(int)

    def rhats(*apart: int) -> list[bool]:
        moved = thetas.copy()
        moved[..., apart] += 9.0 * np.arange(4)[:, None, None]
        result = weights.Weights.from_draws(moved.reshape(200, 102), {"first": 3, "second": 99}, (4, 50))
        np.testing.assert_array_equal(result.blocks["first"].sampled_weights, moved[..., :3])
        np.testing.assert_array_equal(result.blocks["second"].sampled_weights, moved[..., looked])
        return [row["rhat"] > 1.5 for row in result.rows()]

    assert rhats() == [False, False]
    assert rhats(2) == [True, False]
    assert rhats(101) == rhats(3) == [False, True]
    assert rhats(*sorted(set(range(3, 102)) - set(looked))) == [False, False]


def test_a_chain_is_still_that_has_one_draw_for_half_of_its_length_and_for_ten():
    def still(*lengths: int) -> int:
        """Return a chain that repeats each draw so often, beside a chain that always moves."""
        draws = np.repeat(np.arange(len(lengths)), lengths)
        both = np.stack([draws, np.arange(len(draws))]).reshape(-1, 1).astype(np.float32)
        return weights.Weights.from_draws(both, {"weight": 1}, (2, len(draws))).still_chains()

    assert [still(20, *[1] * 20), still(*[1] * 20, 20), still(*[1] * 10, 20, *[1] * 10), still(40)] == [1] * 4
    assert [still(19, 1, 19, 1), still(*[1] * 21, 19), still(19, *[1] * 21), still(*[1] * 40)] == [0] * 4
    assert [still(1, 10), still(10), still(10, 1), still(9, 1), still(9), still(1)] == [1, 1, 1, 0, 0, 0]


@pytest.mark.slow
def test_of_a_large_run_every_kth_draw_is_judged(small, monkeypatch, tmp_path):
    """The gate's numbers are then of those draws, and the report says of how many it is made."""
    assert bnnzoo.open(small).diagnose()["draws_judged"] == 60
    monkeypatch.setattr(thinning, "_MIN_DRAWS", 20)
    monkeypatch.setattr(thinning, "_MIN_PAGE_DRAWS", 15)
    monkeypatch.setattr(thinning, "_MIN_PAGE_ROWS", 10)
    monkeypatch.setattr(thinning, "_WORK", 1.0)
    run = bnnzoo.open(small)
    diagnosis = run.diagnose()
    assert (diagnosis["draws"], diagnosis["draws_judged"]) == (60, 20)
    assert np.isfinite(diagnosis["rhat"])
    assert diagnosis["ess_bulk"] < 2 * 80
    page = run.report(tmp_path / "report.html").read_text()
    assert "use 15 of 60 draws per chain and 10 of 45 test rows" in page


def large(out: Path, like: Path, *, num_draws: int) -> None:
    """A run of the same model and rows with as many draws, all about the last one of `like`."""
    tree = bnnzoo.open(like).posterior
    generator = np.random.default_rng(0)
    posterior = {str(n): v.values[:, -1:] for n, v in tree["posterior"].data_vars.items()}
    static = {g: {str(n): v.values for n, v in tree[g].data_vars.items()} for g in ("observed_data", "constant_data")}
    dims = {str(n): list(v.dims[2:]) for n, v in tree["posterior"].data_vars.items()}
    dims |= {str(n): list(map(str, v.dims)) for g in static for n, v in tree[g].data_vars.items()}
    writer = Store(out)
    writer.claim(force=False)
    attributes = {str(k): v.item() if hasattr(v, "item") else v for k, v in tree.attrs.items()}
    writer.create({**attributes, "draws_requested": num_draws, "draws_done": num_draws}, dims, static)
    for _ in range(num_draws // 50):
        noise = {
            n: (v + 0.01 * generator.standard_normal((4, 50, *v.shape[2:]), np.float32)).astype(v.dtype)
            for n, v in posterior.items()
        }
        writer.append({"posterior": noise, "sample_stats": {"diverging": np.zeros((4, 50), bool)}})
    writer.finish(complete=True)


@pytest.mark.slow
def test_a_large_run_is_judged_and_reported_in_seconds_and_bounded_memory(tmp_path):
    """4 chains of 2000 draws of 49 041 parameters: 1.6 GB."""
    like, out = tmp_path / "like.nc", tmp_path / "run.nc"
    options = {"model.hidden": "220,210", "draws": 4, "warmup": 0, "thin": 1}
    entrances.run_recipe(tiny.recipe("sgld", model="mlp", **options), out=like)
    large(out, like, num_draws=2000)
    assert out.stat().st_size > 1.5e9
    cost = {}
    for command in (["diagnose", out, "--json"], ["report", out, "-o", tmp_path / "report.html"]):
        arguments = [sys.executable, "-c", MEASURED, *map(str, command)]
        process = subprocess.run(arguments, capture_output=True, text=True, check=True)
        code, seconds, grown = process.stderr.split()[-3:]
        assert code == "0", process.stderr
        cost[command[0]] = (float(seconds), int(grown) / 2**20)
        if command[0] == "diagnose":
            assert 250 <= json.loads(process.stdout)["draws_judged"] < 2000
    print(cost)
    for seconds, megabytes in cost.values():
        assert seconds < 120  # of both cores
        assert megabytes < 700
