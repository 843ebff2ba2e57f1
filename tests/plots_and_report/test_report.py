"""The report is correct for a good run, for bad runs, and for questions that it cannot answer."""

from __future__ import annotations

import html.parser
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny
import xarray as xr

import bnnzoo
from bnnzoo import cli
from bnnzoo.api import entrances
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import findings
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.finding import Finding
from bnnzoo.recipe import resolve
from bnnzoo.report import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
GOOD = {
    "exactness": "exact",
    "chains": 4,
    "rhat_of": "predictive means",
    "ess_bulk_of": "predictive means",
    "ess_tail_of": "predictive means",
    "draws": 500,
    "draws_requested": 500,
    "judged": 1,
    "rhat": 1.01,
    "ess_bulk": 500.0,
    "ess_tail": 500.0,
    "modes": 1,
    "still_chains": 0,
    "acceptance_rate": 0.7,
}
NOISY = Finding("validity", "sigma2", "mean sigma2", 6.0, 2.0)


class Page(html.parser.HTMLParser):
    """The elements of a page for the tests, with a check that they are nested correctly."""

    void = frozenset({"meta", "link", "path", "use", "rect", "br"})

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "pre"):
            self.words += " " + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


def answers(page: Page) -> list[str]:
    return re.findall(r"(?:✓|✗|\?) (yes|no|unsure)", page.words)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Make a run of a line by nuts, from a table with an awkward name."""
    folder = tmp_path_factory.mktemp("good")
    rng = np.random.default_rng(0)
    x = rng.normal(size=1600)
    table = pd.DataFrame({"<b>age</b>": x, "price & co": 2 * x + 0.5 * rng.normal(size=1600)})
    table.to_csv(folder / "houses.csv", index=False)
    recipe = {"data": str(folder / "houses.csv"), "test_fraction": 0.5, "likelihood": "gaussian"}
    options = {**recipe, "warmup": 100, "draws": 400, "chains": 4, "init": "prior", "likelihood.scale": 0.24}
    entrances.run_recipe(resolve("linear", "nuts", [], options), out=folder / "run.nc")
    return folder / "run.nc"


def report(run: Path, *more: str) -> Page:
    out = run.parent / "report.html"
    assert cli.run(["report", str(run), "-o", str(out), "--force", *more]) == 0
    return Page(out.read_text())


@pytest.mark.long
def test_a_good_run_is_called_good(good):
    page = report(good)
    assert answers(page) == ["yes"] * 4
    assert "It ran without problems, has converged, is calibrated" in page.words
    pattern = r"800 test rows differ by at most \d\.\d % \(99% interval \d\.\d to \d+\.\d %; calibrated if"
    assert re.search(pattern, page.words)
    assert [p["id"] for p in page.all("figure")] == [
        "band",
        "ood",
        "calibration",
        "pit",
        "trace",
        "rank",
        "autocorrelation",
        "steps",
    ]
    assert all(item["role"] == "img" and len(item["aria-label"] or "") > 60 for item in page.all("svg"))
    assert len(page.all("details")) >= len(page.all("svg"))


@pytest.mark.long
def test_the_page_loads_nothing_and_escapes_names(good):
    report(good)
    text = (good.parent / "report.html").read_text()
    assert len(text) < 2_000_000
    assert not re.search(r"https?:|//[a-z]|<script|@import|url\((?!#)", text)
    assert "<b>age" not in text
    assert "&lt;b&gt;age&lt;/b&gt;" in text
    assert "price &amp; co" in text
    for tag, attrs in Page(text).found:
        for name in ("src", "href", "xlink:href", "data", "action"):
            assert (attrs.get(name) or "#").startswith(("#", "data:")), (tag, attrs)


def test_files_are_not_replaced_unasked(good, tmp_path, capsys):
    out = tmp_path / "report.html"
    out.write_text("mine")
    assert cli.run(["report", str(good), "-o", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert cli.run(["report", str(good), "-o", str(tmp_path / "report.txt")]) == 2
    assert cli.run(["report", str(tmp_path / "gone.nc"), "-o", str(tmp_path / "new.html")]) == 2
    assert not (tmp_path / "new.html").exists()


@pytest.mark.long
def test_plot_writes_the_requested_pictures(good, tmp_path, capsys):
    out = tmp_path / "pictures"
    arguments = ["plot", str(good), "-o", str(out), "--only", "pit", "--only", "slices", "--json"]
    assert cli.run([*arguments, "--format", "svg", "--format", "png"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["picture"] for row in rows] == ["pit", "pit", "slices"]
    assert "band" in rows[2]["why"]
    assert sorted(path.name for path in out.iterdir()) == ["pit.png", "pit.svg"]
    assert cli.run([*arguments, "--format", "png"]) == 2
    assert "exists" in capsys.readouterr().err
    assert cli.run([*arguments, "--format", "png", "--force"]) == 0
    for wrong, message in ((["--only", "pie"], "unknown picture"), (["--format", "doc"], "png, svg")):
        assert cli.run(["plot", str(good), "-o", str(tmp_path / "none"), *wrong]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_run_that_never_accepted_and_has_few_draws(tmp_path):
    recipe = tiny.recipe("penalty", warmup=0, draws=8, **{"sampler.step_size": 3.0})
    with pytest.warns(bnnzoo.BnnzooWarning, match="the sampler's own check failed: "):
        entrances.run_recipe(recipe, out=tmp_path / "run.nc")
    page = report(tmp_path / "run.nc")
    assert answers(page)[:2] == ["no", "no"]
    assert "Do not trust this run yet" in page.words
    for message in ("Mean sigma2", "trusted up to 2;", "only 8 draws per chain"):
        assert message.lower() in page.words.lower()
    assert "Dashed lines: limits that the mean must not exceed" in next(
        a["aria-label"] or "" for a in page.all("svg") if "Statistics" in (a["aria-label"] or "")
    )


@pytest.mark.slow
def test_a_biased_sampler_classifying_in_two_chains(tmp_path):
    recipe = tiny.recipe(
        "sgld", data="breast-cancer", likelihood=None, draws=30, **{"likelihood.scale": None, "chains": 2}
    )
    entrances.run_recipe(recipe, out=tmp_path / "run.nc")
    page = report(tmp_path / "run.nc")
    assert "biased" in page.words
    assert answers(page)[0] != "yes"
    assert "slices" in {item["id"] for item in page.all("figure")}
    assert "57 test rows differ by at most" in page.words


@pytest.mark.long
def test_a_report_names_the_figures_that_it_cannot_draw(tmp_path):
    """A posterior made in Python has no model for predictions."""
    import jax.numpy as jnp
    from gaussian_mean import GaussianMean

    data = jnp.linspace(-1, 1, 20)
    bnnzoo.sample(
        GaussianMean(data), bnnzoo.Nuts(), chains=2, warmup=30, draws=30, init="prior", out=tmp_path / "run.nc"
    )
    page = report(tmp_path / "run.nc")
    assert "made in Python" in page.words
    assert {item["id"] for item in page.all("figure")} == {"trace", "rank", "autocorrelation", "steps"}


@pytest.mark.long
@pytest.mark.parametrize("chunk", [1, 8])
def test_an_unfinished_run(chunk, tmp_path):
    """The run was stopped before or after its first draws, and has no test rows."""
    options = {"draws": 50000, "thin": 2000, "warmup": 20, "test_fraction": 0, "chains": 2}
    with pytest.raises(bnnzoo.BnnzooError):
        entrances.run_recipe(tiny.recipe("random-walk", **options), out=tmp_path / "run.nc", **tiny.stopped(chunk))
    page = report(tmp_path / "run.nc")
    figures = {item["id"] for item in page.all("figure")}
    assert "unfinished: 50000 draws were requested" in page.words
    assert answers(page)[0] == "no"
    draws_done = bnnzoo.open(tmp_path / "run.nc").attributes["draws_done"]
    assert bool(draws_done) == (chunk > 1)
    if draws_done:
        assert "bnnzoo resume" in page.words
        assert "has no test rows" in page.words
        assert figures == {"slices", "trace", "rank", "autocorrelation", "steps"}
    else:
        assert "no draws yet" in page.words
        assert figures == set()


def made_record(**about: Any) -> Record:
    """Return a record with two chains of three draws, and two test rows."""
    draws = {"theta": (("chain", "draw"), np.zeros((2, 3)))}
    rows = {"x_test": (("test_row",), np.zeros(2)), "y_test": (("test_row",), np.zeros(2))}
    tree = xr.DataTree.from_dict({"/posterior": xr.Dataset(draws), "/constant_data": xr.Dataset(rows)})
    usual = {"exactness": "exact", "complete": 1, "draws_done": 3, "draws_requested": 9, "likelihood_power": 1.0}
    tree.attrs.update({"bnnzoo_version": "1.2", **usual, **about})
    return Record(tree, None)


def test_a_number_stands_beside_its_errors_over_rows_and_over_draws():
    """The order is fixed, and unknown errors are empty. If not all rows or draws are used, the page states this."""
    estimates = {"nll": Estimate(-1.5, np.array([-1.0, 1.0]), 0.25), "loo_nll": Estimate(2.0)}
    estimates["rmse"] = Estimate(3.0, None, 0.5)
    record = made_record()
    text = page._metrics(estimates, record, record)
    assert re.findall(r"<th [^>]*>([^<]*)<", text) == ["", "value", "± s.e.", "± MC"]
    cells = [re.findall(r"<td[^>]*>([^<]*)<", row) for row in text.split("<tr>")[2:]]
    assert cells == [["nll", "−1.5", "1", "0.25"], ["loo_nll", "2", "", ""], ["rmse", "3", "", "0.5"]]
    assert "<p>" not in text
    some = page._metrics(estimates, record.thinned(2, 1), record)
    assert "use 2 of 3 draws per chain and 1 of 2 test rows" in some
    biased = made_record(exactness="biased", regime_ok=0)
    message = (
        "<p>loo_nll: the sampler is biased, so the draws are not from the posterior; the run violates the "
        "assumptions of its sampler.</p>"
    )
    assert message in page._metrics(estimates, biased, biased)
    assert "loo_nll:" not in page._metrics({"nll": Estimate(1.0)}, biased, biased)


def test_the_subtitle_says_what_is_unusual_of_a_run():
    assert page._subtitle(made_record()) == "2 chains of 3 draws · exact · bnnzoo 1.2"
    odd = made_record(complete=0, likelihood_power=0.25, recipe="data: houses.csv\nmodel: linear\nsampler: nuts\n")
    expected = (
        "data houses.csv · 2 chains of 3 draws · unfinished: 9 draws were requested · exact · likelihood to the power "
        "0.25"
    )
    assert page._subtitle(odd) == f"{expected} · bnnzoo 1.2"


def test_the_report_promises_the_same_draws_only_if_its_command_gives_them():
    recipe = "data: houses.csv\nmodel: linear\nsampler: nuts\n"
    assert "gives the same draws bit for bit:" in page._reproduce({}, recipe)
    for name, value in (("inexact_resume", "jax 0.1, not 0.2"), ("padded_rows", 64), ("row_shards", 2)):
        text = page._reproduce({name: value}, recipe)
        assert "samples the same posterior, but gives other draws, because the" in text
        assert "bit for bit" not in text


# ---- the answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "is_right", "has_converged"),
    [
        ({}, "yes", "yes"),
        ({"rhat": 1.3}, "yes", "no"),
        ({"ess_bulk": 20.0}, "yes", "no"),
        ({"draws_requested": 9000}, "no", "yes"),
        ({"diverging": 0.3}, "no", "yes"),
        ({"still_chains": 1}, "no", "yes"),
        ({"exactness": "biased"}, "unsure", "unsure"),
        ({"exactness": "approximate", "judged": 0}, "unsure", "unsure"),
    ],
)
def test_right_and_converged(change, is_right, has_converged):
    diagnosis = {**GOOD, **change}
    problems = findings.gate_findings(diagnosis)
    assert (
        findings.answer_ran(diagnosis, problems).outcome,
        findings.answer_converged(diagnosis, problems).outcome,
    ) == (
        is_right,
        has_converged,
    )


def test_findings_of_the_sampler_answer_ran_right():
    problems = findings.gate_findings(GOOD, of_sampler=[NOISY])
    assert findings.answer_ran(GOOD, problems) == (findings.RAN, "no", "Mean sigma2 6, trusted up to 2.")
    assert findings.answer_converged(GOOD, problems).outcome == "yes"


@pytest.mark.parametrize(("area", "answer"), [(0.95, "yes"), (0.7, "unsure"), (0.5, "no")])
def test_report_answers_knows_what_it_does_not_know(area, answer):
    scores = {"ood_auroc_entropy": Estimate(area), "ood_entropy": Estimate(1.5), "test_entropy": Estimate(0.3)}
    assert findings.answer_knows(scores).outcome == answer


def test_overall_names_the_first_no():
    yes, no, unsure = (
        findings.Answer("a?", "yes", ""),
        findings.Answer(findings.RAN, "no", ""),
        findings.answer_unknown("b?", "c"),
    )
    also = findings.Answer(findings.CONVERGED, "no", "")
    assert findings.combine_answers([yes, yes])[0] == "yes"
    assert findings.combine_answers([yes, unsure])[0] == "unsure"
    assert findings.combine_answers([unsure, no])[1] == "Do not trust this run yet: it had problems."
    assert "it had problems and has not converged." in findings.combine_answers([no, also, unsure])[1]


# ---- a browser -----------------------------------------------------------------------------------


def console(page: Path, folder: Path, width: int) -> list[str]:
    """Return the errors in a browser's console, and write a picture of the page to `folder`."""
    command = [
        *(str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},1600"),
        *("--enable-logging=stderr", "--v=0", f"--screenshot={folder / 'shot.png'}", page.as_uri()),
    ]
    environment = {**os.environ, "HOME": str(folder)}
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    return [line for line in process.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_and_asks_for_nothing(good, tmp_path, width):
    """The page's own policy forbids all requests, so an attempt would be an error in the console."""
    report(good)
    page = good.parent / "report.html"
    assert console(page, tmp_path, width) == []
    assert (tmp_path / "shot.png").stat().st_size > 30_000
    planted = tmp_path / "planted.html"
    planted.write_text(page.read_text().replace("</main>", '<img src="http://127.0.0.1:9/x.png"></main>'))
    (line,) = console(planted, tmp_path, width)
    assert "Content Security Policy" in line
