"""The page of a benchmark on reference posteriors: distances from each reference, and seconds and gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bnnzoo_bench.pareto import ParetoPlot, Point, front
from bnnzoo_bench.results import Line, distinct
from bnnzoo_bench.tables import (
    Cell,
    Heading,
    Part,
    Table,
    failures,
    number_cell,
    provenance,
    seconds_cell,
    text_cell,
    with_error,
)

_TITLES = {
    "total_variation": "total variation",
    "wasserstein": "Wasserstein",
    "energy_distance": "energy distance",
    "agreement": "agreement",
    "epistemic_ratio": "epistemic ratio",
    "nll_difference": "NLL difference",
}
_SMALLEST = 1e-6
"""Lower limit of the distances and the seconds in the picture, because the axes are logarithmic."""


def is_of_references(lines: Sequence[Line]) -> bool:
    """Whether the results are from a benchmark on reference posteriors."""
    return bool(lines) and lines[0].get("kind") == "sampler"


def sections(lines: Sequence[Line]) -> list[Part]:
    """Return the parts of the page: a table and a picture for each reference."""
    first = lines[0]
    summary = (
        f"Budget {first['budget']:g} s per fit, seed {first['seed']}. The distances compare the predictive "
        "distributions of method and reference at the inputs of the reference. For total variation, Wasserstein and "
        "energy distance, lower is better. Agreement and epistemic ratio should be 1, and the NLL difference should be "
        "0. The number after ± is the Monte Carlo error due to the draws of the reference. The last row contains the "
        "distances between two halves of the reference. An exact run with very many draws has about half these "
        "distances. Seconds are those of the start, the warm-up and the draws, without compilation. Gradients are "
        "the evaluations of likelihoods and gradients, in passes over the training rows. * marks the Pareto front: no "
        "other method has a smaller total variation in less time."
    )
    parts: list[Part] = [Heading(1, "Distance from the posterior"), summary]
    for problem in distinct(line["problem"] for line in lines):
        done = [line for line in lines if line["problem"] == problem and line["status"] == "done"]
        parts.append(Heading(2, problem))
        parts += _problem(problem, done) if done else ["No fit succeeded."]
    return [*parts, *failures(lines), Heading(2, "Machine and versions"), *provenance(lines)]


def _problem(problem: str, lines: Sequence[Line]) -> list[Part]:
    first = lines[0]
    plot = ParetoPlot(
        problem,
        tuple(
            Point(
                line["method"],
                max(line["seconds_run"], _SMALLEST),
                max(line["metrics"]["total_variation"], _SMALLEST),
            )
            for line in lines
        ),
        max(first["floor"]["total_variation"], _SMALLEST),
    )
    best = {point.name for point in front(plot.points)}
    names = [name for name in _TITLES if name in first["metrics"]]
    header = ["method", *(_TITLES[name] for name in names), "seconds", "gradients", "verdict"]
    rows = [_row(line, names, line["method"] in best) for line in lines]
    floor = [number_cell(first["floor"].get(name, math.nan), ".2g") for name in names]
    rows.append(
        [text_cell("two halves of the reference"), *floor, number_cell(math.nan), number_cell(math.nan), text_cell("")]
    )
    size = f"{first['rows']} training rows, {first['features']} inputs; SHA-256 of the file: {first['sha256'][:16]}"
    return [size, Table(header, rows), plot]


def _row(line: Line, names: Sequence[str], is_best: bool) -> list[Cell]:
    metrics, errors = line["metrics"], line["mcse"]
    name = f"{line['method']} *" if is_best else line["method"]
    numbers = [Cell(with_error(metrics[key], errors[key]), metrics[key]) for key in names]
    verdict = line["verdict"].partition(":")[0].partition(",")[0]
    gradients = number_cell(math.nan if line["gradients"] is None else line["gradients"])
    return [text_cell(name), *numbers, seconds_cell(line["seconds_run"]), gradients, text_cell(verdict)]
