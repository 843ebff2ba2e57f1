"""HTML report of a run: four answers, pictures, numbers, and how to repeat it. No network access, no script."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, TypeVar

from bnnzoo import plots
from bnnzoo.errors import BnnzooError, DamagedError
from bnnzoo.evaluation import counts, diagnostics, effort, evaluate, findings, loo, ood
from bnnzoo.evaluation.evaluate import Evaluation
from bnnzoo.evaluation.findings import Answer
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.evaluation.record import Record
from bnnzoo.plots import Picture
from bnnzoo.recipe import recipe_from
from bnnzoo.report import pictures

T = TypeVar("T")

_MOST_ROWS = 40
_COST = {
    "seconds_start": "imports, data and preparation, s",
    "seconds_compile": "compilation, s",
    "seconds_warmup": "start and warm-up, s",
    "seconds_sampling": "sampling, s",
    "seconds_judging": "test of convergence, s",
    "seconds_writing": "writing, s",
    "target_evaluations": "likelihoods or gradients of single rows",
    "device": "device",
    "placement": "chains",
    "precision": "precision",
}


def page(predictor: Predictor) -> str:
    """Return the report as HTML. The page states what the run lacks.

    Raises:
        DamagedError: if the run's arrays are damaged or inconsistent with its attributes.
    """
    about = predictor.record.attributes
    diagnosis = _attempt(lambda: diagnostics.of_run(predictor))
    looked = _attempt(lambda: effort.for_a_page(predictor))
    # Without draws there is nothing to thin; each section then states the reason.
    whole, predictor = predictor.record, predictor if isinstance(looked, BnnzooError) else looked
    record = predictor.record
    evaluation = _attempt(lambda: _evaluation(predictor))
    drawn = dict(pictures.draw(predictor))
    answers = _answers(predictor, diagnosis, evaluation)
    tone, overall = findings.overall(answers)
    known = {name: picture for name, picture in drawn.items() if isinstance(picture, Picture)}
    recipe = about.get("recipe", "")
    values = {
        "title": escape(f"{about['model']} by {about['sampler']}"),
        "subtitle": escape(_subtitle(whole)),
        "tone": tone,
        "overall": escape(overall),
        "findings": "\n".join(_answer(answer) for answer in answers),
        "pictures": "\n".join(_section(title, known) for title in _sections()),
        "metrics": _or_reason(evaluation, lambda found: _metrics(found.estimates, record, whole)),
        "diagnostics": _or_reason(diagnosis, _diagnostics),
        "reproduce": _reproduce(about, recipe),
        "cost": _table(("", ""), [(words, about[key]) for key, words in _COST.items() if key in about]),
        "recipe": _recipe(about, recipe),
        "versions": _table(("", ""), sorted(json.loads(about.get("versions", "{}")).items())),
        "missing": _missing({name: reason for name, reason in drawn.items() if not isinstance(reason, Picture)}),
    }
    template = files("bnnzoo.report").joinpath("report.html").read_text(encoding="utf-8")
    return string.Template(template).substitute(values)


def _evaluation(predictor: Predictor) -> Evaluation:
    x, y = predictor.test_rows()
    estimates, curve = evaluate.of_rows(predictor, x, y)
    return Evaluation({**estimates, **loo.estimates(predictor), "rows": Estimate(len(y))}, curve)


def _attempt(make: Callable[[], T]) -> T | BnnzooError:
    """Return the result of `make`, or its error; a damaged file raises."""
    try:
        return make()
    except DamagedError:
        raise
    except BnnzooError as error:
        return error


def _answers(
    predictor: Predictor, diagnosis: dict[str, Any] | BnnzooError, evaluation: Evaluation | BnnzooError
) -> list[Answer]:
    if isinstance(diagnosis, BnnzooError):
        found = [Answer(findings.RAN, "no", f"{diagnosis}."), findings.unknown(findings.CONVERGED, diagnosis)]
    else:
        against = findings.judged(diagnosis, of_sampler=predictor.record.findings)
        found = [findings.ran(diagnosis, against), findings.converged(diagnosis, against)]
    if isinstance(evaluation, BnnzooError):
        found.append(findings.unknown(findings.CALIBRATED, evaluation))
    else:
        answer = findings.calibrated(evaluation.calibration, int(evaluation.estimates["rows"].value))
        caveat = counts.caveat(predictor, evaluation.estimates)
        found.append(findings.with_caveat(answer, caveat) if caveat else answer)
    novelty = _attempt(lambda: ood.of_run(predictor, "noise", predictor.test_rows()[0]).estimates())
    if isinstance(novelty, BnnzooError):
        found.append(findings.unknown(findings.KNOWS, novelty))
    else:
        found.append(findings.knows(novelty))
    return found


def _subtitle(record: Record) -> str:
    about = record.attributes
    sizes = record.tree["posterior"].sizes if "posterior" in record.tree.children else {}
    data = recipe_from(about["recipe"]).data if about.get("recipe") else None
    parts = [
        f"data {data}" if data else "",
        f"{sizes.get('chain', 0)} chains of {about['draws_done']} draws",
        "" if about["complete"] else f"unfinished: {about['draws_requested']} were requested",
        str(about["exactness"]),
        "" if about["likelihood_power"] == 1 else f"likelihood to the power {about['likelihood_power']:g}",
        f"bnnzoo {about['bnnzoo_version']}",
    ]
    return " · ".join(part for part in parts if part)


def _answer(answer: Answer) -> str:
    mark = {"yes": "✓ yes", "no": "✗ no", "unsure": "? unsure"}[answer.says]
    return (
        f'<li><span class="answer {answer.says}">{mark}</span>'
        f"<div><strong>{escape(answer.question)}</strong>{escape(answer.words)}</div></li>"
    )


def _sections() -> list[str]:
    return list(dict.fromkeys(drawing.section for drawing in pictures.PICTURES.values()))


def _section(title: str, known: Mapping[str, Picture]) -> str:
    here = [picture for name, picture in known.items() if pictures.PICTURES[name].section == title]
    if not here:
        return ""
    return f'<h2>{title}</h2>\n<div class="grid">\n' + "\n".join(_figure(picture) for picture in here) + "\n</div>"


def _figure(picture: Picture) -> str:
    table = picture.table
    shown = table.iloc[plots.some(len(table), _MOST_ROWS)]
    few = "" if len(shown) == len(table) else f" ({len(shown)} of {len(table)} rows)"
    return (
        f'<figure class="card" id="{picture.name}"><h3>{escape(picture.title)}</h3>\n{picture.inline_svg()}\n'
        f'<figcaption><p aria-hidden="true">{escape(picture.alt)}</p></figcaption>\n'
        f"<details><summary>The numbers behind it{few}</summary>"
        f"{_table([str(c) for c in shown.columns], shown.itertuples(index=False))}</details></figure>"
    )


def _metrics(estimates: Mapping[str, Estimate], record: Record, whole: Record) -> str:
    """Return a table of all metrics, with standard errors over rows and Monte Carlo errors where they exist."""
    caveat = loo.caveat(record)
    rows = [
        (name, estimate.value, *("" if error is None else error for error in (estimate.se, estimate.mcse)))
        for name, estimate in estimates.items()
    ]
    said = f"<p>{escape(caveat)}.</p>" if caveat and "loo_nll" in estimates else ""
    some = record.shape[1], len(record.test_rows()[0])
    all_ = whole.shape[1], len(whole.test_rows()[0])
    if some != all_:
        said += (
            f"<p>From {some[0]} of {all_[0]} draws per chain and {some[1]} of {all_[1]} test rows, as in the pictures; "
        )
        said += "<code>bnnzoo evaluate</code> uses all.</p>"
    return _table(("", "value", "± s.e.", "± MC"), rows) + said


def _diagnostics(diagnosis: Mapping[str, Any]) -> str:
    return _table(("", "value"), [(name, value) for name, value in diagnosis.items() if value != ""])


def _reproduce(about: Mapping[str, Any], recipe: str) -> str:
    if not recipe:
        return "<p>The posterior was made in Python: the file holds its draws, but no recipe that repeats it.</p>"
    text = (
        "<p>Save the recipe below as <code>recipe.yaml</code>. On the same machine and versions this gives the same "
        "bits:</p><pre>bnnzoo sample --config recipe.yaml -o again.nc</pre>"
    )
    if "data" not in recipe or "\ndata: null" in recipe:
        text += "<p>The data were given in Python; give the same data again.</p>"
    sha = str(about.get("data_sha256", ""))
    return text + (f'<p class="quiet">SHA-256 of the training rows: {escape(sha)}</p>' if sha else "")


def _recipe(about: Mapping[str, Any], recipe: str) -> str:
    tuned = json.loads(about.get("tuned") or "{}")
    text = f"<pre>{escape(recipe)}</pre>" if recipe else "<p>None: the posterior was made in Python.</p>"
    if tuned:
        text += f"<p>Warm-up chose:</p><pre>{escape(json.dumps(tuned, indent=1))}</pre>"
    return text


def _missing(reasons: Mapping[str, object]) -> str:
    if not reasons:
        return ""
    table = _table(("picture", "why"), [(name, str(reason)) for name, reason in reasons.items()])
    return f'<details class="quiet"><summary>Pictures that this run does not have</summary>{table}</details>'


def _or_reason(found: T | BnnzooError, show: Callable[[T], str]) -> str:
    return f"<p>None: {escape(str(found))}.</p>" if isinstance(found, BnnzooError) else show(found)


def _table(header: Sequence[str], rows: Any) -> str:
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [index for index in range(len(header)) if cells and all("number" in row[index] for row in cells)]
    classes = [' class="number"' if index in numeric else "" for index in range(len(header))]
    names = zip(classes, header, strict=True)
    head = "".join(f'<th scope="col"{c}>{escape(name)}</th>' for c, name in names) if any(header) else ""
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def _cell(value: Any) -> str:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{escape(str(value))}</td>"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'<td class="number">{text.replace("-", "−", 1) if text.startswith("-") else text}</td>'
