"""The command `bnnzoo check`: tests of a sampler, model, likelihood or prior of the zoo or of a plugin."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer
from annotated_types import Ge, Le
from typing_extensions import Doc

from bnnzoo.cli import common_options as common
from bnnzoo.cli.options import option, parameter
from bnnzoo.cli.output import echo, print_json
from bnnzoo.cli.part_command import SETTINGS, add_command
from bnnzoo.cli.part_options import PartOptions, part_options
from bnnzoo.errors import GateError, UsageError
from bnnzoo.finding import setting
from bnnzoo.plugins import registry
from bnnzoo.progress_bar import observer
from bnnzoo.recipe import Field, Part, build, fields_of


@dataclass(frozen=True)
class SamplerSettings:
    """The options of `check sampler`, apart from the fields of the sampler."""

    target: Annotated[tuple[str, ...], Doc("test only this posterior; repeatable")] = ()
    chains: Annotated[int, Ge(32), Doc("number of chains; the tests treat them as independent")] = 128
    warmup: Annotated[int, Ge(0), Doc("warm-up steps per chain; if 0, nothing is adapted")] = 400
    draws: Annotated[int, Ge(1), Doc("largest number of draws per chain")] = 65536
    seed: Annotated[int, Ge(0), Le(2**32 - 1), Doc("seed of all random numbers")] = 0


@dataclass(frozen=True)
class ModelSettings:
    """The options of `check model`, apart from the fields of the model."""

    input: Annotated[
        tuple[str, ...], Doc("test only inputs of this shape, such as 5 or 3,32,32; repeatable (--sbc uses the first)")
    ] = ()
    sbc: Annotated[bool, Doc("run simulation-based calibration instead of the tests")] = False
    sampler: Annotated[str, Doc("for --sbc: name of the sampler (see bnnzoo list samplers)")] = "nuts"
    replicates: Annotated[int, Ge(32), Doc("for --sbc: number of simulated data sets, each sampled by one chain")] = 128
    warmup: Annotated[int, Ge(0), Doc("for --sbc: warm-up steps per chain")] = 300
    thin: Annotated[int, Ge(1), Doc("for --sbc: steps per draw; each rank is computed from 63 draws")] = 4
    out: Annotated[str | None, Doc("for --sbc: file for a picture of the ranks (.png, .svg, .pdf, .eps, .tiff)")] = None
    force: Annotated[bool, Doc("for -o: replace an existing file")] = False
    seed: Annotated[int, Ge(0), Le(2**32 - 1), Doc("seed of all random numbers")] = 0


@dataclass(frozen=True)
class PartSettings:
    """The options of `check likelihood` and `check prior`, apart from the fields of the likelihood or prior."""

    seed: Annotated[int, Ge(0), Le(2**32 - 1), Doc("seed of all random numbers")] = 0


def _check_likelihood(name: str, likelihood: Any, settings: PartSettings, *, quiet: bool, json: bool) -> None:
    """Test a likelihood: densities, draws, gradients and everything else that samplers, predictions and scores need.

    Densities must integrate to 1, and draws and moments must agree with the densities. Rows must not affect one
    another. Gradients must be finite. Parameters must not change if they are written to a file and read again. The
    check also covers float32 and the text of --help. The exit code is 3 unless the likelihood passes.

    With NAME, --help also lists the options of the likelihood.

    \b
    Examples:
      bnnzoo check likelihood student-t
      bnnzoo check likelihood gaussian --likelihood.scale 0.2 --json
    """
    del quiet
    from bnnzoo.sampling.devices import jax_settings
    from bnnzoo.testing import check_likelihood

    jax_settings.prepare()
    report = check_likelihood(likelihood, seed=settings.seed)
    _print(report, json, likelihood=name)


def _check_prior(name: str, prior: Any, settings: PartSettings, *, quiet: bool, json: bool) -> None:
    """Test a prior: density, draws, gradients and everything else that samplers and evidence need.

    The density must integrate to 1, and draws must agree with it. Gradients must be finite. Parameters must not change
    if they are written to a file and read again. The check also covers float32 and the text of --help. The exit code is
    3 unless the prior passes.

    With NAME, --help also lists the options of the prior.

    \b
    Examples:
      bnnzoo check prior laplace
      bnnzoo check prior hierarchical --prior.hyperprior half-cauchy --json
    """
    del quiet
    from bnnzoo.sampling.devices import jax_settings
    from bnnzoo.testing import check_prior

    jax_settings.prepare()
    _print(check_prior(prior, seed=settings.seed), json, prior=name)


def _check_sampler(name: str, sampler: Any, settings: SamplerSettings, *, quiet: bool, json: bool) -> None:
    """Test a sampler on posteriors whose moments are known exactly.

    The posteriors are Gaussians, a skewed distribution, a regression and a small network.

    The command prints every statistic with its z score, and a verdict. For a biased sampler the verdict gives the size
    and the sign of the bias. The exit code is 3 unless the sampler passes.

    With NAME, --help also lists the options of the sampler.

    \b
    Examples:
      bnnzoo check sampler nuts
      bnnzoo check sampler penalty --sampler.num-batches 40
      bnnzoo check sampler sgld --target gaussian --json
      bnnzoo check sampler penalty --help
    """
    from bnnzoo.sampling.devices import jax_settings
    from bnnzoo.testing import TARGETS, check_sampler

    jax_settings.prepare()
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
    _print(report, json, sampler=name)


def _check_model(name: str, model: Any, settings: ModelSettings, *, quiet: bool, json: bool) -> None:
    """Test the networks of a model on inputs of several shapes.

    The tests cover shapes and types, names of parameters, independence of rows, jit, vmap over draws, finite
    gradients, the split into features and last layer, the likelihood, and the initial positions of a run. The exit code
    is 3 unless the model passes.

    With --sbc, data sets are simulated: parameters are drawn from the prior, and data from the likelihood. A sampler
    then runs on each data set. Predictions and the log-likelihood are computed for the true parameters and for each
    draw. The rank of the true value among the values of the draws must be uniformly distributed.

    With NAME, --help also lists the options of the model.

    \b
    Examples:
      bnnzoo check model mlp
      bnnzoo check model mlp --model.hidden 5 --sbc -o ranks.png
      bnnzoo check model cnn --model.channels 4 --input 3,32,32
      bnnzoo check model mlp --json
    """
    inputs = [_shape(text) for text in settings.input]
    if settings.sbc:
        _calibrate(name, model, inputs, settings, quiet=quiet, json=json)
        return
    from bnnzoo.sampling.devices import jax_settings
    from bnnzoo.testing import check_model
    from bnnzoo.testing.model import INPUTS

    jax_settings.prepare()
    _print(check_model(model, inputs=inputs or INPUTS, seed=settings.seed), json, model=name)


def _calibrate(
    name: str, model: Any, inputs: list[tuple[int, ...]], settings: ModelSettings, *, quiet: bool, json: bool
) -> None:
    """Run simulation-based calibration for the first shape in `inputs`, or for two features if `inputs` is empty."""
    sampler = registry.load("samplers", settings.sampler)()
    from bnnzoo.files.atomic import check_free
    from bnnzoo.plots import picture_format, sbc
    from bnnzoo.sampling.devices import jax_settings
    from bnnzoo.store import check_room
    from bnnzoo.testing import check_calibration

    if settings.out is not None:
        picture_format(common.file(settings.out))
        check_free(Path(settings.out), force=settings.force)
        check_room(Path(settings.out), 0)
    jax_settings.prepare()
    with observer(quiet=quiet) as watch:
        report = check_calibration(
            model,
            sampler,
            input_shape=inputs[0] if inputs else (2,),
            replicates=settings.replicates,
            warmup=settings.warmup,
            thin=settings.thin,
            seed=settings.seed,
            observer=watch,
        )
    if settings.out:
        sbc([quantity.name for quantity in report.quantities], report.uniform).save(settings.out)
    _print(report, json, model=name, sampler=settings.sampler)


def _print(report: Any, json: bool, **parts: str) -> None:
    """Print the report, and raise `GateError` if the test failed. The first entry of `parts` is the tested part."""
    if json:
        print_json({**report.as_dict(), **parts})
    else:
        echo(str(report))
    if not report.passed:
        raise GateError(f"{' '.join(next(iter(parts.items())))}: {report.verdict}")


def _shape(text: str) -> tuple[int, ...]:
    sizes = tuple(int(size) if size.strip().isdigit() else 0 for size in text.split(","))
    if not all(sizes) or len(sizes) > 3:
        raise UsageError(f"--input: must be one to three sizes, each >= 1, such as 5 or 3,32,32 (got {text!r})")
    return sizes


_REQUIRED_OPTIONS = {"force": "out", **dict.fromkeys(("sampler", "replicates", "warmup", "thin", "out"), "sbc")}
"""Required options of `check model`: the key is an option, and the value is another option that the key requires."""


class _Check(NamedTuple):
    """A subcommand: the kind of part that it tests, the class of its options, and its function."""

    kind: str
    settings: type
    body: Callable[..., None]
    required_options: Mapping[str, str] = MappingProxyType({})
    """Required options: the key is an option, and the value is another option that the key requires."""

    def options(self) -> list[inspect.Parameter]:
        """Return the options of the command that are the same for every part."""
        return [
            *map(_option, fields_of(self.settings)),
            *common.flags("quiet"),
            *common.flags("json", help="print the report as JSON"),
            *common.flags("no_plugins", "debug"),
        ]

    def select_part(self, arguments: dict[str, Any]) -> dict[str, tuple[str, PartOptions]]:
        """Return {kind: (name, options)} for the part that the arguments name; empty if the arguments name no part."""
        name = arguments.get("name")
        return {self.kind: (name, part_options(self.kind, name))} if name else {}

    def run(self, *, name: str, fields: dict[str, str], quiet: bool, json: bool, **options: Any) -> None:
        """Run the command. `fields` has the fields of the part, and `options` has the options of the command."""
        settings_given = {
            key: value
            for key, value in options.items()
            if value is not None and key not in ("no_plugins", "debug", "words")
        }
        for name_given, required_name in self.required_options.items():
            if name_given in settings_given and required_name not in settings_given:
                option_given, required_option = setting(name_given), setting(required_name)
                raise UsageError(
                    f"{option_given}: requires {required_option}; add {required_option}, or remove {option_given}"
                )
        settings = build(self.settings, _part("", settings_given, "--"), "")
        requested_part = _part(name, {key.partition(".")[2]: value for key, value in fields.items()}, f"--{self.kind}.")
        part = build(registry.load(f"{self.kind}s", name), requested_part, self.kind)
        self.body(name, part, settings, quiet=quiet, json=json)

    def add_to(self, group: typer.Typer) -> None:
        """Add this subcommand to the group."""
        argument = typer.Argument(
            metavar="NAME",
            help=f"see bnnzoo list {self.kind}s",
            show_default=False,
            autocompletion=lambda: list(registry.entries(f"{self.kind}s")),
        )
        name = parameter("name", str, argument, inspect.Parameter.empty)
        parameters = [name, *self.options()]
        add_command(group, self.kind, self.run, parameters, self.body.__doc__, self.select_part, kinds=(self.kind,))


def _option(spec: Field) -> inspect.Parameter:
    if spec.name != "out":
        return option(spec, panel="Check")
    info = typer.Option("--out", "-o", metavar="FILE", help=spec.help, rich_help_panel="Check")
    return parameter("out", str | None, info)


def _part(name: str, values: dict[str, Any], dashes: str) -> Part:
    return Part(name, values, {key: dashes + key.replace("_", "-") for key in values})


def add_to(app: typer.Typer) -> None:
    """Add the command `check` with its subcommands to the application."""
    group = typer.Typer(
        help="Test a sampler, a model, a likelihood or a prior.", context_settings=SETTINGS, rich_markup_mode="rich"
    )
    for check in (
        _Check("sampler", SamplerSettings, _check_sampler),
        _Check("model", ModelSettings, _check_model, _REQUIRED_OPTIONS),
        _Check("likelihood", PartSettings, _check_likelihood),
        _Check("prior", PartSettings, _check_prior),
    ):
        check.add_to(group)
    app.add_typer(group, name="check")
