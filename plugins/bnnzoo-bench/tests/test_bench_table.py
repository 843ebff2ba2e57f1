"""Ranks, differences and pages of hand-made results, and verification."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from bnnzoo_bench.page import to_html, to_markdown
from bnnzoo_bench.ranking import count_wins, critical_difference, paired_difference, rank_methods
from bnnzoo_bench.scores import METRICS
from bnnzoo_bench.tables import Table, sections
from bnnzoo_bench.verifying import allowed_difference
from conftest import make_folder, make_table

from bnnzoo import UsageError


def line(problem, fold, method, crps=None):
    """Return the result of a fit, which failed if it has no score."""
    result = {"problem": problem, "fold": fold, "method": method, "date": "2025-01-02T03:04:05+00:00"}
    result |= {"budget": 5.0, "seed": 0, "sha256": "a" * 64, "peak_memory_mb": 100.0}
    if crps is None:
        return {**result, "status": "failed", "reason": "out of <memory> | twice"}
    numbers = {name: 0.9 if name == "coverage_90" else crps for name in METRICS}
    result |= {"status": "done", "reason": "", "rows": 90, "test_rows": 10, "features": 3, "metrics": numbers}
    result |= {"seconds_fit": 1.0, "seconds_predict": 0.1, "verdict": "converged: yes", "versions": {"numpy": "2.0"}}
    return {**result, "hardware": {"cpu": "a processor", "cores": 2, "device": "cpu"}}


def results(scores):
    """Return lines of scores by problem and method, each a list over folds."""
    return [
        line(problem, fold, method, value)
        for problem, methods in scores.items()
        for method, values in methods.items()
        for fold, value in enumerate(values)
    ]


SCORES = {
    "p1": {"A": [1.0, 1.2], "B": [2.0, 2.4], "C": [3.0, 3.0]},
    "p2": {"A": [1.0, 1.0], "B": [0.5, 0.7], "C": [2.0, 2.0]},
    "p3": {"A": [1.0, 1.0], "B": [1.0, 1.0], "C": [0.1, None]},
}
TIED = {"A": [1.0, 1.1, 0.9], "B": [1.05, 1.0, 1.1], "C": [2.0, 2.1, 2.0]}
"""Scores in which B minus A is 0.05 with a standard error of 0.087."""


def test_ranks_equal_those_computed_by_hand():
    ranking = rank_methods(results(SCORES))
    assert ranking.methods == ["A", "B", "C"]
    assert ranking.ranks.tolist() == [[1, 2, 3], [2, 1, 3], [1.5, 1.5, 3]]
    assert ranking.mean_ranks.tolist() == [1.5, 1.5, 3.0]
    # Friedman's statistic with ties: sums of ranks 4.5, 4.5, 9; 12/(3*3*4)*121.5 - 36 = 4.5; divided by 1 - 6/(3*24)
    assert ranking.friedman_p == pytest.approx(np.exp(-0.5 * 4.5 / (1 - 6 / 72)), rel=1e-6)


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_critical_difference_uses_the_published_constants(methods, q):
    assert critical_difference(methods, 14) == pytest.approx(q * np.sqrt(methods * (methods + 1) / 84), rel=1e-3)


def test_groups_span_methods_within_the_critical_difference():
    ranking = rank_methods(results(SCORES))
    assert ranking._replace(critical_difference=1.0).groups() == [(0, 1)]
    assert ranking._replace(critical_difference=1.5).groups() == [(0, 2)]


def test_only_problems_with_a_fold_that_all_methods_tried_are_ranked():
    lines = [*results(SCORES), line("p4", 0, "A", 1.0), line("p5", 1, "B", 1.0)]
    assert rank_methods(lines).problems == ["p1", "p2", "p3"]
    alone = rank_methods([line("p", 0, "A", 1.0), line("p", 0, "B", 2.0)])
    assert (alone.friedman_p, alone.critical_difference) == (None, None)


def test_paired_difference_equals_that_computed_by_hand():
    difference = paired_difference(results(SCORES), "p1", "B", "A", "crps")
    assert difference is not None
    assert difference.mean == pytest.approx(1.1)  # of 1.0 and 1.2
    assert difference.se == pytest.approx(0.1)
    assert difference.is_clear
    only_shared = paired_difference(results(SCORES), "p3", "C", "A", "crps")
    assert only_shared is not None
    assert (only_shared.count, only_shared.se) == (1, None)


def test_markdown_has_ranks_differences_and_failures():
    text = to_markdown(sections(results(SCORES)))
    assert "| A | 1.50 |" in text
    assert "| p1 | +1.10 ± 0.10 * | +1.90 ± 0.10 * |" in text
    assert "| p3 | 1 | C | out of <memory> \\| twice |" in text
    assert "- not significantly different: A, B, C" in text
    assert "18 fits of 3 problems and 2 folds, 1 failed; budget 5 s per fit, seed 0" in text
    assert "## Verdicts\n\nA: converged (6).\n\nB: converged (6).\n\nC: converged (5).\n\n## Diff" in text


def test_markdown_has_the_scores_by_problem_and_method():
    text = to_markdown(sections(results(SCORES)))
    assert "## CRPS by problem" in text
    assert "| p1 | 90 | 1.10 ± 0.10 * | 2.20 ± 0.20 | 3 |" in text
    assert "| p2 | 90 | 1 | 0.60 ± 0.10 * | 2 |" in text
    assert "| p3 | 90 | 1 * | 1 * | 0.1 |" in text  # C failed on a fold
    assert "over folds: A 2 and 2; B 2 and 2; C 0 and 0." in text
    assert "by problem" not in to_markdown(sections([line("p1", 0, "A", 1.0)]))


def test_the_best_score_is_that_of_the_folds_that_all_methods_tried():
    """A has an easy fold that B has not tried, and nothing can be compared on p2."""
    scores = {"p1": {"A": [1.0, 0.0], "B": [0.8]}, "p2": {"A": [1.0]}}
    (table,) = (
        part for part in sections(results(scores)) if isinstance(part, Table) and "training rows" in part.header
    )
    texts = {row[0].text: dict(zip(table.header, (cell.text for cell in row), strict=True)) for row in table.rows}
    assert (texts["p1"]["A"], texts["p1"]["B"]) == ("0.50 ± 0.50", "0.8 *")
    assert (texts["p2"]["A"], texts["p2"]["B"]) == ("1", "")


def test_ties_need_an_error_over_folds():
    folds = [line("p", fold, method, score) for method, scores in TIED.items() for fold, score in enumerate(scores)]
    assert count_wins(folds, list(TIED), "crps") == {"A": (1, 1), "B": (0, 1), "C": (0, 0)}
    first_fold = [row for row in folds if row["fold"] == 0]
    assert count_wins(first_fold, list(TIED), "crps") == {"A": (1, 1), "B": (0, 0), "C": (0, 0)}
    equal_scores = [line("p", 0, method, 1.0) for method in "AB"]
    assert count_wins(equal_scores, ["A", "B"], "crps") == {"A": (1, 1), "B": (1, 1)}


def test_wrong_choices_are_refused():
    with pytest.raises(UsageError, match="unknown metric 'mae'; use one of crps, nll"):
        sections(results(SCORES), "mae")
    with pytest.raises(UsageError, match="unknown method 'D'; use one of A, B, C"):
        sections(results(SCORES), reference="D")


class Page(HTMLParser):
    """Checks that tags are closed in order, and counts cells and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.addresses, self.values = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attributes = dict(attrs)
        self.addresses += [value for name, value in attributes.items() if name in ("src", "href")]
        self.values += [attributes["data-value"]] if "data-value" in attributes else []
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_well_formed_and_needs_no_other_file():
    parts = sections(results(SCORES))
    page = Page()
    page.feed(to_html(parts))
    page.close()
    assert page.open == []
    assert page.addresses == []
    tables = [part for part in parts if isinstance(part, Table)]
    assert page.tags.count("table") == len(tables)
    assert len(page.values) == sum(len(row) for table in tables for row in table.rows)
    assert page.tags.count("svg") == 1
    assert "<memory>" not in to_html(parts)


def test_table_command_writes_both_formats_and_spares_an_existing_file(call, tmp_path, capsys):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in results(SCORES)))
    assert call("table", folder) == 0
    assert capsys.readouterr().out.startswith("# Benchmark\n")
    for name, start in (("t.md", "# Benchmark"), ("t.html", "<!doctype html>")):
        assert call("table", folder, "-o", name) == 0
        assert Path(name).read_text().startswith(start)
        assert call("table", folder, "-o", name) == 2
        assert capsys.readouterr().err == (
            f"bnnzoo: {name}: exists; use --force to replace it, or another name with -o\n"
        )
        assert call("table", folder, "-o", name, "--force") == 0
    assert call("table", folder, "-o", "t.pdf") == 2
    assert call("table", "nowhere") == 2
    assert "bnnzoo bench run -o nowhere writes this file" in capsys.readouterr().err


def test_verify_repeats_fits_and_reports_changed_results(call, tmp_path, capsys):
    make_table(tmp_path / "t.csv")
    run = (
        "run",
        "--problems",
        "t.csv",
        "--methods",
        "mean,linear",
        "--folds",
        "0",
        "--budget",
        "5s",
        "-o",
        "out",
        "-q",
    )
    assert call(*run) == 0
    capsys.readouterr()
    assert call("verify", "out", "--rows", 2, "--json", "-q") == 0
    checks = json.loads(capsys.readouterr().out)
    assert len(checks) == 10
    assert all(check["agrees"] for check in checks)
    path = tmp_path / "out" / "results.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    second["metrics"]["crps"] *= 1.2
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    assert call("verify", "out", "--rows", 2) == 3
    captured = capsys.readouterr()
    assert (
        "bnnzoo: out: 1 of 10 metrics differ by more than the tolerance, such as crps of linear on t, fold 0: "
        in captured.err
    )
    assert captured.out.count("NO") == 1
    make_table(tmp_path / "t.csv", seed=1)
    assert call("verify", "out") == 2
    assert "the data or the folds have changed since the fit" in capsys.readouterr().err


def test_verify_finds_changed_folds_and_accepts_lines_without_their_digest(call, tmp_path, capsys):
    folder = make_folder(tmp_path / "p", np.random.default_rng(0).normal(size=(12, 3)), np.eye(12)[:, :2])
    mask = folder / "test_mask.csv.gz"
    first = mask.read_bytes()
    run = ("run", "--problems", "p", "--folds", "0", "-o", "out", "-q", "--methods")
    assert call(*run, "mean") == 0
    path = tmp_path / "out" / "results.jsonl"
    (stored,) = map(json.loads, path.read_text().splitlines())
    assert len(stored["mask_sha256"]) == 64
    mask.write_bytes((make_folder(tmp_path / "q", np.eye(3), np.eye(12)[:, 2:4]) / mask.name).read_bytes())
    assert call("verify", "out") == 2
    assert "p: the data or the folds have changed since the fit; restore the earlier files" in capsys.readouterr().err
    assert call(*run, "linear") == 2
    assert "the data, the folds or the target of p have changed since the first fit" in capsys.readouterr().err
    mask.write_bytes(first)
    del stored["mask_sha256"]
    path.write_text(json.dumps(stored) + "\n")
    assert call("verify", "out", "-q") == 0
    assert call(*run, "linear") == 0


def test_verify_finds_data_that_were_moved(call, tmp_path, capsys):
    (tmp_path / "before").mkdir()
    make_table(tmp_path / "before" / "t.csv")
    words = "--problems before --methods linear --folds 0 --budget 5s -o out -q"
    assert call("run", *words.split()) == 0
    (line,) = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    assert line["source"] == "before/t.csv"  # as typed, so that the file names no folder of this machine
    (tmp_path / "before").rename(tmp_path / "after")
    capsys.readouterr()
    assert call("verify", "out") == 2
    assert capsys.readouterr().err == (
        "bnnzoo: before/t.csv: no such file; give the path of the data with --problems\n"
    )
    assert call("verify", "out", "--problems", "after", "-q") == 0
    assert call("verify", "out", "--problems", "after", "--methods", "mean, linear", "-q") == 0
    assert call("verify", "out", "--problems", "after", "--methods", "mean") == 2
    assert "no fit of these problems and methods succeeded" in capsys.readouterr().err
    make_table(tmp_path / "other.csv")
    assert call("verify", "out", "--problems", "other.csv") == 2
    assert "no fit of these problems and methods succeeded" in capsys.readouterr().err


def test_allowed_differences():
    assert allowed_difference("crps", 0.2, 0.05, 10) == pytest.approx(0.01)
    assert allowed_difference("nll", 0.1, 0.05, 10) == pytest.approx(0.05)
    assert allowed_difference("nll", -3.0, 0.05, 10) == pytest.approx(0.15)
    assert allowed_difference("coverage_90", 0.9, 0.05, 10) == pytest.approx(0.15)
