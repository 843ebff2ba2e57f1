"""bnnzoo check: is a part of the zoo, or of a plugin, what it says it is?"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from annotated_types import Ge, Le
from typing_extensions import Doc

from bnnzoo import registry
from bnnzoo.cli.options import Scan, option, parameter
from bnnzoo.cli.output import print_json
from bnnzoo.cli.progress_bar import observer
from bnnzoo.cli.recipe_command import as_command, late_command, spelling
from bnnzoo.errors import GateError
from bnnzoo.recipe import Part, build, fields_of


@dataclass(frozen=True)
class Settings:
    """The options of `check sampler` beside the sampler's own."""

    target: Annotated[tuple[str, ...], Doc("only this target; repeatable")] = ()
    chains: Annotated[int, Ge(32), Doc("chains; they are the units of the tests")] = 128
    warmup: Annotated[int, Ge(0), Doc("warm-up steps per chain; 0 adapts nothing")] = 400
    draws: Annotated[int, Ge(1), Doc("draws per chain, at most")] = 65536
    seed: Annotated[int, Ge(0), Le(2**32 - 1), Doc("seed of everything random")] = 0


def _check_sampler(name: str, fields: Part, settings: Settings, *, quiet: bool, json: bool, **_: Any) -> None:
    """Hold a sampler to posteriors with exact answers: Gaussians, a skewed one, a regression, a small network.

    Prints every statistic with its z score, and a verdict that says the size and sign of a bias. Exit code 3 unless
    the sampler passes.

    With NAME given, --help also lists its options.

    \b
    Examples:
      bnnzoo check sampler nuts
      bnnzoo check sampler penalty --sampler.num-batches 40
      bnnzoo check sampler sgld --target gaussian --json
      bnnzoo check sampler penalty --help
    """
    sampler = build(registry.load("samplers", name), fields, "sampler")
    from bnnzoo.sampling import backend
    from bnnzoo.testing import TARGETS, check_sampler

    backend.prepare("vectorized", settings.chains)
    with observer(quiet=quiet) as watch:
        report = check_sampler(
            sampler,
            targets=settings.target or tuple(TARGETS),
            chains=settings.chains,
            warmup=settings.warmup,
            draws=settings.draws,
            seed=settings.seed,
            observer=watch,
        )
    if json:
        print_json({**report.as_dict(), "sampler": name})
    else:
        typer.echo(str(report))
    if not report.passed:
        raise GateError(f"sampler {name}: {report.verdict}")


def options() -> list[inspect.Parameter]:
    """The options that do not depend on the sampler."""
    own = [option(spec, panel="Check") for spec in fields_of(Settings)]
    flags = {
        "quiet": "no progress; warnings are still shown",
        "json": "print the report as JSON",
        "no_plugins": "load nothing but the zoo itself",
        "debug": "show tracebacks and the warnings of libraries",
    }
    for name, text in flags.items():
        flag = typer.Option(f"--{name.replace('_', '-')}", help=text, rich_help_panel="Output")
        own.append(parameter(name, bool, flag, False))
    return own


def _command(found: Scan) -> Any:
    if not found.positionals:
        return _build([])
    name = found.positionals[0]
    entry = registry.find("samplers", name)
    said = f" ({entry.exactness})" if entry.exactness else ""
    specs = fields_of(registry.load("samplers", name))
    return _build([option(spec, panel=f"sampler {entry.name}{said}", prefix="sampler") for spec in specs])


def _build(dotted: list[inspect.Parameter]) -> Any:
    def run(**given: Any) -> None:
        name = given.pop("name")
        flags = {flag: given.pop(flag) for flag in ("quiet", "json", "no_plugins", "debug")}
        asked = {key: value for key, value in given.items() if value is not None}
        fields = _part(name, {k.partition("__")[2]: v for k, v in asked.items() if "__" in k}, "--sampler.")
        settings = build(Settings, _part("", {k: v for k, v in asked.items() if "__" not in k}, "--"), "")
        _check_sampler(name, fields, settings, **flags)

    argument = typer.Argument(
        metavar="NAME",
        help="see bnnzoo list samplers",
        show_default=False,
        autocompletion=lambda: list(registry.entries("samplers")),
    )
    name = parameter("name", str, argument, inspect.Parameter.empty)
    return as_command(run, [name, *options(), *dotted], _check_sampler.__doc__)


def _part(name: str, values: dict[str, Any], dashes: str) -> Part:
    return Part(name, values, {key: dashes + key.replace("_", "-") for key in values})


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    settings = {"help_option_names": ["--help", "-h"]}
    group = typer.Typer(
        help="Check that a part is what it says it is.", context_settings=settings, rich_markup_mode="rich"
    )
    command = late_command(spelling(options()), _command, lambda: _build([]))
    group.callback()(lambda: None)
    group.command("sampler", cls=command, help=_check_sampler.__doc__, context_settings=settings)(lambda: None)
    app.add_typer(group, name="check")
