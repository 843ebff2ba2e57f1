"""A run in hand: its tree of samples, and everything one does with them. Nothing but the file is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float
from numpy.typing import ArrayLike

from bnnzoo import paths, store
from bnnzoo.data import Unseen
from bnnzoo.data.exposure import with_exposure
from bnnzoo.errors import UsageError
from bnnzoo.evaluation import audit, counts, diagnostics, evaluate, evidence, findings, loo, metrics, ood
from bnnzoo.evaluation.audit_result import TOLERANCE, Audit
from bnnzoo.evaluation.csv import csv_text
from bnnzoo.evaluation.evidence import Evidence
from bnnzoo.evaluation.findings import Limits
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.evaluation.ood import OodScores
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.evaluation.record import Record
from bnnzoo.finding import Finding
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.progress import Observer, Progress
from bnnzoo.store.atomic import check_free, copy_whole, write_whole

if TYPE_CHECKING:
    from bnnzoo.plots import Picture

# bnnzoo.report is imported by the three methods that draw: matplotlib comes in with the first picture.


class Run:
    """A finished or unfinished run: a face, the work is `bnnzoo.evaluation`'s and `bnnzoo.report`'s.

    `path` is its file, None for one only in memory.
    """

    def __init__(
        self, posterior: xr.DataTree, path: Path | None, *, model: AbstractModel | AbstractPosterior | None = None
    ):
        self.path = path
        self._file = None if path is None else path.absolute()
        self.predictor = Predictor(Record(posterior, path), model)

    @property
    def posterior(self) -> xr.DataTree:
        """The tree in ArviZ's schema."""
        return self.predictor.record.tree

    @property
    def attributes(self) -> dict[str, Any]:
        """The root attributes of the file."""
        return self.predictor.record.attributes

    def __repr__(self) -> str:
        about, sizes = self.attributes, self.posterior["posterior"].sizes if self.posterior.children else {}
        draws = f"{sizes.get('chain', 0)} chains of {sizes.get('draw', 0)} draws"
        return f"<Run {about['model']} by {about['sampler']}: {draws}, {self.path or 'in memory'}>"

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><th>{escape(key)}</th><td>{escape(_shown(value))}</td></tr>"
            for key, value in self.summary().items()
            if value is not None
        )
        return f"<table>{''.join(cells)}</table>"

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Copy the file, or write that of a run that is only in memory.

        Raises:
            UsageError: if it exists and `force` is not given, or the run is not finished.
        """
        path = paths.named(path)
        check_free(path, force=force, cure="another path, or force=True")
        if self._file is None:
            store.write_tree(path, self.posterior)
            return
        if not self.attributes["complete"]:
            raise UsageError(f"{self.path}: the run is not finished: resume it first")
        if not self._file.exists():
            raise UsageError(f"{self.path}: no longer there; open the run where it is now")
        copy_whole(self._file, path)

    def summary(self) -> dict[str, Any]:
        """The run in a dozen numbers."""
        return {"file": str(self.path) if self.path else None, **diagnostics.summary(self.predictor.record)}

    def predict(
        self,
        x: Any = None,
        *,
        draws: int | None = None,
        seed: int = 0,
        unseen: Unseen | None = None,
        exposure: ArrayLike | None = None,
    ) -> pd.DataFrame:
        """The predictive distribution of inputs, in original units, one row each; or new rows of a density.

        Regression: mean, sd, aleatoric_sd, epistemic_sd, q05, q50, q95, with a prefix `<target>_` for several
        targets. Classification: p_<class>..., entropy, predicted (the likeliest class). Density: log_density.

        Args:
            x: an array of inputs as those of training were given, columns of numbers alone; or a data frame or what
                `--data` takes: columns are matched by name.
            draws: instead of `x`, how many new rows to draw from the posterior predictive distribution of a density.
            unseen: "zero" takes a level of text that training did not see for none of the known ones, "error" refuses
                it; as was asked for in training unless given.
            exposure: of a run with an exposure that was given as an array, one positive number a row of `x`.

        Raises:
            UsageError: for both or neither of `x` and `draws`, or draws where there are inputs.
        """
        if (x is None) == (draws is None):
            raise UsageError("predict: give --data FILE, what to predict for, or --draws N, how many new rows to draw")
        if draws is not None:
            return self.predictor.new_rows(draws, seed=seed)
        if exposure is not None:
            if not self.predictor.signature.exposure:
                raise UsageError("exposure: the run has none; sample with exposure= to multiply its rates")
            x = with_exposure(x, exposure)
        return self.predictor.table(self.predictor.rows_of(x, unseen=unseen), seed=seed)

    def predict_to(
        self,
        data: Any,
        out: str | Path,
        *,
        draws: int | None = None,
        seed: int = 0,
        force: bool = False,
        unseen: Unseen | None = None,
    ) -> Path:
        """`predict` into a .csv or .nc file.

        Raises:
            UsageError: for another kind of file, one that exists, or a name that NetCDF has no room for.
        """
        out = _free(out, (".csv", ".nc"), "predictions go to a .csv or a .nc file", force, read=(self._file, data))
        frame = self.predict(data, draws=draws, seed=seed, unseen=unseen)
        if out.suffix == ".csv":
            write_whole(out, lambda file: file.write(csv_text(frame).encode()))
        else:
            _write_netcdf(out, {str(name): values.to_numpy() for name, values in frame.items()})
        return out

    def functions(self, x: Any) -> Float[np.ndarray, "chain draw row value"]:
        """What each draw predicts of the inputs `x`, in the units the network sees: what convergence is judged by."""
        return self.predictor.functions(self.predictor.rows_of(x))

    def diagnose(self, *, num_probes: int = 50) -> dict[str, Any]:
        """Whether the run has converged and was right: numbers over predictions at the first test rows, see
        docs/evaluation.md. Works on an unfinished run.
        """
        return diagnostics.of_run(self.predictor, num_probes=num_probes)

    def findings(self, diagnosis: Mapping[str, Any] | None = None, limits: Limits = Limits()) -> tuple[Finding, ...]:  # noqa: B008 (immutable)
        """What a gate has against the run; empty if nothing.

        Args:
            diagnosis: what `diagnose` said, if that is known already.
        """
        known = self.diagnose() if diagnosis is None else diagnosis
        return findings.judged(known, limits, of_sampler=self.predictor.record.findings)

    def blocks(self) -> list[dict[str, Any]]:
        """A row for each block of parameters: its size, and norm, mean, sd and R-hat over the draws."""
        return diagnostics.blocks(self.predictor)

    def evaluate(
        self,
        data: Any = None,
        *,
        ood: Any = None,
        observer: Observer | None = None,
        save: bool = True,
        unseen: Unseen | None = None,
    ) -> dict[str, int | float]:
        """Metrics of the predictions on the test rows, or on `data`: a flat dictionary, see docs/evaluation.md.

        NAME is followed by NAME_se, its standard error over rows, and NAME_mcse, that of the Monte Carlo, where there
        are such. The arguments are those of `estimates`.
        """
        return metrics.flat(self.estimates(data, ood=ood, observer=observer, save=save, unseen=unseen))

    def estimates(
        self,
        data: Any = None,
        *,
        ood: Any = None,
        observer: Observer | None = None,
        save: bool = False,
        unseen: Unseen | None = None,
    ) -> dict[str, Estimate]:
        """What `evaluate` says, as values that know what each row contributes to their errors.

        On the run's own test rows `loo_` metrics of the training rows are added, and with `save` groups of ArviZ's
        schema to a finished file: `posterior_predictive` and `log_likelihood` of the training rows, `predictions`,
        `predictions_constant_data` and `predictions_log_likelihood` of the test rows; each of every k-th draw where
        one of them would pass 32 MB, and of one draw a chain at least.

        Args:
            ood: unfamiliar inputs to add the metrics of, see `ood`.
            unseen: what of levels that training did not see, see `predict`.

        Raises:
            UsageError: when there are no test rows and no `data`.
        """
        x, y = self.predictor.test_rows(data, unseen=unseen)
        tell = observer or (lambda _: None)
        tell(Progress("evaluating", 0, len(x)))
        found = evaluate.of_rows(self.predictor, x, y).estimates
        if data is None:
            found |= loo.estimates(self.predictor)
            if save and self._file is not None and self.attributes["complete"]:
                store.refuse_other(self._file, self.attributes)
                self.predictor.record.add_groups(evaluate.groups(self.predictor, x, y))
        if ood is not None:
            found |= self.ood(ood, data, unseen=unseen).estimates()
        tell(Progress("evaluating", len(x), len(x)))
        return {**found, "rows": Estimate(len(y))}

    @property
    def loo_caveat(self) -> str:
        """Why the `loo_` metrics of this run are not quite what they are called; empty where they are."""
        return loo.caveat(self.predictor.record)

    def caveats(self, estimates: Mapping[str, Estimate]) -> dict[str, str]:
        """What to know of the metrics of an evaluation, by name: `loo_caveat`, `nll_caveat`, `counts_caveat`.

        Args:
            estimates: what `estimates` returned.
        """
        found = {
            "loo_caveat": self.loo_caveat if "loo_nll" in estimates else "",
            "nll_caveat": evaluate.rounding_caveat(self.predictor, estimates),
            "counts_caveat": counts.caveat(self.predictor, estimates),
        }
        return {name: text for name, text in found.items() if text}

    def test_rows(self, data: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Inputs, what columns of a table became, and targets of the test rows, or of `data`, in original units.

        Raises:
            UsageError: when there are no test rows and no `data`.
        """
        return self.predictor.test_rows(data)

    def pit(self, data: Any = None) -> Float[np.ndarray, "row target"]:
        """Probability integral transforms of the targets: uniform where predictions are calibrated.

        Raises:
            UsageError: unless it is a regression.
        """
        if self.predictor.signature.task != "regression":
            raise UsageError("pit: of a regression's targets; classes have a reliability diagram (plot calibration)")
        return evaluate.drawn(self.predictor, *self.test_rows(data)).pit

    def ood(self, spec: Any, data: Any = None, *, unseen: Unseen | None = None) -> OodScores:
        """Scores of unfamiliar inputs against those of the test rows (or `data`), of the posterior and its best draw.

        Args:
            spec: what `predict` takes as inputs (labels are not needed), or "noise", as many rows as are tested.
            unseen: what of levels that training did not see, see `predict`.

        The best draw has the highest log density, or where the file has none the highest log-likelihood of (at most
        2000 of) the training rows.
        """
        return ood.of_run(self.predictor, spec, self.predictor.test_rows(data, unseen=unseen)[0], unseen=unseen)

    def audit(
        self,
        *,
        chains: int = 128,
        seconds: float | None = None,
        tolerance: float = TOLERANCE,
        seed: int = 0,
    ) -> Audit:
        """Compare the draws with exact chains that start from them: passed, drifted or undecided. For any sampler.

        Args:
            chains: exact chains, at most: fewer where the draws are worth fewer independent ones.
            seconds: time to take, about; by default half of the run's, and at least 20.
            tolerance: the largest bias that may be left open in a run that passes: of a mean in sds, of an sd relative.

        Raises:
            UsageError: of a posterior made in Python, or weighted draws.
        """
        return audit.of_run(self.predictor, chains=chains, seconds=seconds, tolerance=tolerance, seed=seed)

    def evidence(self, *others: Run) -> Evidence:
        """log p(D) with its standard error, how it was found, and in one line what that makes of the number.

        By importance weights, the share that rejection accepts, the lower bound of `bbb`, or the Gaussian of `laplace`.

        Args:
            others: runs that differ in their likelihood power alone, with this one a path from 0 to 1: by
                thermodynamic integration over them.

        Raises:
            UsageError: if these draws do not tell.
        """
        if others:
            return evidence.of_path([run.predictor for run in (self, *others)])
        return evidence.of_run(self.predictor)

    def plot(self, name: str, *, others: Sequence[Run] = (), **options: Any) -> Picture:
        """One picture: band (target=, range=, band=, truth=), density, slices (target=), ood (spec=), calibration, pit,
        trace, rank, autocorrelation, steps or loss.

        Args:
            others: runs to show beside this one: band (with overlay=True over it), ood, loss.

        Raises:
            UsageError: for another name, or a picture that this run does not have.
        """
        from bnnzoo.report import figures

        return figures.picture(_named([self, *others]), name, **options)

    def plot_to(
        self,
        out: str | Path,
        *,
        others: Sequence[Run] = (),
        formats: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        ood: Any = "noise",
        force: bool = False,
        **band: Any,
    ) -> list[dict[str, Any]]:
        """Draw pictures into the folder `out`, or one into a file whose name ends like a picture's: for each its name
        and file, or why this run does not have it.

        Args:
            formats: png unless given.
            band: the options of the picture `band`, as for `plot`.

        Raises:
            UsageError: for a format or picture that does not exist, a file that does, or a band as it cannot be.
        """
        from bnnzoo.report import figures

        runs = _named([self, *others])
        out = paths.named(out, folder=True)
        paths.refuse_read(out, [*(run._file for run in (self, *others)), ood, band.get("truth")])
        return figures.write(runs, out, formats=formats, names=names, ood=ood, force=force, band=band)

    def report(self, out: str | Path, *, force: bool = False) -> Path:
        """Write the run as one HTML page that needs nothing else.

        Raises:
            UsageError: if the file exists and `force` is not given.
        """
        from bnnzoo.report import page

        out = _free(out, (".html", ".htm"), "a report goes to a .html file", force, read=(self._file,))
        text = page.page(self.predictor)
        write_whole(out, lambda file: file.write(text.encode()))
        return out


def _shown(value: Any) -> str:
    """A value in a table: numbers with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def _named(runs: Sequence[Run]) -> dict[str, Predictor]:
    """What reads each run, under the name of its file; numbered where two have the same."""
    names = [run.path.stem if run.path else f"{run.attributes['model']} by {run.attributes['sampler']}" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{number} {name}" for number, name in enumerate(names, start=1)]
    return dict(zip(names, (run.predictor for run in runs), strict=True))


def _write_netcdf(out: Path, columns: Mapping[str, np.ndarray]) -> None:
    """The columns of a table, of a dimension called `row`, or `row_` where that is one of them."""
    if paths := [name for name in columns if "/" in name]:
        raise UsageError(f"{out}: column {paths[0]!r}: a / would make a group of it in NetCDF; write a .csv file")
    dim = "row"
    while dim in columns:
        dim += "_"
    store.write_table(out, columns, dim)


def _free(out: str | Path, suffixes: tuple[str, ...], where: str, force: bool, *, read: Sequence[Any]) -> Path:
    """A path to write to, which is none of the files that are read."""
    out = paths.named(out)
    if out.suffix not in suffixes:
        raise UsageError(f"{out}: {where}")
    paths.refuse_read(out, read)
    check_free(out, force=force)
    store.check_room(out, 0)
    return out
