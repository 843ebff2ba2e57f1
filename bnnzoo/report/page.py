"""A run on one page: the verdict first, then pictures, numbers, and how to repeat it. No network, no script."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from bnnzoo import plots
from bnnzoo.errors import BnnzooError
from bnnzoo.evaluation import findings
from bnnzoo.plots import Picture
from bnnzoo.report import pictures

if TYPE_CHECKING:
    from bnnzoo.run import Run

T = TypeVar("T")

_MOST_ROWS = 40
_SECTIONS = {
    "What it predicts": ("band", "slices", "ood"),
    findings.CALIBRATED: ("calibration", "pit"),
    findings.CONVERGED: ("trace", "rank", "autocorrelation"),
    findings.RAN: ("steps",),
}
_COST = {
    "seconds_compile": "compilation, s",
    "seconds_warmup": "start and warm-up, s",
    "seconds_sampling": "sampling, s",
    "target_evaluations": "likelihoods or gradients of single rows",
    "device": "device",
    "placement": "chains",
    "precision": "precision",
}


def page(run: Run) -> str:
    """The report as HTML. What the run lacks is said on it."""
    about = run.attributes
    diagnosis = _attempt(run.diagnose)
    scores = _attempt(lambda: run.evaluate(save=False))
    drawn = dict(pictures.draw(run, pictures.PICTURES))
    said = _findings(run, diagnosis, scores)
    tone, overall = findings.overall(said)
    known = {name: one for name, one in drawn.items() if isinstance(one, Picture)}
    recipe = about.get("recipe", "")
    values = {
        "title": escape(f"{about['model']} by {about['sampler']}"),
        "subtitle": escape(_subtitle(run)),
        "tone": tone,
        "overall": escape(overall),
        "findings": "\n".join(_finding(one) for one in said),
        "pictures": "\n".join(_section(title, names, known) for title, names in _SECTIONS.items()),
        "metrics": _said(scores, lambda found: _numbers(found)),
        "diagnostics": _said(diagnosis, lambda found: _numbers(found)),
        "reproduce": _reproduce(about, recipe),
        "cost": _table(("", ""), [(words, about[key]) for key, words in _COST.items() if key in about]),
        "recipe": _recipe(about, recipe),
        "versions": _table(("", ""), sorted(json.loads(about.get("versions", "{}")).items())),
        "missing": _missing({name: one for name, one in drawn.items() if not isinstance(one, Picture)}),
    }
    template = files("bnnzoo.report").joinpath("report.html").read_text(encoding="utf-8")
    return string.Template(template).substitute(values)


def _attempt(make: Callable[[], T]) -> T | BnnzooError:
    """What it gives, or what it says why not."""
    try:
        return make()
    except BnnzooError as error:
        return error


def _findings(run: Run, diagnosis: Any, scores: Any) -> list[findings.Finding]:
    if isinstance(diagnosis, BnnzooError):
        found = [
            findings.Finding(findings.RAN, "no", f"{diagnosis}."),
            findings.unknown(findings.CONVERGED, diagnosis),
        ]
    else:
        found = [findings.ran(diagnosis), findings.converged(diagnosis)]
    if isinstance(scores, BnnzooError):
        found.append(findings.unknown(findings.CALIBRATED, scores))
    else:
        found.append(findings.calibrated(scores))
    unfamiliar = _attempt(lambda: run.ood("noise").summary())
    if isinstance(unfamiliar, BnnzooError):
        found.append(findings.unknown(findings.KNOWS, unfamiliar))
    else:
        found.append(findings.knows(unfamiliar))
    return found


def _subtitle(run: Run) -> str:
    about = run.attributes
    sizes = run.posterior["posterior"].sizes if "posterior" in run.posterior.children else {}
    data = run._problem.recipe.data if about.get("recipe") else None
    parts = [
        f"data {data}" if data else "",
        f"{sizes.get('chain', 0)} chains of {about['draws_done']} draws",
        "" if about["complete"] else f"unfinished: {about['draws_requested']} were asked for",
        str(about["exactness"]),
        "" if about["likelihood_power"] == 1 else f"likelihood to the power {about['likelihood_power']:g}",
        f"bnnzoo {about['bnnzoo_version']}",
    ]
    return " · ".join(part for part in parts if part)


def _finding(one: findings.Finding) -> str:
    mark = {"yes": "✓ yes", "no": "✗ no", "unsure": "? unsure"}[one.answer]
    return (
        f'<li><span class="answer {one.answer}">{mark}</span>'
        f"<div><strong>{escape(one.question)}</strong>{escape(one.words)}</div></li>"
    )


def _section(title: str, names: Sequence[str], known: Mapping[str, Picture]) -> str:
    some = [known[name] for name in names if name in known]
    if not some:
        return ""
    return f'<h2>{title}</h2>\n<div class="grid">\n' + "\n".join(_figure(one) for one in some) + "\n</div>"


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


def _numbers(found: Mapping[str, Any]) -> str:
    """Every number, with its standard error over rows and its Monte Carlo error where there are any."""
    ends = {"_se": "± s.e.", "_mcse": "± MC"}
    used = [end for end in ends if any(name.endswith(end) and name.removesuffix(end) in found for name in found)]
    rows = [
        (name, value, *(found.get(name + end, "") for end in used))
        for name, value in found.items()
        if value != "" and not any(name.endswith(end) and name.removesuffix(end) in found for end in ends)
    ]
    return _table(("", "value", *(ends[end] for end in used)), rows)


def _reproduce(about: Mapping[str, Any], recipe: str) -> str:
    if not recipe:
        return "<p>The posterior was made in Python: the file holds its draws, but no recipe that repeats it.</p>"
    text = (
        "<p>Save the recipe below as <code>recipe.yaml</code>. On the same machine and versions this gives the same "
        "bits:</p><pre>bnnzoo sample --config recipe.yaml -o again.nc</pre>"
    )
    if "data" not in recipe or "\ndata: null" in recipe:
        text += "<p>The data were given in Python: give the same ones again.</p>"
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


def _said(found: T | BnnzooError, show: Callable[[T], str]) -> str:
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
