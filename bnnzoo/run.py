"""A run as a Python object: its tree of samples and the operations on it. Only the run file is needed."""

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
from bnnzoo.evaluation import (
    audit,
    counts,
    diagnostics,
    evaluate,
    evidence,
    findings,
    loo,
    metrics,
    ood,
    prediction_intervals,
    prediction_table,
    predictive_samples,
)
from bnnzoo.evaluation.audit_result import TOLERANCE, Audit
from bnnzoo.evaluation.csv import csv_text
from bnnzoo.evaluation.evidence import Evidence
from bnnzoo.evaluation.findings import Limits
from bnnzoo.evaluation.metrics import Estimate
from bnnzoo.evaluation.ood import OodScores
from bnnzoo.evaluation.prediction_intervals import LEVEL, Method
from bnnzoo.evaluation.predictive_distribution import PredictiveDistribution
from bnnzoo.evaluation.predictor import Predictor
from bnnzoo.evaluation.record import Record
from bnnzoo.finding import Finding
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.progress import Observer, Progress
from bnnzoo.store.atomic import check_free, copy_atomically, write_atomically

if TYPE_CHECKING:
    from bnnzoo.plots import Picture

# bnnzoo.report is imported inside the three methods that draw, so matplotlib is loaded with the first picture only.


class Run:
    """A finished or unfinished run. It delegates all work to `bnnzoo.evaluation` and `bnnzoo.report`.

    `path` is its file, or None for a run that is only in memory.
    """

    def __init__(
        self, posterior: xr.DataTree, path: Path | None, *, model: AbstractModel | AbstractPosterior | None = None
    ):
        self.path = path
        self._file = None if path is None else path.absolute()
        self.predictor = Predictor(Record(posterior, path), model)

    @property
    def posterior(self) -> xr.DataTree:
        """Tree of samples in ArviZ's schema."""
        return self.predictor.record.tree

    @property
    def attributes(self) -> dict[str, Any]:
        """Root attributes of the file."""
        return self.predictor.record.attributes

    def __repr__(self) -> str:
        attributes, sizes = self.attributes, self.posterior["posterior"].sizes if self.posterior.children else {}
        draws = f"{sizes.get('chain', 0)} chains of {sizes.get('draw', 0)} draws"
        return f"<Run {attributes['model']} by {attributes['sampler']}: {draws}, {self.path or 'in memory'}>"

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><th>{escape(key)}</th><td>{escape(_format_value(value))}</td></tr>"
            for key, value in self.summary().items()
            if value is not None
        )
        return f"<table>{''.join(cells)}</table>"

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Copy the run's file to `path`, or write the file of a run that is only in memory.

        Raises:
            UsageError: if `path` exists and `force` is not given, if the run is not finished, or if its file is gone.
        """
        path = paths.checked_path(path)
        check_free(path, force=force, remedy="another path, or force=True")
        if self._file is None:
            store.write_tree(path, self.posterior)
            return
        if not self.attributes["complete"]:
            raise UsageError(f"{self.path}: the run is not finished; resume it first")
        if not self._file.exists():
            raise UsageError(f"{self.path}: no longer exists; open the run at its present path")
        copy_atomically(self._file, path)

    def summary(self) -> dict[str, Any]:
        """Return a short summary of the run."""
        return {"file": str(self.path) if self.path else None, **diagnostics.summary(self.predictor.record)}

    def predict(
        self,
        x: Any = None,
        *,
        draws: int | None = None,
        seed: int = 0,
        unseen: Unseen | None = None,
        exposure: ArrayLike | None = None,
        interval: Method | None = None,
        level: float | None = None,
        calibration: Any = None,
        observer: Observer | None = None,
    ) -> pd.DataFrame:
        """Return the predictive distribution in original units, one row per input, or new rows of a density.

        Regression: mean, sd, aleatoric_sd, epistemic_sd, q05, q50, q95, with a prefix `<target>_` for several targets.
        Classification: p_<class>..., entropy, predicted (the likeliest class). Density: log_density. With `interval`,
        also the columns of `predict_interval`.

        Args:
            x: an array of inputs like the training inputs, with numeric columns only; or a data frame or anything that
                `--data` takes, with columns matched by name.
            draws: number of new rows to draw from the posterior predictive distribution of a density, instead of `x`.
            seed: seed of the Monte Carlo noise in quantiles and new rows.
            unseen: "zero" encodes a text level that training did not contain as none of the known levels; "error"
                refuses it. The default is the setting used in training.
            exposure: one positive number per row of `x`, for a run whose exposure was given as an array.
            interval: "bayesian" or "conformal" adds the ends of an interval, or a set of classes.
            level: probability of that interval; 0.9 unless given.
            calibration: rows for conformal intervals, see `predict_interval`.
            observer: is called with the progress of conformal intervals.

        Raises:
            UsageError: for both or neither of `x` and `draws`, for `draws` where the run has inputs, or for inputs that
                do not match the training data.
        """
        if (x is None) == (draws is None):
            raise UsageError(
                "predict: give inputs with [[data=FILE]], or the number of new rows to draw with [[draws]]"
            )
        if draws is not None:
            prediction_intervals.refuse_for_new_rows(interval)
            return predictive_samples.new_rows(self.predictor, draws, seed=seed)
        rows = self._rows(x, unseen, exposure)
        if interval is None:
            prediction_intervals.refuse_without_interval(level, calibration)
            return prediction_table.table(self.predictor, rows, seed=seed)
        ends = prediction_intervals.table(
            self.predictor, rows, interval, level, calibration=calibration, observer=observer
        )
        return pd.concat([prediction_table.table(self.predictor, rows, seed=seed), ends], axis=1)

    def predict_interval(
        self,
        x: Any,
        *,
        level: float = LEVEL,
        method: Method = "conformal",
        calibration: Any = None,
        unseen: Unseen | None = None,
        exposure: ArrayLike | None = None,
        observer: Observer | None = None,
    ) -> pd.DataFrame:
        """Return an interval of each target, or a set of classes, that holds it with probability `level`.

        Columns: `lower` and `upper` in original units, with a prefix `<target>_` for several targets; or `set`, the
        names of the classes with `|` between them. See docs/evaluation.md for the methods and their guarantees.

        Args:
            x: inputs, as for `predict`.
            level: probability of the interval.
            method: "bayesian", the central interval of the predictive distribution, which holds that probability if the
                model is right; or "conformal", which does for any model if rows are exchangeable.
            calibration: for conformal intervals of draws that are not exact: rows with targets, as `--data` takes them,
                that were used neither to train nor to test; or "test" for the run's own test rows.
            unseen: treatment of text levels that training did not contain, see `predict`.
            exposure: one positive number per row of `x`, see `predict`.
            observer: is called with the progress.

        Raises:
            UsageError: for a density or an invalid level, or if the method needs calibration rows or more rows.
        """
        rows = self._rows(x, unseen, exposure)
        return prediction_intervals.table(
            self.predictor, rows, method, level, calibration=calibration, observer=observer
        )

    def predictive(
        self, x: Any, *, seed: int = 0, unseen: Unseen | None = None, exposure: ArrayLike | None = None
    ) -> PredictiveDistribution:
        """Return the predictive distribution of the inputs `x` as an object, in original units.

        Args:
            x: inputs, as for `predict`.
            seed: seed of its samples.
            unseen: treatment of text levels that training did not contain, see `predict`.
            exposure: one positive number per row of `x`, see `predict`.

        Raises:
            UsageError: for a density, or for inputs that do not match the training data.
        """
        return PredictiveDistribution(self.predictor, self._rows(x, unseen, exposure), seed=seed)

    def _rows(self, x: Any, unseen: Unseen | None, exposure: ArrayLike | None) -> np.ndarray:
        """Return inputs for the predictor, with an exposure that was given as an array as their last column."""
        if exposure is not None:
            if not self.predictor.signature.exposure:
                raise UsageError("exposure: the run has none; sample with exposure= to multiply its rates")
            x = with_exposure(x, exposure)
        return self.predictor.rows_of(x, unseen=unseen)

    def predict_to(
        self,
        data: Any,
        out: str | Path,
        *,
        draws: int | None = None,
        seed: int = 0,
        force: bool = False,
        **options: Any,
    ) -> Path:
        """Write the table of `predict` to a .csv or .nc file and return its path.

        Args:
            data: inputs, or None with `draws`.
            out: the file.
            draws: number of new rows of a density.
            seed: seed, as for `predict`.
            force: overwrite an existing file.
            options: other arguments of `predict`.

        Raises:
            UsageError: for another file type, an existing file, or a column name that NetCDF cannot store.
        """
        out = _writable_path(
            out,
            (".csv", ".nc"),
            "predictions need a .csv or a .nc file",
            force,
            read=(self._file, data, options.get("calibration")),
        )
        frame = self.predict(data, draws=draws, seed=seed, **options)
        if out.suffix == ".csv":
            write_atomically(out, lambda file: file.write(csv_text(frame).encode()))
        else:
            _write_netcdf(out, {str(name): values.to_numpy() for name, values in frame.items()})
        return out

    def functions(self, x: Any) -> Float[np.ndarray, "chain draw row value"]:
        """Return the predictions of each draw at the inputs `x`, in the units of the network."""
        return self.predictor.functions(self.predictor.rows_of(x))

    def diagnose(self, *, num_probes: int = 50) -> dict[str, Any]:
        """Return diagnostics of convergence and validity; see docs/evaluation.md for their names.

        It works on an unfinished run.

        Args:
            num_probes: number of inputs at which predictions are tested. Half are evenly spaced test rows, and half
                span the inputs of all rows.
        """
        return diagnostics.of_run(self.predictor, num_probes=num_probes)

    def findings(
        self,
        diagnosis: Mapping[str, Any] | None = None,
        limits: Limits = Limits(),  # noqa: B008 (immutable)
    ) -> tuple[Finding, ...]:
        """Return the problems that the gate finds in the run; empty if there are none.

        Args:
            diagnosis: the result of `diagnose`, if it was computed already.
            limits: the thresholds of the gate.
        """
        diagnosed = self.diagnose() if diagnosis is None else diagnosis
        return findings.gate_findings(diagnosed, limits, of_sampler=self.predictor.record.findings)

    def blocks(self) -> list[dict[str, Any]]:
        """Return one row per block of parameters: its size, and norm, mean, sd and R-hat over the draws."""
        return diagnostics.blocks(self.predictor)

    def evaluate(
        self,
        data: Any = None,
        *,
        ood: Any = None,
        observer: Observer | None = None,
        save: bool = True,
        unseen: Unseen | None = None,
        interval: Method | None = None,
        level: float | None = None,
        calibration: Any = None,
    ) -> dict[str, int | float]:
        """Return metrics of the predictions on the test rows, or on `data`, as a flat dictionary.

        NAME is followed by its standard error over rows (NAME_se) and its Monte Carlo standard error (NAME_mcse), where
        they exist. The arguments are those of `estimates`. See docs/evaluation.md.
        """
        return metrics.flat(
            self.estimates(
                data,
                ood=ood,
                observer=observer,
                save=save,
                unseen=unseen,
                interval=interval,
                level=level,
                calibration=calibration,
            )
        )

    def estimates(
        self,
        data: Any = None,
        *,
        ood: Any = None,
        observer: Observer | None = None,
        save: bool = False,
        unseen: Unseen | None = None,
        interval: Method | None = None,
        level: float | None = None,
        calibration: Any = None,
    ) -> dict[str, Estimate]:
        """Return the metrics of `evaluate` as values that keep each row's contribution to their errors.

        On the run's own test rows, `loo_` metrics of the training rows are added. With `save`, a finished file also
        gets groups of ArviZ's schema: `posterior_predictive` and `log_likelihood` of the training rows, and
        `predictions`, `predictions_constant_data` and `predictions_log_likelihood` of the test rows. They hold every
        k-th draw where a group would exceed 32 MB, and at least one draw per chain.

        Args:
            data: rows with targets, as `--data` takes them; by default the run's own test rows.
            ood: unfamiliar inputs whose metrics are added, see `ood`.
            observer: is called with the progress.
            save: add the groups to the file.
            unseen: treatment of text levels that training did not contain, see `predict`.
            interval: "conformal" adds coverage and width of conformal intervals beside the Bayesian ones.
            level: probability of those intervals; 0.9 unless given.
            calibration: rows for conformal intervals, see `predict_interval`; none of the scored rows.

        Raises:
            UsageError: if there are no test rows and no `data`, or as `predict_interval`.
        """
        if interval is None:
            prediction_intervals.refuse_without_interval(level, calibration)
        x, y = self.predictor.test_rows(data, unseen=unseen)
        tell = observer or (lambda _: None)
        tell(Progress("evaluating", 0, len(x)))
        estimates = evaluate.of_rows(self.predictor, x, y).estimates
        if interval is not None:
            estimates |= evaluate.of_intervals(
                self.predictor, x, y, interval, level, calibration=calibration, observer=observer
            )
        if data is None:
            estimates |= loo.estimates(self.predictor)
            if save and self._file is not None and self.attributes["complete"]:
                store.refuse_other(self._file, self.attributes)
                self.predictor.record.add_groups(evaluate.groups(self.predictor, x, y))
        if ood is not None:
            estimates |= self.ood(ood, data, unseen=unseen).estimates()
        tell(Progress("evaluating", len(x), len(x)))
        return {**estimates, "rows": Estimate(len(y))}

    @property
    def loo_caveat(self) -> str:
        """Limitation of the `loo_` metrics of this run; empty if there is none."""
        return loo.caveat(self.predictor.record)

    def caveats(self, estimates: Mapping[str, Estimate]) -> dict[str, str]:
        """Return the caveats on an evaluation, by name: `loo_caveat`, `nll_caveat`, `counts_caveat`.

        Args:
            estimates: the result of `estimates`.
        """
        caveats_by_name = {
            "loo_caveat": self.loo_caveat if "loo_nll" in estimates else "",
            "nll_caveat": evaluate.rounding_caveat(self.predictor, estimates),
            "counts_caveat": counts.caveat(self.predictor, estimates),
        }
        return {name: text for name, text in caveats_by_name.items() if text}

    def test_rows(self, data: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return encoded inputs and targets of the test rows, or of `data`, in original units.

        Raises:
            UsageError: if there are no test rows and no `data`.
        """
        return self.predictor.test_rows(data)

    def pit(self, data: Any = None) -> Float[np.ndarray, "row target"]:
        """Return probability integral transforms of the targets, which are uniform for calibrated predictions.

        Raises:
            UsageError: if the run is not a regression.
        """
        if self.predictor.signature.task != "regression":
            raise UsageError(
                "pit: is for targets of regression; for classes use the reliability diagram (plot calibration)"
            )
        return evaluate.sampled_scores(self.predictor, *self.test_rows(data)).pit

    def ood(self, spec: Any, data: Any = None, *, unseen: Unseen | None = None) -> OodScores:
        """Compare the scores of unfamiliar inputs with those of the test rows, or of `data`.

        Both are computed for the posterior and for its best draw. The best draw has the highest log density. Where the
        file has none, it has the highest log-likelihood of at most 2000 training rows.

        Args:
            spec: inputs as for `predict` (labels are not needed), or "noise" for as many rows as there are test rows.
            unseen: treatment of text levels that training did not contain, see `predict`.
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
        """Compare the draws with exact chains that start from them: passed, drifted or undecided.

        The audit works for any sampler.

        Args:
            chains: largest number of exact chains; fewer are used if the effective number of draws is smaller.
            seconds: approximate duration; by default half of the run's, and at least 20.
            tolerance: the largest bias that may remain possible in a run that passes: of a mean in sds, of an sd
                relative.

        Raises:
            UsageError: for a posterior defined in Python, kept predictions, weighted draws, or fewer than two different
                draws.
        """
        return audit.of_run(self.predictor, chains=chains, seconds=seconds, tolerance=tolerance, seed=seed)

    def evidence(self, *others: Run) -> Evidence:
        """Estimate log p(D) with its standard error, the method used and a one-line interpretation.

        The method depends on the sampler: importance weights, the acceptance fraction of rejection sampling, the lower
        bound of `bbb`, or the Gaussian of `laplace`.

        Args:
            others: runs that differ only in their likelihood power. Together with this one they form a path from 0 to 1
                for thermodynamic integration.

        Raises:
            UsageError: if log p(D) cannot be computed from these draws.
        """
        if others:
            return evidence.of_path([run.predictor for run in (self, *others)])
        return evidence.of_run(self.predictor)

    def plot(self, name: str, *, others: Sequence[Run] = (), **options: Any) -> Picture:
        """Draw one picture and return it.

        The names (and options) are: band (target=, range=, band=, truth=), density, slices (target=), ood (spec=),
        calibration, pit, trace, rank, autocorrelation, steps and loss.

        Args:
            others: runs to show beside this one in band, ood and loss; in band with overlay=True on the same axes.

        Raises:
            UsageError: for an unknown name, or a picture that is not available for this run.
        """
        from bnnzoo.report import figures

        return figures.picture(_predictors_by_name([self, *others]), name, **options)

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
        """Draw pictures into the folder `out`, or one picture into a file with the extension of a picture.

        Args:
            out: folder or file.
            others: runs to show beside this one, as for `plot`.
            formats: file formats, by default png.
            names: names of the pictures, by default all (for a single file `band`).
            ood: unfamiliar inputs of the picture `ood`.
            force: overwrite existing files.
            band: the options of the picture `band`, as for `plot`.

        Returns:
            One dictionary per picture: its name and file, or the reason why it is not available for this run.

        Raises:
            UsageError: for an unknown format or picture, an existing file, or invalid options of the band.
        """
        from bnnzoo.report import figures

        runs = _predictors_by_name([self, *others])
        out = paths.checked_path(out, folder=True)
        paths.refuse_input_as_output(out, [*(run._file for run in (self, *others)), ood, band.get("truth")])
        return figures.write(runs, out, formats=formats, names=names, ood=ood, force=force, band=band)

    def report(self, out: str | Path, *, force: bool = False) -> Path:
        """Write the run as one self-contained HTML page and return its path.

        Raises:
            UsageError: if the file exists and `force` is not given.
        """
        from bnnzoo.report import page

        out = _writable_path(out, (".html", ".htm"), "a report needs a .html file", force, read=(self._file,))
        text = page.page(self.predictor)
        write_atomically(out, lambda file: file.write(text.encode()))
        return out


def _format_value(value: Any) -> str:
    """Format a value for a table, with four significant digits for numbers."""
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def _predictors_by_name(runs: Sequence[Run]) -> dict[str, Predictor]:
    """Return the predictor of each run by the name of its file, numbered if two names are equal."""
    names = [run.path.stem if run.path else f"{run.attributes['model']} by {run.attributes['sampler']}" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{number} {name}" for number, name in enumerate(names, start=1)]
    return dict(zip(names, (run.predictor for run in runs), strict=True))


def _write_netcdf(out: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write the columns of a table along the dimension `row`, or `row_` if a column has that name."""
    if paths := [name for name in columns if "/" in name]:
        raise UsageError(
            f"{out}: column {paths[0]!r}: NetCDF would read the / as the name of a group; write a .csv file instead"
        )
    dim = "row"
    while dim in columns:
        dim += "_"
    store.write_table(out, columns, dim)


def _writable_path(out: str | Path, suffixes: tuple[str, ...], where: str, force: bool, *, read: Sequence[Any]) -> Path:
    """Return `out` as a path that may be written and is none of the files that are read."""
    out = paths.checked_path(out)
    if out.suffix not in suffixes:
        raise UsageError(f"{out}: {where}")
    paths.refuse_input_as_output(out, read)
    check_free(out, force=force)
    store.check_room(out, 0)
    return out
