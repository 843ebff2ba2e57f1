"""Results on stdout: aligned lines for people, JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from bnnzoo.errors import BnnzooWarning, DamagedError, UsageError
from bnnzoo.files.shell import quoted

if TYPE_CHECKING:
    from bnnzoo.evaluation.formulas.metrics import Estimate

_LONGEST = 3000
"""Number of characters above which a line of an error or a warning is shortened."""


_results: list[TextIO | None] = []
"""Stack of streams for results, one per nested `reserve_stdout`. Results are written to the last stream."""


def echo(text: object = "", *, nl: bool = True) -> None:
    """Print a result of one or several lines."""
    if not _results:
        typer.echo(_lines(text), nl=nl)
    elif (stdout := _results[-1]) is not None:  # it is None if the parent process closed stdout
        typer.echo(_lines(text), file=stdout, nl=nl)


def echo_csv(text: str) -> None:
    """Print a CSV table unchanged. Only on a terminal, unprintable characters are escaped."""
    stdout = _results[-1] if _results else sys.stdout
    if stdout is None or stdout.isatty():
        echo(text, nl=False)
    else:
        stdout.write(text)


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve stdout for `echo` within the context. Other output of plugins and libraries goes to stderr."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def printable(text: str) -> str:
    """Escape unprintable characters, so that untrusted text stays on one line and cannot control the terminal."""
    if text.isprintable():
        return text
    # Characters are escaped as in JSON, so that JSON output stays valid.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _lines(text: object) -> str:
    return "\n".join(map(printable, str(text).split("\n")))


def shorten_line(line: str) -> str:
    """Shorten a long line. Names in files of unknown origin can have any length."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1000]} ... {line[-900:]}"


def print_json(value: Any) -> None:
    """Print one JSON value. NaN and infinities become null, because JSON has no notation for them."""
    echo(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))


def print_record(values: Mapping[str, Any]) -> None:
    """Print one `key  value` per line. A list with several values takes several lines.

    Values that are unknown, or that do not apply to the run, are omitted.
    """
    present = {key: value for key, value in values.items() if not _is_absent(value)}
    width = max((len(str(key)) for key in present), default=0)
    for key, value in present.items():
        lines = [_text(item) for item in value] if isinstance(value, list | tuple) else [_text(value)]
        for index, line in enumerate(lines or [""]):
            echo(f"{printable(str(key)) if index == 0 else '':<{width}}  {line}".rstrip())


def _is_absent(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value == "not-applicable")


def print_run(
    run: Any, *, json: bool, scores: Mapping[str, Estimate] | None = None, seconds: Mapping[str, float] | None = None
) -> None:
    """Print the summary of a run with metrics and timings, and warn if the run has not converged."""
    summary, estimates, path = {**run.summary(), **(seconds or {})}, scores or {}, quoted(run.path)
    if json:
        print_json(summary | {name: estimate.value for name, estimate in estimates.items()})
    else:
        print_record(
            summary
            | {name: with_error(estimate) for name, estimate in estimates.items()}
            | {"next": _next_commands(run, path)}
        )
    warn_of_convergence(run)


def scores_or_warning(file: Path, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the scores that `compute` returns for the test rows of a run.

    If the test rows cannot be scored, for example because all their targets are censored, the result is empty. A
    warning then gives the reason. No error is raised, because the run itself is complete.

    Raises:
        DamagedError: if the arrays of the run are damaged.
    """
    try:
        return dict(compute())
    except DamagedError:
        raise
    except UsageError as error:
        warnings.warn(f"{file}: the test rows have no scores: {error}", BnnzooWarning, stacklevel=2)
        return {}


def _next_commands(run: Any, path: str) -> str:
    """Return the next useful commands.

    If the run needs more draws, the result is the command that adds draws. If the verdict is "not settled" for another
    reason, the result is the command that shows the problems. Otherwise the commands evaluate the run, if it has test
    rows, and report it.
    """
    record = run.predictor.record
    attributes = record.attributes
    if lengths := json.loads(attributes.get("continuation", "{}")):
        options = " ".join(f"--{name} {quoted(str(value))}" for name, value in lengths.items())
        return f"bnnzoo resume {path} {options}"
    if str(attributes.get("verdict", "")).startswith("not settled"):
        return f"bnnzoo diagnose {path}"
    evaluation = f"bnnzoo evaluate {path}; " if record.has_test_rows else ""
    return f"{evaluation}bnnzoo report {path} -o report.html"


def print_warning(text: str) -> None:
    """Print a warning on stderr, in red on a terminal."""
    typer.secho(f"bnnzoo: warning: {printable(text)}", err=True, fg=typer.colors.RED)


def warn_of_convergence(run: Any) -> None:
    """Warn of unreliable results: the run has not converged, or the predictions of the run contradict the data."""
    if doubt := run.predictor.record.doubt:
        print_warning(f"{run.path}: {doubt}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. Each column is as wide as its widest cell."""
    header, rows = [printable(name) for name in header], [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        echo("  ".join(cells).rstrip())


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print records as a table; a missing key gives an empty cell."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    print_table(header, [[_text(row[key]) if key in row else "" for key in header] for row in rows])


def with_error(estimate: Estimate) -> str:
    """Return an estimate with its standard error over rows: 1.23 ± 0.04."""
    return number(estimate.value) + ("" if estimate.se is None else f" ± {estimate.se:.2g}")


def number(value: float) -> str:
    """Format a number with four significant digits; from 10 000 to a million, round it to an integer instead."""
    return f"{value:.0f}" if 10_000 <= abs(value) < 1_000_000 else f"{value:.4g}"


def _text(value: Any) -> str:
    value = _number(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def _plain(value: Any) -> Any:
    value = _number(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _number(value: Any) -> Any:
    """Convert NumPy and JAX scalars to Python numbers."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
