"""A case typed by a user: `sample`, `evaluate`, `predict`, `diagnose` and `report`, by each of three entrances."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import bnnzoo
from bnnzoo import cli
from bnnzoo.sklearn import BayesianClassifier, BayesianRegressor
from end_to_end import tables, values
from end_to_end.cases import Case


class Typed(NamedTuple):
    """A case with its data in the working folder."""

    case: Case
    train: Any
    """Value of `--data` or `data=`: training rows with targets."""
    labelled: Any
    """New rows with targets."""
    inputs: Any
    """New rows without targets."""
    options: dict[str, Any]

    @property
    def predicts_targets(self) -> bool:
        return self.case.combination.task != "density"


def typed(case: Case, number: int) -> Typed:
    """Return the case with its data written to files, or in memory."""
    task, likelihood = case.combination.task, case.combination.likelihood
    options = {**values.LENGTHS, "test_fraction": 0.25, **values.flat(case.options)}
    # A file, or a frame alone, has a target unless the task is density.
    shows_task = case.kind in tables.IN_MEMORY and not (case.kind == "frame" and task == "density")
    if "task" in options or not shows_task:
        options["task"] = task
    if case.kind == tables.REGISTERED:
        name = tables.DATA_SETS["images" if case.combination.images else task]
        return _with_new_rows(Typed(case, name, name, name, options))
    rows = tables.FEW.get(case.sampler, tables.ROWS)
    how = {"images": case.combination.images, "kind": case.kind, "number": number, "rows": rows}
    x, y = tables.make(task, likelihood, **how, exposure=options.get("exposure"))
    if case.kind == "frame" and task == "regression":
        y = np.asarray(y, float)
    if is_censored := options.get("censored", False):
        y = np.array(tables.censored_cells(y), object) if tables.is_table(case.kind) else tables.bounds(y)
    if (missing := options.get("missing", "error")) != "error":
        also_last = missing == "median" and task != "density"
        x = tables.with_gaps(x, options.get("missing_code", ()), also_last=also_last)
    train, new = (x[:rows], y[:rows]), (x[rows:], y[rows:])
    if options.get("unseen") == "zero" and "colour" in x:
        new = tables.with_new_level(new[0]), new[1]
    if case.kind in tables.IN_MEMORY:
        rows = [tables.in_memory(case.kind, task, *part, censored=is_censored) for part in (train, new)]
        return _with_new_rows(Typed(case, *rows, rows[1] if task == "density" else new[0], options))
    beside = task != "density"
    text = tables.Text(**{name: options[name] for name in tables.Text._fields if name in options})
    names = [
        tables.write(Path(name), case.kind, x, y if beside else None, text)
        for name, (x, y) in (("train", train), ("new", new))
    ]
    inputs = tables.write(Path("inputs"), case.kind, new[0], text=text)
    return _with_new_rows(Typed(case, *names, inputs, options))


def _with_new_rows(command: Typed) -> Typed:
    if "keep_at" not in command.options:
        return command
    at = command.inputs
    if not isinstance(at, str):
        at = tables.write(Path("kept"), ".csv" if isinstance(at, pd.DataFrame) else ".npz", at)
    return command._replace(options={**command.options, "keep_at": at}, inputs=at)


def command_line(typed_command: Typed, capsys: Any) -> None:
    """Type the commands."""
    case = typed_command.case
    arguments = [
        "sample",
        case.combination.model,
        case.sampler,
        "--data",
        typed_command.train,
        "-o",
        "run.nc",
        "--quiet",
    ]
    parts = {"likelihood": case.combination.likelihood, "prior": case.prior}
    for name, value in {**{kind: part for kind, part in parts.items() if part}, **typed_command.options}.items():
        arguments += _words(name, value)
    new = ["--unseen", typed_command.options["unseen"]] if "unseen" in typed_command.options else []
    commands = [
        arguments,
        ["evaluate", "run.nc"],
        ["evaluate", "run.nc", "--data", typed_command.labelled, *new, "--json"],
        ["predict", "run.nc", "--data", typed_command.inputs, *new, "-o", "predictions.csv"],
        ["diagnose", "run.nc"],
        ["report", "run.nc", "-o", "report.html"],
    ]
    if typed_command.options.get("keep") == "predictions":
        commands[2:4] = [commands[3]] if "keep_at" in typed_command.options else []
    for command in commands:
        code = cli.run(command)
        assert code == 0, f"bnnzoo {' '.join(command)}\n{capsys.readouterr().err}"
    if len(commands) > 5:
        assert len(pd.read_csv("predictions.csv"))
    _check(bnnzoo.open("run.nc"), typed_command)


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool) and "." in name:  # the options of a part always have a value
        return [flag, str(value).lower()]
    if isinstance(value, bool):
        return [flag] if value else [f"--no-{flag[2:]}"] if name == "standardise" else []
    if isinstance(value, tuple) and "." not in name:
        return [word for item in value for word in (flag, item)]
    return [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]


def python(command: Typed, capsys: Any) -> None:
    """Call `bnnzoo.sample` and the methods of the run."""
    del capsys
    model, sampler, likelihood, prior = (_part(command, kind) for kind in ("model", "sampler", "likelihood", "prior"))
    keywords = {name: value for name, value in command.options.items() if "." not in name}
    keywords |= {name: part for name, part in (("likelihood", likelihood), ("prior", prior)) if part is not None}
    run = bnnzoo.sample(model, sampler, data=command.train, **keywords)
    run.evaluate()
    if command.options.get("keep") != "predictions":
        run.evaluate(command.labelled, **_unseen(command))
        assert len(run.predict(command.inputs, **_unseen(command)))
    run.diagnose()
    run.report("report.html")
    _check(run, command)


def _part(command: Typed, kind: str) -> Any:
    case = command.case
    name = (
        {"likelihood": case.combination.likelihood, "prior": case.prior}.get(kind)
        if kind in ("likelihood", "prior")
        else case.part(kind)
    )
    fields = {key.partition(".")[2]: value for key, value in command.options.items() if key.startswith(f"{kind}.")}
    return {"name": name, **fields} if name and fields else name


def _unseen(command: Typed) -> dict[str, Any]:
    return {"unseen": command.options["unseen"]} if "unseen" in command.options else {}


def estimator(command: Typed, capsys: Any) -> None:
    """Fit an estimator of scikit-learn and use it."""
    del capsys
    classifies = command.case.combination.task == "classification"
    cls = BayesianClassifier if classifies else BayesianRegressor
    parts = {kind: _part(command, kind) for kind in ("model", "sampler", "likelihood", "prior")}
    keywords = {
        name: v for name, v in command.options.items() if "." not in name and name not in ("task", "test_fraction")
    }
    fitted = cls(**{name: part for name, part in parts.items() if part is not None}, **keywords).fit(*command.train)
    inputs, targets = command.inputs, np.asarray(command.train[1])
    assert len(fitted.predict(inputs)) == len(inputs)
    if classifies:
        np.testing.assert_allclose(fitted.predict_proba(inputs).sum(1), 1, atol=1e-5)
        assert set(fitted.classes_) == set(targets)
    else:
        assert np.isfinite(fitted.predict_quantiles(inputs)).all()
    run = fitted.run_
    run.evaluate(command.labelled)
    run.diagnose()
    run.report("report.html")
    _check(run, command)


def _check(run: Any, command: Typed) -> None:
    """Check that the file is complete, the draws are finite, and the report exists."""
    assert run.attributes["complete"] == 1
    assert run.attributes["task"] == command.case.combination.task
    for values_ in run.posterior["posterior"].data_vars.values():
        assert np.isfinite(values_.values).all()
    assert "<html" in Path("report.html").read_text(encoding="utf-8")


ENTRANCES = {"command line": command_line, "python": python, "estimator": estimator}
