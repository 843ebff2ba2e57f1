"""HTML report of a run: answers to four questions, pictures, numbers, and the commands that repeat the run.

The page has no scripts and needs no network.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, TypeVar

from bnnzoo import plots
from bnnzoo.errors import BnnzooError
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import diagnostics, findings
from bnnzoo.evaluation.convergence.findings import Answer
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.predictions import loo, new_rows, thinning
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import count_tests, evaluate, familiarity
from bnnzoo.evaluation.scores.evaluate import Evaluation
from bnnzoo.models import own
from bnnzoo.plots import Picture
from bnnzoo.recipe import recipe_from
from bnnzoo.report import pictures
from bnnzoo.report.pictures import attempt

T = TypeVar("T")

_MAX_ROWS = 40
_COST = {
    "seconds_start": "imports, data and preparation, s",
    "seconds_compile": "compilation, s",
    "seconds_warmup": "initial positions and warm-up, s",
    "seconds_sampling": "sampling, s",
    "seconds_judging": "test of convergence, s",
    "seconds_writing": "writing, s",
    "target_evaluations": "evaluations of the likelihood or gradient of one row",
    "device": "device",
    "placement": "chains",
    "precision": "precision",
}
_CHANGED_DRAWS = {
    "inexact_resume": "the run was resumed on another machine or with other versions",
    "padded_rows": "the data were padded to share a compiled program",
    "row_shards": "the rows were divided among the workers of a cluster, so sums were rounded in another order",
}
"""Reasons why the recipe of a run gives other draws, by the name of the attribute that marks such a run."""


def page(predictor: Predictor) -> str:
    """Return the report as HTML. If a section is not available for the run, the page states the reason.

    Raises:
        DamagedError: if the arrays of the run are damaged, or if they contradict the attributes of its file.
    """
    attributes = predictor.record.attributes
    diagnosis = attempt(lambda: diagnostics.of_run(predictor))
    thinned = attempt(lambda: thinning.for_report(predictor))
    # A run without draws cannot be thinned. Each section then states the reason.
    full_record, predictor = predictor.record, predictor if isinstance(thinned, BnnzooError) else thinned
    record = predictor.record
    evaluation = attempt(lambda: _evaluation(predictor))
    picture_by_name = pictures.draw(predictor)
    answers = _answers(predictor, diagnosis, evaluation)
    tone, overall = findings.combine_answers(answers)
    available = {name: picture for name, picture in picture_by_name.items() if isinstance(picture, Picture)}
    recipe = attributes.get("recipe", "")
    values = {
        "title": escape(f"{attributes['model']} by {attributes['sampler']}"),
        "subtitle": escape(_subtitle(full_record)),
        "tone": tone,
        "overall": escape(overall),
        "findings": "\n".join(_answer(answer) for answer in answers),
        "pictures": "\n".join(_section(title, available) for title in _sections()),
        "metrics": _or_reason(evaluation, lambda result: _metrics(result.estimates, record, full_record)),
        "diagnostics": _or_reason(diagnosis, _diagnostics),
        "reproduce": _reproduce(attributes, recipe),
        "cost": _table(
            ("", ""), [(cost_label, attributes[key]) for key, cost_label in _COST.items() if key in attributes]
        ),
        "recipe": _recipe(attributes, recipe),
        "versions": _table(("", ""), sorted(json.loads(attributes.get("versions", "{}")).items())),
        "missing": _missing_pictures(
            {name: reason for name, reason in picture_by_name.items() if not isinstance(reason, Picture)}
        ),
    }
    template = files("bnnzoo.report").joinpath("report.html").read_text(encoding="utf-8")
    return string.Template(template).substitute(values)


def _evaluation(predictor: Predictor) -> Evaluation:
    x, y = new_rows.evaluation_rows(predictor)
    estimates, curve = evaluate.of_rows(predictor, x, y)
    return Evaluation({**estimates, **loo.estimates(predictor), "rows": Estimate(len(y))}, curve)


def _answers(
    predictor: Predictor, diagnosis: dict[str, Any] | BnnzooError, evaluation: Evaluation | BnnzooError
) -> list[Answer]:
    if isinstance(diagnosis, BnnzooError):
        answers = [Answer(findings.RAN, "no", f"{diagnosis}."), findings.answer_unknown(findings.CONVERGED, diagnosis)]
    else:
        problems = findings.gate_findings(diagnosis, of_sampler=predictor.record.findings)
        answers = [findings.answer_ran(diagnosis, problems), findings.answer_converged(diagnosis, problems)]
    if isinstance(evaluation, BnnzooError):
        answers.append(findings.answer_unknown(findings.CALIBRATED, evaluation))
    else:
        estimates = evaluation.estimates
        censored = estimates["censored"].value if "censored" in estimates else 0.0
        rows = round(estimates["rows"].value * (1 - censored))
        answer = findings.answer_calibrated(evaluation.calibration, rows)
        caveat = count_tests.caveat(predictor, evaluation.estimates)
        answers.append(findings.with_caveat(answer, caveat) if caveat else answer)
    novelty = attempt(
        lambda: familiarity.of_run(predictor, "noise", new_rows.evaluation_rows(predictor)[0]).estimates()
    )
    if isinstance(novelty, BnnzooError):
        answers.append(findings.answer_unknown(findings.KNOWS, novelty))
    else:
        answers.append(findings.answer_knows(novelty))
    return answers


def _subtitle(record: Record) -> str:
    attributes = record.attributes
    sizes = record.tree["posterior"].sizes if "posterior" in record.tree.children else {}
    data = recipe_from(attributes["recipe"]).data if attributes.get("recipe") else None
    parts = [
        f"data {data}" if data else "",
        f"{sizes.get('chain', 0)} chains of {attributes['draws_done']} draws",
        "" if attributes["complete"] else f"unfinished: {attributes['draws_requested']} draws were requested",
        str(attributes["exactness"]),
        f"approximate prior, from {attributes['prior_from']}" if attributes.get("prior_from") else "",
        "" if attributes["likelihood_power"] == 1 else f"likelihood to the power {attributes['likelihood_power']:g}",
        f"bnnzoo {attributes['bnnzoo_version']}",
    ]
    return " · ".join(part for part in parts if part)


def _answer(answer: Answer) -> str:
    mark = {"yes": "✓ yes", "no": "✗ no", "unsure": "? unsure"}[answer.outcome]
    return (
        f'<li><span class="answer {answer.outcome}">{mark}</span>'
        f"<div><strong>{escape(answer.question)}</strong>{escape(answer.text)}</div></li>"
    )


def _sections() -> list[str]:
    return list(dict.fromkeys(drawing.section for drawing in pictures.PICTURES.values()))


def _section(title: str, available: Mapping[str, Picture]) -> str:
    section_pictures = [picture for name, picture in available.items() if pictures.PICTURES[name].section == title]
    if not section_pictures:
        return ""
    return (
        f'<h2>{title}</h2>\n<div class="grid">\n'
        + "\n".join(_figure(picture) for picture in section_pictures)
        + "\n</div>"
    )


def _figure(picture: Picture) -> str:
    table = picture.table
    excerpt = table.iloc[plots.evenly_spaced(len(table), _MAX_ROWS)]
    row_count_note = "" if len(excerpt) == len(table) else f" ({len(excerpt)} of {len(table)} rows)"
    return (
        f'<figure class="card" id="{picture.name}"><h3>{escape(picture.title)}</h3>\n{picture.inline_svg()}\n'
        f'<figcaption><p aria-hidden="true">{escape(picture.alt)}</p></figcaption>\n'
        f"<details><summary>The plotted numbers{row_count_note}</summary>"
        f"{_table([str(column) for column in excerpt.columns], excerpt.itertuples(index=False))}</details></figure>"
    )


def _metrics(estimates: Mapping[str, Estimate], record: Record, full_record: Record) -> str:
    """Return an HTML table of all metrics with standard errors over rows and Monte Carlo errors, if available."""
    caveat = loo.caveat(record)
    rows = [
        (name, estimate.value, *("" if error is None else error for error in (estimate.se, estimate.mcse)))
        for name, estimate in estimates.items()
    ]
    notes = f"<p>{escape(caveat)}.</p>" if caveat and "loo_nll" in estimates else ""
    shown_sizes = record.shape[1], len(record.test_rows()[0])
    full_sizes = full_record.shape[1], len(full_record.test_rows()[0])
    if shown_sizes != full_sizes:
        notes += (
            f"<p>These metrics and the pictures use {shown_sizes[0]} of {full_sizes[0]} draws per chain and "
            f"{shown_sizes[1]} of {full_sizes[1]} test rows. "
        )
        notes += "The command <code>bnnzoo evaluate</code> uses all draws and rows.</p>"
    return _table(("", "value", "± s.e.", "± MC"), rows) + notes


def _diagnostics(diagnosis: Mapping[str, Any]) -> str:
    return _table(("", "value"), [(name, value) for name, value in diagnosis.items() if value != ""])


def _reproduce(attributes: Mapping[str, Any], recipe: str) -> str:
    if not recipe:
        return "<p>The posterior was made in Python. The file contains the draws, but no recipe to repeat the run.</p>"
    if "seeds" in attributes:
        return "<p>The chains of several runs were merged. To reproduce them, repeat each run and merge the files.</p>"
    if recipe_from(recipe).model.name.startswith(own.PREFIX):
        return "<p>The network was given in Python, so only Python can repeat the run, with the recipe below.</p>"
    reasons = [reason for name, reason in _CHANGED_DRAWS.items() if attributes.get(name)]
    promise = (
        f"This command samples the same posterior, but gives other draws, because {' and '.join(reasons)}"
        if reasons
        else "On the same machine, with the same versions, this command gives the same draws bit for bit"
    )
    text = (
        f"<p>Save the recipe below as <code>recipe.yaml</code>. {promise}:</p>"
        "<pre>bnnzoo sample --config recipe.yaml -o again.nc</pre>"
    )
    if "data" not in recipe or "\ndata: null" in recipe:
        text += "<p>The data of this run were given in Python, so the same data must be given again.</p>"
    sha = str(attributes.get("data_sha256", ""))
    return text + (f'<p class="quiet">SHA-256 of the training rows: {escape(sha)}</p>' if sha else "")


def _recipe(attributes: Mapping[str, Any], recipe: str) -> str:
    tuned = json.loads(attributes.get("tuned") or "{}")
    text = f"<pre>{escape(recipe)}</pre>" if recipe else "<p>No recipe, because the posterior was made in Python.</p>"
    if tuned:
        text += f"<p>Values that warm-up tuned:</p><pre>{escape(json.dumps(tuned, indent=1))}</pre>"
    return text


def _missing_pictures(reasons: Mapping[str, object]) -> str:
    if not reasons:
        return ""
    table = _table(("picture", "reason"), [(name, str(reason)) for name, reason in reasons.items()])
    return f'<details class="quiet"><summary>Pictures that this run does not have</summary>{table}</details>'


def _or_reason(result: T | BnnzooError, show: Callable[[T], str]) -> str:
    return f"<p>Not available: {escape(str(result))}.</p>" if isinstance(result, BnnzooError) else show(result)


def _table(header: Sequence[str], rows: Any) -> str:
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [index for index in range(len(header)) if cells and all("number" in row[index] for row in cells)]
    classes = [' class="number"' if index in numeric else "" for index in range(len(header))]
    names = zip(classes, header, strict=True)
    header_row = (
        "".join(f'<th scope="col"{class_name}>{escape(name)}</th>' for class_name, name in names) if any(header) else ""
    )
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    header_row = f"<thead><tr>{header_row}</tr></thead>" if header_row else ""
    return f'<div class="scroll"><table>{header_row}<tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{escape(str(value))}</td>"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'<td class="number">{text.replace("-", "−", 1) if text.startswith("-") else text}</td>'
