"""One page per sampler, model, likelihood and prior, written from the registry and from tables of the documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from repository_pages import DOCS, rewrite_links, write_if_changed

from bnnzoo.plugins import registry
from bnnzoo.plugins.builtin import RECIPES
from bnnzoo.recipe import Field, fields_of

FOLDER = "methods"
KINDS = {
    "samplers": "Samplers",
    "models": "Models",
    "likelihoods": "Likelihoods",
    "priors": "Priors",
}
EXACTNESS = {
    "exact": "The draws follow the posterior, once the chain has converged.",
    "noise-corrected": (
        "The accept step corrects the noise of the mini-batches. The draws follow the posterior if the guard passes."
    ),
    "biased": "The draws follow another distribution than the posterior. Its distance depends on the settings.",
    "approximate": "The draws follow an approximation of the posterior.",
}
"""Meaning of each exactness, in the order of the index."""


class Source(NamedTuple):
    """A table of the documentation with a row for each part, or several."""

    page: str
    heading: str
    column: int = 0
    """The column that names the part."""
    table: int = 0
    """The number of the table below the heading."""
    caption: str = ""
    """Meaning of the columns."""


DESCRIPTIONS = {
    "samplers": Source("samplers.md", "Samplers"),
    "models": Source("models.md", "Models"),
    "likelihoods": Source("models.md", "Likelihoods"),
    "priors": Source("models.md", "Priors"),
}
"""Tables that describe the parts; their columns become the first table of a page."""

_PAIRS = "RMSE, NLL and R-hat of one run of ten seconds on each of five tables"

RESULTS = (
    Source("correctness.md", "What is exact", caption="The reason"),
    Source("correctness.md", "What is exact", table=1, caption="The test on posteriors with exact answers"),
    Source(
        "correctness.md",
        "Two targets",
        table=1,
        caption="Posterior standard deviations of a line divided by the exact ones, on 100 points by batches of 2",
    ),
    Source("approximate.md", "A small network with an exact answer", caption="Mean and sd of a network's function"),
    Source("zoo.md", "The zoo on its own examples", 1, caption="Runs of the shipped recipes on the models' examples"),
    Source("zoo.md", "Any model with any sampler", caption=_PAIRS),
    Source("zoo.md", "Any model with any sampler", table=1, caption=_PAIRS),
)
"""Tables of results, written by scripts, whose rows are repeated on the page of a sampler."""


_PICTURE = (
    "The function of a small network on the data set `tutorial-sine`, in 15 seconds with default settings, beside a "
    "long run of `nuts`. `python docs/figures/methods.py docs/images` makes this picture."
)


class Table(NamedTuple):
    """A Markdown table."""

    header: list[str]
    rows: list[list[str]]

    def text(self) -> str:
        """Return the table as Markdown."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def read_table(source: Source) -> Table:
    """Return a table below a heading.

    Raises:
        LookupError: if the page has no such heading or table.
    """
    text = (DOCS / source.page).read_text(encoding="utf-8")
    match = re.search(rf"^#+ {re.escape(source.heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    section = rewrite_links(match[1], DOCS / source.page) if match else ""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", section, re.MULTILINE)
    if source.table >= len(blocks):
        place = f"{source.page}: {source.heading!r}"
        raise LookupError(f"{place}: no such heading with {source.table + 1} tables; change docs/site/method_pages.py")
    header, _, *rows = [_cells(line) for line in blocks[source.table].strip().splitlines()]
    return Table(header, rows)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]


def rows_of(name: str, table: Table, column: int) -> list[list[str]]:
    """Return the rows of a table whose cell names the part, alone or in a list."""
    return [row for row in table.rows if name in _names(row[column])]


def _names(cell: str) -> list[str]:
    """Return the names at the beginning of a cell: "`hmc`, `nuts`", "laplace, full" or "SGLD, n = 2"."""
    if "`" in cell:
        return re.findall(r"`([\w-]+)`", re.split(r" with ", cell)[0])
    return [re.split(r"[ ,:(]", cell.casefold())[0]]


def measured(name: str) -> Iterator[str]:
    """Yield the results of a sampler: a heading with a link, and rows of a table."""
    for source in RESULTS:
        table = read_table(source)
        if rows := rows_of(name, table, source.column):
            address = f"/{source.page}#{anchor(source.heading)}"
            yield f"{source.caption} ([source]({address})):\n\n{Table(table.header, rows).text()}\n"


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as a forge makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def option_table(kind: str, fields: list[Field]) -> str:
    """Return the options of a part: name, meaning with values and default."""
    rows = []
    for field in fields:
        option = f"`--{registry.singular(kind)}.{field.name.replace('_', '-')}`"
        default = f" Default `{field.default_text}`." if field.default_text else ""
        rows.append([option, f"{_as_text(field.help)}. *Values:* {_as_text(field.accepts.description)}.{default}"])
    return Table(["option", "meaning"], rows).text()


def _as_text(text: str) -> str:
    """Escape the characters that Markdown reads."""
    return re.sub(r"([|*<>_\[\]])", r"\\\1", text)


def description(part: Any) -> str:
    """Return a docstring as Markdown, without its sections of arguments and attributes."""
    text = re.split(r"^(?:Args|Attributes|Returns|Raises):$", inspect.getdoc(part) or "", flags=re.MULTILINE)[0]
    lines = [line if line.startswith("    ") else _escape_outside_code(line) for line in text.strip().splitlines()]
    return "\n".join(lines)


def _escape_outside_code(line: str) -> str:
    pieces = re.split(r"(`[^`]+`)", line)
    return "".join(p if number % 2 else re.sub(r"([*<>\[\]])", r"\\\1", p) for number, p in enumerate(pieces))


def recipe_text(name: str) -> str:
    """Return the shipped recipe with the name of a part; "" if there is none."""
    path = RECIPES / f"{name}.yaml"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def section_of(kind: str, name: str) -> str:
    """Return a link to the section about a part in the guide."""
    page = DESCRIPTIONS[kind].page
    for heading in re.findall(r"^#+ (.*)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE):
        if name in heading.split(", "):
            return f"[{heading}](/{page}#{anchor(heading)})"
    source = DESCRIPTIONS[kind]
    return f"[{source.heading}](/{page}#{anchor(source.heading)})"


def example_command(kind: str, name: str) -> str:
    """Return a command that uses the part."""
    return {
        "samplers": f"bnnzoo sample mlp {name} -o run.nc",
        "models": f"bnnzoo sample {name} -o run.nc",
        "likelihoods": f"bnnzoo sample MODEL SAMPLER --data FILE --likelihood {name}",
        "priors": f"bnnzoo sample mlp nuts --prior {name} -o run.nc",
    }[kind]


def page(kind: str, name: str) -> str:
    """Return the page of one part."""
    entry, part = registry.find(kind, name), registry.load(kind, name)
    singular = registry.singular(kind)
    lines = [f"# {name}", "", f"A {singular}: {_as_text(entry.summary)}.", ""]
    lines += ["```sh", example_command(kind, name), f"bnnzoo info {singular} {name}", "```", ""]
    source = DESCRIPTIONS[kind]
    table = read_table(source)
    for row in rows_of(name, table, source.column):
        facts = zip(table.header[1:], row[1:], strict=True)
        lines += [f"- **{head}:** {cell}" for head, cell in facts if cell and not head.startswith("fields")]
        lines += [""]
    if entry.exactness:
        lines += [f"*{entry.exactness}*: {EXACTNESS[entry.exactness]}", ""]
    if kind == "samplers" and (DOCS / "images" / f"method-{name}.png").is_file():
        lines += [f"![Function draws of {name} and of a long NUTS run](/images/method-{name}.png)", "", _PICTURE, ""]
    lines += ["## Description", "", description(part), ""]
    fields = fields_of(part)
    lines += ["## Options", ""]
    lines += [option_table(kind, fields) if fields else f"This {singular} has no options.", ""]
    if fields:
        example = f'{{"name": "{name}", "{fields[0].name}": ...}}'
        lines += [f"In Python give the fields in a mapping: `{singular}={example}`.", ""]
    if kind == "samplers" and (results := list(measured(name))):
        lines += ["## Results", "", *results]
    if recipe := recipe_text(name):
        lines += ["## Recipe", "", f"`bnnzoo sample --config {name}` uses this recipe:", ""]
        lines += ["```yaml", recipe, "```", ""]
    lines += ["## More", "", f"- In the guide: {section_of(kind, name)}"]
    if isinstance(part, type) and part.__name__ in _public_names():
        lines += [f"- In the reference: {{py:class}}`bnnzoo.{part.__name__}`"]
    return "\n".join(lines) + "\n"


def _public_names() -> list[str]:
    import bnnzoo

    return bnnzoo.__all__


def index(kind: str) -> str:
    """Return the list of one kind, samplers in the order of exactness."""
    lines = [f"# {KINDS[kind]}", ""]
    all_entries = registry.entries(kind)
    groups: dict[str, list[str]] = {}
    for name, entry in all_entries.items():
        groups.setdefault(entry.exactness, []).append(name)
    for exactness in sorted(groups, key=list(EXACTNESS).index) if any(groups) else groups:
        if exactness:
            lines += [f"## {exactness.capitalize()}", "", EXACTNESS[exactness], ""]
        rows = [[f"[{name}]({kind}/{name}.md)", _as_text(all_entries[name].summary)] for name in groups[exactness]]
        lines += [Table(["name", "description"], rows).text(), ""]
    lines += ["```{toctree}", ":hidden:", ":maxdepth: 1", ""]
    lines += [f"{kind}/{name}" for names in groups.values() for name in names]
    return "\n".join([*lines, "```"]) + "\n"


def write_pages() -> None:
    """Write the pages of all parts, and their lists."""
    for kind in KINDS:
        for name in registry.entries(kind):
            write_if_changed(DOCS / FOLDER / kind / f"{name}.md", page(kind, name))
        write_if_changed(DOCS / FOLDER / f"{kind}.md", index(kind))
