"""The methods of a run that compute predictions for new inputs: tables, distributions and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import ArrayLike

from bnnzoo import store
from bnnzoo.data import Unseen
from bnnzoo.data.formats.frames import EXPOSURE, is_frame, with_exposure, with_index_of
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.intervals import prediction_intervals
from bnnzoo.evaluation.intervals.prediction_intervals import LEVEL, Interval
from bnnzoo.evaluation.predictions import new_rows, prediction_table, predictive_samples
from bnnzoo.evaluation.predictions.csv_text import csv_text
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution
from bnnzoo.evaluation.predictions.predictor import Predictor
from bnnzoo.evaluation.scores import evaluate, familiarity
from bnnzoo.evaluation.scores.familiarity import OodScores
from bnnzoo.files import user_paths
from bnnzoo.files.atomic import check_free, write_atomically
from bnnzoo.finding import spelling
from bnnzoo.progress import Observer


class AbstractRunPredictions:
    """The methods of `bnnzoo.Run` that compute predictions."""

    predictor: Predictor
    _file: Path | None
    """Absolute path of the run's file; None for a run in memory."""

    def predict(
        self,
        x: Any = None,
        *,
        draws: int | None = None,
        seed: int = 0,
        unseen: Unseen | None = None,
        exposure: ArrayLike | None = None,
        interval: Interval | None = None,
        level: float | None = None,
        calibration: Any = None,
        observer: Observer | None = None,
    ) -> pd.DataFrame:
        """Return a table of the predictive distribution in original units, one row per input.

        If the inputs are a data frame of pandas, the table has the same index.

        Regression: the columns are mean, sd, aleatoric_sd, epistemic_sd, q05, q50 and q95. They have a prefix
        `<target>_` if there are several targets. Classification: the columns are p_<class> for each class, entropy, and
        predicted (the most probable class). Density: the column is log_density. With `draws`, the result for a density
        is a table of new rows instead. `interval` adds the columns of `predict_interval`.

        Args:
            x: an array with the columns of the training inputs, if all of them are numeric. Otherwise a data frame, or
                any value that `--data` accepts; columns are matched by name.
            draws: for a density, instead of `x`: number of rows to draw from the posterior predictive distribution.
            seed: seed of the Monte Carlo noise in quantiles and new rows.
            unseen: treatment of a category (value of a text column) that does not occur in the training rows. "zero"
                sets the columns of all known categories to 0; "error" raises an error. The default is that of the run.
            exposure: one positive number per row of `x`, for a run whose exposure was given as an array.
            interval: "bayesian" or "conformal" adds the ends of an interval, or a set of classes, to the table.
            level: probability of the interval; 0.9 by default.
            calibration: rows for conformal intervals, see `predict_interval`.
            observer: a function that is called with the progress of conformal intervals.

        Raises:
            UsageError: if not exactly one of `x` and `draws` is given, if `draws` is given but the run has inputs, if
                the inputs do not match the training data, if `level` or `calibration` is given without `interval`, or
                for the reasons given in `predict_interval`.
        """
        if (x is None) == (draws is None):
            inputs = "x" if spelling() == "keywords" else "[[data=FILE]]"
            raise UsageError(f"predict: give either inputs ({inputs}) or the number of new rows to draw ([[draws]])")
        if draws is not None:
            prediction_intervals.refuse_for_new_rows(
                interval=interval, level=level, calibration=calibration, unseen=unseen, exposure=exposure
            )
            return predictive_samples.new_rows(self.predictor, draws, seed=seed)
        rows = self._rows(x, unseen, exposure)
        if interval is None:
            prediction_intervals.refuse_without_interval(level, calibration)
            return with_index_of(x, prediction_table.table(self.predictor, rows, seed=seed))
        ends = prediction_intervals.table(
            self.predictor, rows, interval, level, calibration=calibration, observer=observer
        )
        return with_index_of(x, pd.concat([prediction_table.table(self.predictor, rows, seed=seed), ends], axis=1))

    def predict_interval(
        self,
        x: Any,
        *,
        level: float = LEVEL,
        interval: Interval = "conformal",
        calibration: Any = None,
        unseen: Unseen | None = None,
        exposure: ArrayLike | None = None,
        observer: Observer | None = None,
    ) -> pd.DataFrame:
        """Return an interval, or a set of classes, that contains the target with probability `level`.

        Regression: the columns are `lower` and `upper` in original units, with a prefix `<target>_` if there are
        several targets. Classification: the column `set` contains the names of classes, separated by `|`. If the inputs
        are a data frame of pandas, the table has the same index. See docs/evaluation.md for the methods and their
        guarantees.

        Args:
            x: inputs, as for `predict`.
            level: probability of the interval.
            interval: "bayesian" is the central interval of the predictive distribution, which contains the target with
                probability `level` if the model is correct. "conformal" has this coverage for any model, if the rows
                are exchangeable.
            calibration: rows with targets that were used neither to train nor to test, in any form that `--data`
                accepts; or "test" for the run's own test rows. Conformal intervals need calibration rows if the
                sampler is not exact.
            unseen: treatment of text levels that training did not contain, see `predict`.
            exposure: one positive number per row of `x`, see `predict`.
            observer: a function that is called with the progress.

        Raises:
            UsageError: if the run is a density, if an argument is invalid, if calibration rows are given for Bayesian
                intervals, or if there are too few rows for conformal intervals.
        """
        rows = self._rows(x, unseen, exposure)
        ends = prediction_intervals.table(
            self.predictor, rows, interval, level, calibration=calibration, observer=observer
        )
        return with_index_of(x, ends)

    def predictive(
        self,
        x: Any,
        *,
        draws: int | None = None,
        seed: int = 0,
        unseen: Unseen | None = None,
        exposure: ArrayLike | None = None,
    ) -> PredictiveDistribution:
        """Return the predictive distribution of the inputs `x` as an object, in original units.

        Args:
            x: inputs, as for `predict`.
            draws: approximate largest number of draws to use (evenly spaced, at least one per chain). The default is
                all draws. With fewer draws, all methods of the distribution are faster.
            seed: seed of the samples that the distribution draws.
            unseen: treatment of text levels that training did not contain, see `predict`.
            exposure: one positive number per row of `x`, see `predict`.

        Raises:
            UsageError: if the run is a density, if `draws` is less than 1, or if the inputs do not match the training
                data.
        """
        if draws is not None and draws < 1:
            raise UsageError(f"draws: must be at least 1 (got {draws}); remove the argument to use all draws")
        chains, count = self.predictor.record.shape
        stride = 1 if draws is None else min(count, -(-chains * count // draws))
        predictor = self.predictor if stride == 1 else self.predictor.thinned(stride)
        return PredictiveDistribution(predictor, self._rows(x, unseen, exposure), seed=seed)

    def _rows(self, x: Any, unseen: Unseen | None, exposure: ArrayLike | None) -> np.ndarray:
        """Return the encoded inputs. If `exposure` is given, it becomes a column of `x` before the encoding."""
        if exposure is not None:
            signature = self.predictor.signature
            if not signature.exposure or signature.encoding is None:
                raise UsageError("exposure: the run has no exposure; remove exposure=..., or use it when you sample")
            table = with_exposure(x, exposure)
            # The columns of an array are those of training in their order, whatever their names were.
            if is_frame(x):
                x = table.rename(columns={EXPOSURE: signature.exposure})
            else:
                order = signature.encoding.in_table_order(range(table.shape[1]))
                x = np.column_stack([np.asarray(x), np.asarray(exposure)])[:, order]
        return new_rows.inputs_of(self.predictor, x, unseen=unseen)

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
            data: inputs, as for `predict`; None if `draws` is given.
            out: the file.
            draws: number of new rows of a density, as for `predict`.
            seed: seed, as for `predict`.
            force: overwrite an existing file.
            options: other arguments of `predict`.

        Raises:
            UsageError: if the file has another extension, if it exists and `force` is false, if NetCDF cannot store the
                name of a column, or for the reasons given in `predict`.
        """
        out = writable_path(
            out,
            (".csv", ".nc"),
            "a file of predictions must end in .csv or .nc",
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
        """Return the mean (in the units of the network) or the class probabilities that each draw predicts at `x`."""
        return self.predictor.functions(new_rows.inputs_of(self.predictor, x))

    def test_rows(self, data: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and the targets of the test rows, or of `data`.

        Columns of text are encoded as numbers. Other values are in original units.

        Raises:
            UsageError: if there are no test rows and no `data`.
        """
        return new_rows.evaluation_rows(self.predictor, data)

    def pit(self, data: Any = None) -> Float[np.ndarray, "row target"]:
        """Return the probability integral transform of each target; it is uniform if the predictions are calibrated.

        Rows with censored targets are left out.

        Raises:
            UsageError: if the run is not a regression, or if there are no test rows and no `data`.
        """
        if self.predictor.signature.task != "regression":
            raise UsageError("pit: requires a regression; for classes use the reliability diagram (plot calibration)")
        return evaluate.sampled_scores(self.predictor, *self.test_rows(data)).pit

    def ood(self, spec: Any, data: Any = None, *, unseen: Unseen | None = None) -> OodScores:
        """Compare predictive uncertainty for unfamiliar (out-of-distribution) inputs with that for familiar rows.

        The familiar rows are the test rows or `data`. The scores of uncertainty, such as the entropy, are computed from
        all draws, and also from the best draw alone. The best draw has the highest log density. If the file has no log
        density, the best draw has the highest log-likelihood of at most 2000 training rows.

        Args:
            spec: unfamiliar inputs, as for `predict`, without targets. "noise" generates as many rows of noise as there
                are test rows.
            data: familiar rows with targets, in any form that `--data` accepts; by default the test rows of the run.
            unseen: treatment of text levels that training did not contain, see `predict`.

        Raises:
            UsageError: if there are no test rows and no `data`, or if the rows do not match the training data.
        """
        x = new_rows.evaluation_rows(self.predictor, data, unseen=unseen)[0]
        return familiarity.of_run(self.predictor, spec, x, unseen=unseen)


def writable_path(
    out: str | Path, suffixes: tuple[str, ...], suffix_error: str, force: bool, *, read: Sequence[Any]
) -> Path:
    """Check that a file can be written, and return its path.

    Args:
        out: the file.
        suffixes: the allowed extensions.
        suffix_error: the error message if the extension is not allowed.
        force: overwrite an existing file.
        read: input files of the command; `out` must not be one of them.

    Raises:
        UsageError: if the file cannot be written.
    """
    out = user_paths.checked_path(out)
    if out.suffix not in suffixes:
        raise UsageError(f"{out}: {suffix_error}")
    user_paths.refuse_input_as_output(out, read)
    check_free(out, force=force)
    store.check_room(out, 0)
    return out


def _write_netcdf(out: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write the columns of a table along the dimension `row` (`row_` if a column is called `row`)."""
    if paths := [name for name in columns if "/" in name]:
        raise UsageError(
            f"{out}: column {paths[0]!r}: a column of a NetCDF file must not contain /; write a .csv file instead"
        )
    dim = "row"
    while dim in columns:
        dim += "_"
    store.write_table(out, columns, dim)
