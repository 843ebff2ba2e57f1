"""Pictures of one run, or of several runs in one figure, and their files."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bnnzoo import plots
from bnnzoo.data.checks.check import did_you_mean
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.evaluation.predictions import new_rows
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import familiarity as ood_scores
from bnnzoo.files.atomic import check_free, make_folder
from bnnzoo.finding import setting
from bnnzoo.plots import Descent, Picture
from bnnzoo.recipe import recipe_from
from bnnzoo.report.bands import bands
from bnnzoo.report.pictures import PICTURES, attempt

Runs = Mapping[str, Predictor]
"""One or several runs, by name. The pictures show these names."""


DEFAULT_OOD = "noise"
"""Default of the unfamiliar inputs for the picture `ood`."""
_OTHER_FORMATS = ("jpg", "jpeg", "gif", "webp", "bmp", "ps", "tif")
"""Endings of picture formats that are not supported. An output with such an ending is a file, not a folder."""


def ood(runs: Runs, *, spec: Any = DEFAULT_OOD) -> Picture:
    """Draw histograms of the uncertainty for test rows and for unfamiliar rows, one column per run.

    Args:
        runs: the runs by name.
        spec: unfamiliar inputs, as for `Run.ood`.

    Raises:
        UsageError: if a run has no test rows, if the runs have different tasks, or if `spec` is invalid.
    """
    if len(tasks := {predictor.signature.task for predictor in runs.values()}) > 1:
        raise UsageError(
            f"the runs have different tasks ({' and '.join(sorted(tasks))}); draw them in separate pictures"
        )
    scores_by_run = {
        name: ood_scores.of_run(run_scores, spec, new_rows.evaluation_rows(run_scores)[0])
        for name, run_scores in runs.items()
    }
    # Scores that need several draws are left out, because a run with a single network has none.
    columns = {
        name: {
            score: (run_scores.inside[score], run_scores.outside[score])
            for score in run_scores.single_inside or run_scores.inside
        }
        for name, run_scores in scores_by_run.items()
    }
    return plots.ood(columns, name=Path(next(iter(scores_by_run.values())).name).stem)


def loss(runs: Runs) -> Picture:
    """Draw the loss of each run against the step. If the loss of the draws was recorded, also draw the mean of it.

    Raises:
        UsageError: if the loss of a run was not recorded.
    """
    return plots.loss([_descent(name, predictor) for name, predictor in runs.items()])


def _descent(name: str, predictor: Predictor) -> Descent:
    record = predictor.record
    warmup, draws = record.warmup_statistics, record.statistics
    warmup_loss, draw_loss = (
        next((-group[key] for key in ("lp", "lp_estimate") if key in group and group[key].size), None)
        for group in (warmup, draws)
    )
    if warmup_loss is None and draw_loss is None:
        raise UsageError(
            f"{name}: the log density was not recorded; sample again with [[keep_warmup=True]] to record the log "
            "density of warm-up"
        )
    warmup_steps = recipe_from(record.attributes["recipe"]).warmup if record.names_a_model else 0
    return Descent(name, warmup_loss, warmup_steps + record.thin, record.thin, draw_loss)


TOGETHER: dict[str, Callable[..., Picture]] = {"band": bands, "ood": ood, "loss": loss}
"""Pictures that can show several runs, by name."""


def first_name(runs: Runs) -> str:
    """Return the name of the first picture that is available for these runs, in the order of the report.

    Raises:
        UsageError: if no picture is available.
    """
    for name in TOGETHER if len(runs) > 1 else dict.fromkeys([*PICTURES, *TOGETHER]):
        with contextlib.suppress(UsageError):
            picture(runs, name)
            return name
    raise UsageError(
        f"no picture is available for {'these runs' if len(runs) > 1 else 'this run'}; request a picture by its "
        "name to see the reason"
    )


def picture(runs: Runs, name: str, **options: Any) -> Picture:
    """Draw one picture of a run, or of several runs in one figure.

    Raises:
        UsageError: if the name is unknown, or if the picture is not available for a run.
    """
    _check_name(name, name, runs)
    is_joint = len(runs) > 1 or name not in PICTURES
    # The picture `band` has the same options for one run and for several runs.
    _, *option_names = inspect.signature(
        TOGETHER[name] if is_joint or name == "band" else PICTURES[name].make
    ).parameters
    if unknown_options := sorted(set(options) - set(option_names)):
        remedy = did_you_mean(unknown_options[0], option_names) if option_names else "this picture has no options"
        raise UsageError(f"{name}: unknown option {unknown_options[0]}; {remedy}")
    return TOGETHER[name](runs, **options) if is_joint else PICTURES[name].make(*runs.values(), **options)


def write(
    runs: Runs,
    out: Path,
    *,
    formats: str | Sequence[str] | None,
    names: str | Sequence[str] | None,
    ood: Any,
    force: bool,
    band: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Draw pictures and write them to the folder `out`, or write one picture to the file `out`.

    All errors are raised before any file is written.

    Args:
        runs: the runs by name.
        out: folder or file.
        formats: file format or formats; png if None.
        names: name or names of the pictures. If None, a file gets the picture `band`. A folder gets all pictures of the
            report for one run, or the pictures `band`, `ood` and `loss` for several runs.
        ood: unfamiliar inputs for the picture `ood`. If they are not the default, this picture must be available.
        force: overwrite existing files.
        band: options of the picture `band`. If options are given, this picture must be available.

    Returns:
        one dictionary per picture: its name and file, or the reason why it is not available.

    Raises:
        DamagedError: if the arrays of a run are damaged; no picture is then written.
        UsageError: if a name, a format or an option is invalid, or if a file exists and `force` is false.
    """
    formats, names = ([value] if isinstance(value, str) else value for value in (formats, names))
    for format in formats or ():
        if format not in plots.FORMATS:
            raise UsageError(
                f"[[format]]: must be {', '.join(plots.FORMATS[:-1])} or {plots.FORMATS[-1]} (got {format})"
            )
    for name in names or ():
        _check_name(f"{setting('only', name)}", name, runs)
    if not out.is_dir() and out.suffix.removeprefix(".").lower() in _OTHER_FORMATS:
        plots.picture_format(out)
    is_single_file = out.suffix.removeprefix(".").lower() in plots.FORMATS and not out.is_dir()
    picture_names = list(
        dict.fromkeys(names or (("band",) if is_single_file else TOGETHER if len(runs) > 1 else PICTURES))
    )
    if band and "band" not in picture_names:
        raise UsageError(f"{setting(next(iter(band)))}: requires the picture band; add [[only=band]]")
    has_ood_option = not (isinstance(ood, str) and ood == DEFAULT_OOD)
    if has_ood_option and "ood" not in picture_names:
        raise UsageError("[[ood]]: requires the picture ood; add [[only=ood]]")
    if band.get("overlay") and len(runs) == 1:
        raise UsageError("[[overlay=True]]: requires several runs (got one); give several runs, or remove the option")
    paths = _paths(out, picture_names, formats, in_file=is_single_file)
    for path in [path for picture_paths in paths.values() for path in picture_paths]:
        check_free(path, force=force)
    rows: list[dict[str, Any]] = []
    options: dict[str, Mapping[str, Any]] = {"band": band, "ood": {"spec": ood}}
    pictures = {name: attempt(partial(picture, runs, name, **options.get(name, {}))) for name in picture_names}
    for name, result in pictures.items():
        has_options = (name == "band" and band) or (name == "ood" and has_ood_option)
        if isinstance(result, BnnzooError) and (is_single_file or has_options):
            raise result
    for name, result in pictures.items():
        if isinstance(result, BnnzooError):
            rows.append({"picture": name, "file": None, "why": str(result)})
            continue
        make_folder(paths[name][0].parent)
        rows += [{"picture": name, "file": result.save(path), "alt": result.alt} for path in paths[name]]
    return rows


def _paths(out: Path, names: Sequence[str], formats: Sequence[str] | None, *, in_file: bool) -> dict[str, list[Path]]:
    """Return the files of each picture."""
    if in_file:
        if len(names) > 1 or formats:
            raise UsageError(
                f"{out}: a file can contain only one picture, and the ending of the file determines its format; use a "
                "folder for several pictures or for [[format]]"
            )
        return {names[0]: [out]}
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: exists and is not a folder; use another [[out]]")
    return {name: [out / f"{name}.{format}" for format in dict.fromkeys(formats or ["png"])] for name in names}


def _check_name(where: str, name: str, runs: Runs) -> None:
    pictures = TOGETHER if len(runs) > 1 else PICTURES | TOGETHER
    if name not in pictures:
        problem = "not available for several runs" if name in PICTURES else "unknown picture"
        raise UsageError(f"{where}: {problem}; use one of {', '.join(pictures)}")
