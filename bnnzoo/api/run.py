"""A run as a Python object, with its samples and the methods that use them. It needs only the file of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from bnnzoo import store
from bnnzoo.api.run_predictions import AbstractRunPredictions, writable_path
from bnnzoo.data import Unseen
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.audit import audit
from bnnzoo.evaluation.audit.audit_result import TOLERANCE, Audit
from bnnzoo.evaluation.contents import predictive_groups
from bnnzoo.evaluation.contents.record import Record
from bnnzoo.evaluation.convergence import diagnostics, findings, outcome
from bnnzoo.evaluation.convergence.findings import Limits
from bnnzoo.evaluation.evidence import estimators
from bnnzoo.evaluation.evidence.estimators import Evidence
from bnnzoo.evaluation.formulas import metrics
from bnnzoo.evaluation.formulas.metrics import Estimate
from bnnzoo.evaluation.intervals import prediction_intervals
from bnnzoo.evaluation.intervals.prediction_intervals import Interval
from bnnzoo.evaluation.predictions import loo, new_rows
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import count_tests, evaluate
from bnnzoo.files import user_paths
from bnnzoo.files.atomic import copy_atomically, write_atomically
from bnnzoo.files.html import record_table
from bnnzoo.finding import Finding, spelling
from bnnzoo.fleet.row_shards import row_shards
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior
from bnnzoo.progress import Observer, Progress, ignore

if TYPE_CHECKING:
    from bnnzoo.plots import Picture

# The three methods that draw pictures import bnnzoo.report, so matplotlib is loaded only when it is needed.


class Run(AbstractRunPredictions):
    """A finished or unfinished run. Its methods call `bnnzoo.evaluation` and `bnnzoo.report`.

    `path` is the file of the run, or None if the run is only in memory.
    """

    def __init__(
        self, posterior: xr.DataTree, path: Path | None, *, model: AbstractModel | AbstractPosterior | None = None
    ):
        self.path = path
        self._file = None if path is None else path.absolute()
        self.predictor = Predictor(Record(posterior, path), model)

    @property
    def posterior(self) -> xr.DataTree:
        """Samples and data of the run, as a tree of groups in ArviZ's schema."""
        return self.predictor.record.tree

    @property
    def attributes(self) -> dict[str, Any]:
        """Root attributes of the run's tree of groups: settings, costs and diagnostics."""
        return self.predictor.record.attributes

    def __repr__(self) -> str:
        attributes, sizes = self.attributes, self.posterior["posterior"].sizes if self.posterior.children else {}
        draws = f"{sizes.get('chain', 0)} chains of {sizes.get('draw', 0)} draws"
        return f"<Run {attributes['model']} by {attributes['sampler']}: {draws}, {self.path or 'in memory'}>"

    def _repr_html_(self) -> str:
        return record_table(self.summary())

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Copy the file of the run to `path`. If the run is only in memory, write it to `path`.

        Raises:
            UsageError: if a file or an unfinished run is at `path` and `force` is false, if the run is not finished, or
                if the file of the run no longer exists.
        """
        path = user_paths.checked_path(path)
        store.refuse_existing(path, force=force, remedy="another path, or force=True")
        if self._file is not None and not self.attributes["complete"]:
            raise UsageError(f"{self.path}: the run is not finished; continue it with bnnzoo.resume first")
        if self._file is not None and not self._file.exists():
            raise UsageError(f"{self.path}: the file no longer exists; open the run at its present path")
        store.remove_unfinished(path)
        copy_atomically(self._file, path) if self._file else store.write_tree(path, self.posterior)

    def summary(self) -> dict[str, Any]:
        """Return a short summary of the run."""
        return {"file": str(self.path) if self.path else None, **diagnostics.summary(self.predictor.record)}

    def diagnose(self, *, num_probes: int = 50) -> dict[str, Any]:
        """Return diagnostics of convergence and validity; docs/evaluation.md explains their names.

        The run may be unfinished. `verdict` summarises the diagnostics in one sentence.

        Args:
            num_probes: number of inputs at which the convergence of the predictions is tested. Half of these inputs
                are evenly spaced test rows. The other half cover the range of the inputs of all rows.
        """
        diagnosis = diagnostics.of_run(self.predictor, num_probes=num_probes)
        return diagnosis | {"verdict": outcome.verdict(diagnosis, self.findings(diagnosis), spelling())}

    def findings(
        self,
        diagnosis: Mapping[str, Any] | None = None,
        limits: Limits = Limits(),  # noqa: B008 (immutable)
    ) -> tuple[Finding, ...]:
        """Return the problems that the sampler reported, and the values of `diagnose` beyond their limits.

        Args:
            diagnosis: the result of `diagnose`; computed if it is not given.
            limits: the limits of the diagnostics.
        """
        diagnosed = self.diagnose() if diagnosis is None else diagnosis
        return findings.gate_findings(diagnosed, limits, of_sampler=self.predictor.record.findings)

    def blocks(self) -> list[dict[str, Any]]:
        """Return a dictionary per block of parameters: the size of the block, and its norm, mean, sd and R-hat."""
        return diagnostics.blocks(self.predictor)

    def evaluate(
        self,
        data: Any = None,
        *,
        ood: Any = None,
        observer: Observer | None = None,
        save: bool = True,
        unseen: Unseen | None = None,
        interval: Interval | None = None,
        level: float | None = None,
        calibration: Any = None,
        scheduler: str | None = None,
    ) -> dict[str, int | float]:
        """Return metrics of the predictions on the test rows, or on `data`, as a flat dictionary.

        Each metric NAME is followed by its standard error over rows (NAME_se) and its Monte Carlo standard error
        (NAME_mcse), if they can be computed. The arguments are those of `estimates`, but `save` is true by default.
        See docs/evaluation.md.
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
                scheduler=scheduler,
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
        interval: Interval | None = None,
        level: float | None = None,
        calibration: Any = None,
        scheduler: str | None = None,
    ) -> dict[str, Estimate]:
        """Return the metrics of `evaluate` as `Estimate` objects, with the influence of each row on the metric.

        Without `data`, the run's own test rows are used, and `loo_` metrics of the training rows are added. If `save`
        is also true, groups of ArviZ's schema are added to the file of a finished run. For the training rows these are
        `posterior_predictive` and `log_likelihood`. For the test rows they are `predictions`,
        `predictions_constant_data` and `predictions_log_likelihood`. If a group would exceed 32 MB, all groups contain
        only a subset of the draws, evenly spaced, and at least one draw per chain.

        Args:
            data: rows with targets, in any form that `--data` accepts; by default the run's own test rows.
            ood: unfamiliar (out-of-distribution) inputs. Their scores are added; see the method `ood`.
            observer: a function that is called with the progress.
            save: add the groups described above to the file.
            unseen: treatment of categories that do not occur in the training rows, see `predict`.
            interval: "conformal" adds coverage and width of conformal intervals to those of Bayesian intervals.
            level: probability of the intervals; 0.9 by default.
            calibration: rows for conformal intervals, see `predict_interval`; they must differ from the scored rows.
            scheduler: address of a Dask scheduler. Each worker evaluates the draws at a part of the rows.

        Raises:
            UsageError: if there are no test rows and no `data`, or for the reasons given in `predict_interval`.
            BnnzooError: if `save` is true, and another run has replaced the file.
        """
        if interval is None:
            prediction_intervals.refuse_without_interval(level, calibration)
        x, y = new_rows.evaluation_rows(self.predictor, data, unseen=unseen)
        tell = observer or ignore
        tell(Progress("evaluating", 0, len(x)))
        intervals: dict[str, Estimate] = {}
        with row_shards(scheduler) as shards:
            if interval is not None:  # first, because this may raise an error, and the metrics take longer
                options: dict[str, Any] = {"calibration": calibration, "observer": observer}
                intervals = prediction_intervals.estimates(self.predictor, x, y, interval, level, **options)
            predictor = self.predictor if shards is None else self.predictor.with_row_map(shards)
            estimates = evaluate.of_rows(predictor, x, y).estimates | intervals
            if data is None:
                estimates |= loo.estimates(predictor)
        if data is None and save and self._file is not None and self.attributes["complete"]:
            store.check_same_run(self._file, self.attributes)
            predictive_groups.add(self.predictor.record, evaluate.groups(self.predictor, x, y))
        if ood is not None:
            estimates |= self.ood(ood, data, unseen=unseen).estimates()
        tell(Progress("evaluating", len(x), len(x)))
        return {**estimates, "rows": Estimate(len(y))}

    @property
    def loo_caveat(self) -> str:
        """Limitation of the `loo_` metrics of this run; empty if there is none."""
        return loo.caveat(self.predictor.record)

    def caveats(self, estimates: Mapping[str, Estimate]) -> dict[str, str]:
        """Return the limitations of the metrics by name: `loo_caveat`, `nll_caveat` and `counts_caveat`, if they exist.

        Args:
            estimates: the result of `estimates`.
        """
        caveats_by_name = {
            "loo_caveat": self.loo_caveat if "loo_nll" in estimates else "",
            "nll_caveat": evaluate.rounding_caveat(self.predictor, estimates),
            "counts_caveat": count_tests.caveat(self.predictor, estimates),
        }
        return {name: text for name, text in caveats_by_name.items() if text}

    def audit(
        self,
        *,
        chains: int = 128,
        seconds: float | None = None,
        tolerance: float = TOLERANCE,
        seed: int = 0,
    ) -> Audit:
        """Start exact chains from draws of the run, and test whether their distribution drifts from that of the draws.

        The verdict is passed, drifted or undecided. The audit works for any sampler.

        Args:
            chains: largest number of exact chains; fewer are used if the effective number of draws is smaller.
            seconds: approximate duration; by default half of the duration of the run, and at least 20 seconds.
            tolerance: largest accepted bias of a mean (in posterior sds) or of an sd (as a fraction of the sd). The
                audit passes only if it excludes larger biases.
            seed: seed of the exact chains.

        Raises:
            UsageError: if the posterior is defined in Python, if the file contains predictions instead of parameters,
                if the file has no training rows, if the draws have weights, or if a single chain has only equal draws.
        """
        return audit.of_run(self.predictor, chains=chains, seconds=seconds, tolerance=tolerance, seed=seed)

    def evidence(self, *others: Run) -> Evidence:
        """Estimate the log evidence log p(D), with its standard error, the method and a one-line interpretation.

        For a single run, the method depends on the sampler: importance weights, the fraction of proposals that
        rejection sampling accepted, the lower bound of `bbb`, or the Gaussian approximation of `laplace`.

        Args:
            others: runs that differ from this run only in their likelihood power. The powers of all runs together must
                form a path from 0 to 1, for thermodynamic integration.

        Raises:
            UsageError: if log p(D) cannot be computed from these draws.
        """
        if others:
            return estimators.of_path([run.predictor for run in (self, *others)])
        return estimators.of_run(self.predictor)

    def plot(self, name: str | None = None, *, others: Sequence[Run] = (), **options: Any) -> Picture:
        """Draw one picture and return it; by default the first picture of the report.

        The names are band, density, slices, ood, calibration, pit, trace, rank, autocorrelation, steps and loss. Some
        have options: band (target=, range=, band=, truth=, overlay=), slices (target=) and ood (spec=).

        Args:
            others: further runs to show in the pictures band, ood and loss. With overlay=True, the picture band draws
                all runs on the same axes.

        Raises:
            UsageError: if the name or an option is unknown, or if the picture is not available for this run.
        """
        from bnnzoo.report import figures

        runs = _predictors_by_name([self, *others])
        return figures.picture(runs, figures.first_name(runs) if name is None else name, **options)

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
        """Draw pictures and write them to a folder, or one picture to a file.

        Args:
            out: a folder, or a file with the extension of a picture.
            others: further runs to show, as for `plot`.
            formats: file formats, by default png.
            names: names of the pictures. The default for a file is band. The default for a folder depends on the runs:
                all pictures except loss for a single run; band, ood and loss for several runs.
            ood: unfamiliar inputs of the picture `ood`.
            force: overwrite existing files.
            band: the options of the picture `band`, as for `plot`.

        Returns:
            One dictionary per picture: its name and file, or the reason why it is not available for this run.

        Raises:
            UsageError: if a format or a picture is unknown, if a file exists, or if the options of `band` are invalid.
        """
        from bnnzoo.report import figures

        runs = _predictors_by_name([self, *others])
        out = user_paths.checked_path(out, folder=True)
        user_paths.refuse_input_as_output(out, [*(run._file for run in (self, *others)), ood, band.get("truth")])
        return figures.write(runs, out, formats=formats, names=names, ood=ood, force=force, band=band)

    def report(self, out: str | Path, *, force: bool = False) -> Path:
        """Write a report about the run and return its path. The report is one self-contained HTML page.

        Raises:
            UsageError: if the file exists and `force` is false, or if its name does not end in .html or .htm.
        """
        from bnnzoo.report import page

        out = writable_path(out, (".html", ".htm"), "the file of a report must end in .html", force, read=(self._file,))
        text = page.page(self.predictor)
        write_atomically(out, lambda file: file.write(text.encode()))
        return out


def _predictors_by_name(runs: Sequence[Run]) -> dict[str, Predictor]:
    """Return the predictor of each run, by the name of its file. If two names are equal, number all names."""
    names = [run.path.stem if run.path else f"{run.attributes['model']} by {run.attributes['sampler']}" for run in runs]
    if len(set(names)) < len(names):
        names = [f"{number} {name}" for number, name in enumerate(names, start=1)]
    return dict(zip(names, (run.predictor for run in runs), strict=True))
