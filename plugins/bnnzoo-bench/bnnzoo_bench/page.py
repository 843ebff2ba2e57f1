"""The page of a benchmark as Markdown, or as one HTML file that refers to no other file."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bnnzoo.errors import UsageError
from bnnzoo_bench import svg
from bnnzoo_bench.pareto import ParetoPlot, picture, sentence
from bnnzoo_bench.ranking import Ranking
from bnnzoo_bench.tables import Cell, Diagram, Heading, Part, Table

_STYLE = """
:root{color-scheme:light dark;--text:#1c1e21;--back:#fff;--soft:#5f6670;--line:#d8dce1;--head:#f3f5f7;--good:#0a6b3d;
--bad:#a6281c;--accent:#1f5fbf}
@media(prefers-color-scheme:dark){:root{--text:#e6e8eb;--back:#15171a;--soft:#9aa3ad;--line:#343a41;--head:#1f2328;
--good:#6fd39c;--bad:#ff9a8d;--accent:#8ab4ff}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem 1rem 4rem;max-width:72rem;color:var(--text);background:var(--back);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.7rem;margin:.3rem 0 .6rem}h2{font-size:1.25rem;margin:2.4rem 0 .5rem}
h3{font-size:1.05rem;margin:1.6rem 0 .2rem}
p{max-width:46rem;margin:.4rem 0 .8rem;color:var(--soft);overflow-wrap:anywhere}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;width:fit-content;max-width:100%}
table{border-collapse:separate;border-spacing:0;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
tbody tr:last-child>*{border-bottom:0}
tbody tr:hover>*{background:var(--head)}
th{background:var(--head);font-weight:600}tbody th{background:var(--back)}
.left{text-align:left}tr>:first-child{text-align:left;position:sticky;left:0}
td.long{white-space:normal;min-width:16rem;overflow-wrap:anywhere}
th button{all:unset;cursor:pointer;white-space:nowrap}
th button:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
th[aria-sort=ascending] button::after{content:" \\25B4"}th[aria-sort=descending] button::after{content:" \\25BE"}
.good{color:var(--good)}.bad{color:var(--bad)}
figure{margin:1rem 0}svg{display:block;width:100%;max-width:38rem;height:auto;color:var(--text)}
@media(max-width:480px){body{font-size:15px}th,td{padding:.35rem .5rem}
tr>:first-child{max-width:9rem;white-space:normal;
overflow-wrap:break-word}}
"""
_SCRIPT = """
for(const table of document.querySelectorAll("table")){const body=table.tBodies[0];
[...table.tHead.rows[0].cells].forEach((head,column)=>head.firstChild.addEventListener("click",()=>{
const down=head.getAttribute("aria-sort")==="ascending";
for(const other of head.parentNode.cells)other.removeAttribute("aria-sort");
head.setAttribute("aria-sort",down?"descending":"ascending");
const key=row=>row.cells[column].dataset.value;
const order=(a,b)=>{const x=key(a),y=key(b),d=x-y;return Number.isNaN(d)?x.localeCompare(y):d};
body.append(...[...body.rows].sort((a,b)=>down?order(b,a):order(a,b)))}))}
"""
_LONG = 40


def to_markdown(parts: Sequence[Part]) -> str:
    """Return the parts of a page as Markdown, with a list or a sentence in place of each picture."""
    return "\n\n".join(filter(None, map(_markdown, parts)))


def _markdown(part: Part) -> str:
    if isinstance(part, Heading):
        return f"{'#' * part.level} {part.text}"
    if isinstance(part, Table):
        header = [_escaped(name) for name in part.header]
        rows = [[_escaped(cell.text) for cell in row] for row in part.rows]
        rule = ["---", *("---:" for _ in header[1:])]
        return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])
    if isinstance(part, Diagram):
        names = part.ranking.methods
        groups = [", ".join(names[first : last + 1]) for first, last in part.ranking.groups()]
        return "\n".join(f"- not significantly different: {_escaped(group)}" for group in groups)
    return sentence(part) if isinstance(part, ParetoPlot) else part


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def to_html(parts: Sequence[Part]) -> str:
    """Return the parts of a page as HTML that refers to no other file."""
    body = "\n".join(map(_html, parts))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>bnnzoo bench</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def _html(part: Part) -> str:
    if isinstance(part, Heading):
        return f"<h{part.level}>{escape(part.text)}</h{part.level}>"
    if isinstance(part, Table):
        heads = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in part.header)
        rows = "\n".join(f"<tr>{''.join(map(_cell, range(len(row)), row))}</tr>" for row in part.rows)
        return (
            f'<div class="scroll" tabindex="0"><table>\n<thead><tr>{heads}</tr></thead>\n'
            f"<tbody>\n{rows}\n</tbody></table></div>"
        )
    if isinstance(part, Diagram):
        return f"<figure>{diagram(part.ranking)}</figure>"
    if isinstance(part, ParetoPlot):
        return f"<figure>{picture(part)}</figure>"
    return f"<p>{escape(part)}</p>"


def _cell(column: int, cell: Cell) -> str:
    is_text = isinstance(cell.value, str)
    classes = [cell.tone, "left" * is_text, "long" * (len(cell.text) > _LONG)]
    value = cell.value if isinstance(cell.value, str) or math.isfinite(cell.value) else "1e308"
    class_names = " ".join(filter(None, classes))
    attributes = f' data-value="{escape(str(value))}"' + (f' class="{class_names}"' if class_names else "")
    return (
        f'<th scope="row"{attributes}>{escape(cell.text)}</th>'
        if not column
        else f"<td{attributes}>{escape(cell.text)}</td>"
    )


_WIDTH, _LABEL, _RIGHT, _ROW, _TOP = 390, 142, 16, 24, 58


def diagram(ranking: Ranking) -> str:
    """Return the critical-difference diagram as SVG, with a row per method and a bar per group of `Ranking.groups`."""
    means, groups, limit = ranking.mean_ranks, ranking.groups(), ranking.critical_difference or 0.0
    count = len(ranking.methods)
    scale = (_WIDTH - _LABEL - _RIGHT) / max(count - 1, 1)

    def x(rank: float) -> float:
        return _LABEL + (rank - 1) * scale

    bottom = _TOP + count * _ROW
    lines = []
    for rank in range(1, count + 1):
        lines.append(svg.line(x(rank), _TOP - 12, x(rank), bottom, 'stroke-opacity=".18"'))
        lines.append(svg.label(x(rank), _TOP - 18, str(rank), "middle"))
    width = min(limit, count - 1) * scale
    arrow = "" if limit <= count - 1 else ", wider than the axis"
    lines.append(svg.line(x(1), 22, x(1) + width, 22, 'stroke-width="2"'))
    lines += [svg.line(end, 17, end, 27, 'stroke-width="2"') for end in (x(1), x(1) + width)]
    lines.append(svg.label(x(1), 12, f"critical difference {limit:.2f}{arrow}", "start"))
    for row, (name, mean) in enumerate(zip(ranking.methods, means, strict=True)):
        y = _TOP + row * _ROW + _ROW / 2
        shown = name if len(name) <= 16 else f"{name[:15]}…"
        lines.append(svg.label(_LABEL - 12, y + 4, shown, "end"))
        lines.append(svg.line(x(1), y, x(mean), y, 'stroke-opacity=".35"'))
        tip = f"<title>{escape(name)}: mean rank {mean:.2f}</title>"
        lines.append(f'<circle cx="{x(mean):.1f}" cy="{y:.1f}" r="4.5" fill="var(--accent)">{tip}</circle>')
    for number, (first, last) in enumerate(groups):
        y = bottom + 12 + 10 * number
        lines.append(svg.line(x(means[first]) - 5, y, x(means[last]) + 5, y, 'stroke-width="4" stroke-linecap="round"'))
    height = bottom + 14 + 10 * len(groups)
    text = "; ".join(f"{name} {mean:.2f}" for name, mean in zip(ranking.methods, means, strict=True))
    alternative = escape(f"Mean ranks: {text}. Critical difference: {limit:.2f}.")
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{alternative}">{"".join(lines)}</svg>'


def write(path: Path, text: str) -> None:
    """Write a file completely or not at all.

    Raises:
        UsageError: if the file cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); use another path with -o") from error
