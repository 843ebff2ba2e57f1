"""The sources of the documentation site are complete: every public name, every part, every tutorial."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import bnnzoo
import bnnzoo.testing
from bnnzoo.plugins import registry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("api/*.rst")))
TUTORIALS = sorted(path for path in DOCS.glob("tutorials/*.md") if path.stem != "index")

_DIRECTIVE = re.compile(r"^\.\. auto(?:function|class|data|exception):: (\S+)$", re.MULTILINE)
_CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def generators(monkeypatch):
    """Modules of docs/site, which Sphinx finds by its configuration."""
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    monkeypatch.setenv("BNNZOO_DISABLE_PLUGINS", "1")
    registry.reset()
    names = ("repository_pages", "method_pages")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)
    registry.reset()


def test_every_public_name_is_in_the_reference():
    estimators = ("bnnzoo.sklearn.BayesianClassifier", "bnnzoo.sklearn.BayesianRegressor")
    expected = {
        *(f"bnnzoo.{name}" for name in bnnzoo.__all__),
        *(f"bnnzoo.testing.{name}" for name in bnnzoo.testing.__all__),
        *estimators,
    }
    documented = _DIRECTIVE.findall(REFERENCE)
    assert expected - set(documented) == set()
    assert len(documented) == len(set(documented))


def test_every_page_of_docs_is_in_the_guide():
    text = "\n".join((DOCS / "site" / name).read_text(encoding="utf-8") for name in ("guide.md", "project.md"))
    listed = set(re.findall(r"^\.\./([\w-]+)$", text, re.MULTILINE))
    assert listed == {path.stem for path in DOCS.glob("*.md")} - {"index"}


def test_every_copied_page_is_listed(generators):
    text = "\n".join((DOCS / "site" / name).read_text(encoding="utf-8") for name in ("guide.md", "project.md"))
    listed = set(re.findall(r"^\.\./(repository/[\w-]+)$", text, re.MULTILINE))
    assert listed == set(generators["repository_pages"].document_names().values())


def test_links_between_copied_pages_lead_to_pages_of_the_site(generators):
    rewrite_links = generators["repository_pages"].rewrite_links
    text = (
        "[a](docs/samplers.md#penalty) [b](CONTRIBUTING.md) [c](https://example.org/x.md)\n```sh\n[d](LICENSE)\n```\n"
    )
    assert rewrite_links(text, ROOT / "README.md") == (
        "[a](/samplers.md#penalty) [b](/repository/contributing.md) [c](https://example.org/x.md)\n"
        "```sh\n[d](LICENSE)\n```\n"
    )


@pytest.mark.parametrize("kind", ["samplers", "models", "likelihoods", "priors"])
def test_a_page_has_every_option_with_its_help(generators, kind):
    method_pages = generators["method_pages"]
    for name in registry.entries(kind):
        page = method_pages.page(kind, name)
        for field in method_pages.fields_of(registry.load(kind, name)):
            row = next(line for line in page.splitlines() if f".{field.name.replace('_', '-')}`" in line)
            assert method_pages._as_text(field.help) in row
            assert field.default_text in row
        assert f"\n{kind}/{name}\n" in method_pages.index(kind)


def test_the_page_of_a_sampler_repeats_rows_of_the_documentation(generators):
    page = generators["method_pages"].page("samplers", "sgld")
    rows = re.findall(r"^\| (?:linear|mlp|mdn|cnn) \| sgld \|.*$", (DOCS / "zoo.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) == 4
    assert all(row in page for row in rows)


def test_a_renamed_heading_is_reported(generators):
    method_pages = generators["method_pages"]
    for source in method_pages.RESULTS:
        assert method_pages.read_table(source).rows
    with pytest.raises(LookupError, match=r"correctness\.md: 'Renamed': no such heading"):
        method_pages.read_table(method_pages.Source("correctness.md", "Renamed"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_are_listed_and_keep_something(path):
    index = (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    assert f"]({path.name})" in index
    assert "**Keep**" in text
    for cell in _CELL.findall(text):
        if not cell.startswith("%%bash"):
            ast.parse(re.sub(r"^%%.*\n", "", cell))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_links_of_tutorials_resolve(path):
    for target in re.findall(r"\]\(([^)\s]+\.md)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target
