"""The command `bnnzoo new`, which writes a working plugin package from the files in `templates/`."""

from __future__ import annotations

import keyword
import os
import re
import shutil
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.files.shell import quoted
from bnnzoo.plugins import registry

KINDS = {registry.singular(kind): kind for kind in registry.KINDS}


def new(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=", ".join(KINDS), show_default=False, autocompletion=lambda: list(KINDS)),
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="name of the new part on the command line", show_default=False)
    ],
    into: Annotated[
        Path,
        typer.Option(
            "--into",
            parser=common.folder,
            metavar="DIR",
            help="folder in which the package's folder is created",
            show_default="here",
        ),
    ] = Path(),
    debug: common.Debug = False,
) -> None:
    """Write a package with your own sampler, model, likelihood, prior or data set, ready to run.

    The package has an entry point, the class with its fields (for a data set, a function), a recipe, tests that pass,
    and a README. The KIND `plugin` means `sampler`.

    \b
    Examples:
      bnnzoo new sampler barker
      bnnzoo new model waves --into ~/plugins
    """
    del debug
    kind = _kind(kind)
    placeholders = _placeholders(kind, name)
    folder = into / placeholders["bnnzoo-template-name"]
    _refuse_taken(KINDS[kind], placeholders)
    _refuse_existing(folder)
    paths = _write(kind, folder, placeholders)
    for path in paths:
        echo(path)
    echo("\nNext:\n")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    for line in re.findall(r"^    .*$", readme, re.MULTILINE):
        echo(line.replace(f"./{folder.name}", quoted(folder if folder.is_absolute() else f"./{folder}")))


def _kind(kind: str) -> str:
    kind_name = "sampler" if kind.casefold() == "plugin" else kind.casefold()
    if kind_name not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; use one of {', '.join(KINDS)}")
    return kind_name


def _placeholders(kind: str, name: str) -> dict[str, str]:
    """Return the placeholders of the templates and their values, longer placeholders first."""
    name = registry.check_name(name)
    class_name = "".join(piece[:1].upper() + piece[1:] for piece in re.split("[-_]+", name))
    # The class must not replace a name that the template defines or imports.
    is_taken = any(re.search(rf"\b{class_name}\b", source.read_text(encoding="utf-8")) for source in _modules(kind))
    if is_taken or not class_name.isidentifier() or keyword.iskeyword(class_name):
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
    """Return the Python files of the template for a kind of part."""
    return [
        source for path, source in _template_files(files("bnnzoo.cli") / "templates" / kind) if path.endswith(".py")
    ]


def _refuse_taken(kind: str, placeholders: dict[str, str]) -> None:
    """Refuse names of existing parts, recipes and packages.

    A part or recipe must not have the name of one in another package, because the user would have to write
    `PACKAGE:NAME` for both. The new package contains only one part and its recipe. If a package of the same name is
    installed and offers anything else, the new package would replace it, and the other contents would be lost.

    Raises:
        UsageError: if the name of the part, of the recipe or of the package is taken.
    """
    name, own_package = placeholders["template-name"], placeholders["bnnzoo-template-name"]
    for kind_checked in (kind, registry.RECIPES):
        other_packages = {entry.distribution for entry in registry.entries(kind_checked).values() if entry.name == name}
        for other_package in sorted(other_packages - {own_package}):
            raise UsageError(
                f"{registry.singular(kind_checked)} {name!r} exists already in {other_package}; choose another name"
            )
    for kind_checked in (*KINDS.values(), registry.RECIPES, registry.COMMANDS, registry.OBSERVERS, registry.REFERENCES):
        for entry in registry.entries(kind_checked).values():
            is_replaced = kind_checked in (kind, registry.RECIPES) and entry.name == name
            if entry.distribution == own_package and not is_replaced:
                raise UsageError(
                    f"the package {own_package} exists already and contains the {registry.singular(kind_checked)} "
                    f"{entry.name!r}; choose another name"
                )


def _refuse_existing(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder}: exists and is not a folder; choose another folder with --into")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: exists and is not empty; choose another name, or another folder with --into")


def _write(kind: str, folder: Path, placeholders: dict[str, str]) -> list[Path]:
    """Write the files of the new package and return their paths, sorted."""
    templates = files("bnnzoo.cli") / "templates"
    paths: list[Path] = []
    existed = folder.is_dir()
    try:
        for template in (templates / "every", templates / kind):
            for path, source in _template_files(template):
                target = folder / _fill_placeholders(path, placeholders)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(
                    _fill_placeholders(source.read_text(encoding="utf-8"), placeholders), encoding="utf-8"
                )
                paths.append(target)
    except OSError as error:
        with suppress(OSError):
            for path in folder.iterdir() if existed else [folder]:  # an existing folder was empty
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        reason = os.strerror(error.errno or 0)
        raise BnnzooError(
            f"{error.filename or folder}: cannot be written: {reason}; choose another folder with --into"
        ) from error
    return sorted(paths)


def _template_files(folder: Traversable, prefix: str = "") -> list[tuple[str, Traversable]]:
    """Return every file below the folder with its relative path, except compiled files (`__pycache__`)."""
    files_found: list[tuple[str, Traversable]] = []
    for item in folder.iterdir():
        if item.is_file():
            files_found.append((prefix + item.name, item))
        elif item.name != "__pycache__":
            files_found += _template_files(item, f"{prefix}{item.name}/")
    return files_found


def _fill_placeholders(text: str, placeholders: dict[str, str]) -> str:
    for placeholder, value in placeholders.items():
        text = text.replace(placeholder, value)
    return text


def add_to(app: typer.Typer) -> None:
    """Add the command `new` to the application."""
    app.command()(new)
