"""bnnzoo new: a package of one's own that works at once. Templates are real files, in `templates/`."""

from __future__ import annotations

import keyword
import os
import re
import shutil
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from bnnzoo import registry
from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo
from bnnzoo.errors import BnnzooError, UsageError

KINDS = {registry.singular(kind): kind for kind in registry.KINDS}


def new(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=", ".join(KINDS), show_default=False, autocompletion=lambda: list(KINDS)),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="what it will be called in the zoo", show_default=False)],
    into: Annotated[
        Path,
        typer.Option(
            "--into",
            parser=common.folder,
            metavar="DIR",
            help="where the package's folder is made",
            show_default="here",
        ),
    ] = Path(),
    debug: common.Debug = False,
) -> None:
    """Write a package with a sampler, model, likelihood, prior or data set of your own, which works at once.

    It has an entry point, the class and its fields, a recipe, a test that passes, and a README. `plugin` is
    short for one with a sampler.

    \b
    Examples:
      bnnzoo new sampler barker
      bnnzoo new model waves --into ~/plugins
    """
    del debug
    kind = _kind(kind)
    words = _words(kind, name)
    folder = into / words["bnnzoo-template-name"]
    _refuse_taken(KINDS[kind], words)
    _refuse_existing(folder)
    written = _write(kind, folder, words)
    for path in written:
        echo(path)
    echo("\nNext:\n")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    for line in re.findall(r"^    .*$", readme, re.MULTILINE):
        echo(line.replace(f"./{folder.name}", str(folder) if folder.is_absolute() else f"./{folder}"))


def _kind(kind: str) -> str:
    found = "sampler" if kind.casefold() == "plugin" else kind.casefold()
    if found not in KINDS:
        raise UsageError(f"no kind {kind!r}; there are: {', '.join(KINDS)}")
    return found


def _words(kind: str, name: str) -> dict[str, str]:
    """What stands in the templates for the name, and what it becomes; longer ones first."""
    name = registry.checked_name(name)
    class_name = "".join(piece[:1].upper() + piece[1:] for piece in re.split("[-_]+", name))
    # What a template defines or imports under that name must stay what it is.
    taken = any(re.search(rf"\b{class_name}\b", source.read_text(encoding="utf-8")) for source in _modules(kind))
    if taken or not class_name.isidentifier() or keyword.iskeyword(class_name):
        class_name = kind.capitalize() + class_name
    module = name.replace("-", "_")
    return {
        "bnnzoo-template-name": "bnnzoo-" + re.sub("[-_]+", "-", name).strip("-"),
        "bnnzoo_template_name": f"bnnzoo_{module}",
        "template-kind": {"dataset": "data set"}.get(kind, kind),
        "template-name": name,
        "template_name": module,
        "TemplateName": class_name,
    }


def _modules(kind: str) -> list[Traversable]:
    """The Python files of a template, whose names a class must not take."""
    return [source for path, source in _walk(files("bnnzoo.cli") / "templates" / kind) if path.endswith(".py")]


def _refuse_taken(kind: str, words: dict[str, str]) -> None:
    """A name that another distribution offers could not be used without its own in front, nor the recipe's.

    Of the same distribution there can be but one: a sampler and a model of one name would be two packages of one name.
    """
    name, own = words["template-name"], words["bnnzoo-template-name"]
    for each in (kind, registry.RECIPES):
        others = {entry.distribution for entry in registry.entries(each).values() if entry.name == name}
        for other in sorted(others - {own}):
            raise UsageError(f"{registry.singular(each)} {name!r} is there already, from {other}; choose another name")
    for each in set(KINDS.values()) - {kind}:
        if any(entry.distribution == own for entry in registry.entries(each).values()):
            raise UsageError(f"{own} is there already, with a {registry.singular(each)}; choose another name")


def _refuse_existing(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: is there already, and no folder; choose another --into")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: is there already, and not empty; choose another name, or another --into")


def _write(kind: str, folder: Path, words: dict[str, str]) -> list[Path]:
    """The files, in the folder's own order."""
    templates = files("bnnzoo.cli") / "templates"
    written: list[Path] = []
    try:
        for template in (templates / "every", templates / kind):
            for path, source in _walk(template):
                target = folder / _filled(path, words)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_filled(source.read_text(encoding="utf-8"), words), encoding="utf-8")
                written.append(target)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)  # it was empty, or not there
        raise BnnzooError(f"{error.filename or folder}: cannot be written: {os.strerror(error.errno or 0)}") from error
    return sorted(written)


def _walk(folder: Traversable, inside: str = "") -> list[tuple[str, Traversable]]:
    """Every file below the folder, and its path there. An installer compiles Python files: that is no template."""
    found: list[tuple[str, Traversable]] = []
    for item in folder.iterdir():
        if item.is_file():
            found.append((inside + item.name, item))
        elif item.name != "__pycache__":
            found += _walk(item, f"{inside}{item.name}/")
    return found


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(new)
