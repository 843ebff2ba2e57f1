"""Predictions of a run, computed from the run file."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from bnnzoo.assembly import RestoredModel
from bnnzoo.data import Scaler, Signature
from bnnzoo.data.columns.bounds import uncensored_targets
from bnnzoo.data.rows import rounding
from bnnzoo.errors import BnnzooWarning, DamagedError, UsageError
from bnnzoo.evaluation.contents import agreement
from bnnzoo.evaluation.contents.draws import Draws, draw_slices
from bnnzoo.evaluation.contents.record import Record, evenly
from bnnzoo.evaluation.contents.weights import Weights
from bnnzoo.evaluation.predictions import per_draw, predictive, row_functions
from bnnzoo.evaluation.predictions.predictive import Moments, Sums
from bnnzoo.models import AbstractModel
from bnnzoo.plugins import registry
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior, backend
from bnnzoo.posterior.censored import has_rates
from bnnzoo.posterior.predicting import Predicting
from bnnzoo.posterior.row_map import RowMap, map_locally
from bnnzoo.store.schema import linearised_points

_PARAMETERS = 1000
"""Largest number of parameters, evenly spaced, whose convergence is tested if there are no predictions to test."""


class Predictor:
    """Predictions from the draws of a run.

    If the model is unknown (neither in the file nor given), only the draws are available, and predictions raise an
    error. `x` are inputs as `load_inputs` returns them, `y` are targets as `load_like` returns them, in original units.

    Args:
        record: the run file.
        model: the model or posterior that was sampled; needed if the file does not specify the model.
        row_map: function that evaluates functions of rows, for example on other machines; by default in this process.

    Raises:
        UsageError: on first use, if the model is unknown or cannot predict at new inputs.
        BnnzooError: on first use, if the run has no draws yet.
    """

    def __init__(
        self, record: Record, model: AbstractModel | AbstractPosterior | None = None, *, row_map: RowMap = map_locally
    ):
        self.record, self.model, self.row_map = record, model, row_map

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the content of the file, because other machines may not have access to the file."""
        return row_functions.predictor_of_file, (row_functions.file_content(self.record), self.model)

    def with_row_map(self, row_map: RowMap) -> Predictor:
        """Return a copy that uses another `row_map`, for example one for the workers of a Dask cluster."""
        return self._with(self.record, row_map)

    def _with(self, record: Record, row_map: RowMap = map_locally) -> Predictor:
        predictor = Predictor(record, self.model, row_map=row_map)
        if self.predicts:
            predictor._restored_model = self._restored_model
        return predictor

    @property
    def predicts(self) -> bool:
        """Whether the model is known.

        Either the file specifies the model, or a posterior was given and the file has the checksum of the posterior's
        data.
        """
        if self.record.names_a_model:
            return True
        return isinstance(self.model, AbstractPosterior) and "data_sha256" in self.record.attributes

    @property
    def has_rows(self) -> bool:
        """Whether the model is known and the file has rows at which predictions can be made."""
        record = self.record
        return self.predicts and (record.has_training_rows or record.has_test_rows or record.keeps_predictions)

    @functools.cached_property
    def _restored_model(self) -> RestoredModel:
        # The first computation starts here. Opening a file alone must not initialise JAX.
        backend.keep_programs()
        with backend.arithmetic(self.precision):
            group = self.record.group("constant_data")
            try:
                restored = RestoredModel.from_file(self.record.attributes, group, self.model)
            except UsageError as error:
                kind = DamagedError if isinstance(error, DamagedError) else UsageError
                raise kind(f"{self.record.name}: {error}") from error
        agreement.check(self.record.tree, self.record.path, restored)
        attributes = self.record.attributes
        if changed := registry.plugin_differences(
            attributes.get("plugins", "{}"), attributes.get("plugin_sources", "{}")
        ):
            message = (
                f"{self.record.name}: was made with plugins that differ from the installed plugins: "
                f"{'; '.join(changed)}; use the environment of the run to reproduce its predictions"
            )
            warnings.warn(message, BnnzooWarning, stacklevel=2)
        return restored

    @property
    def precision(self) -> Any:
        """Precision of the run and of its predictions: "float32" or "float64"."""
        return self.record.attributes["precision"]

    @property
    def signature(self) -> Signature:
        """Description of the rows: shape and names of features and targets, and the task."""
        return self._restored_model.signature

    @property
    def classifies(self) -> bool:
        """Whether targets are class labels."""
        return self.signature.task == "classification"

    @property
    def is_density(self) -> bool:
        """Whether the run has no inputs and models the density of whole rows."""
        return self.signature.task == "density"

    @property
    def has_continuous_targets(self) -> bool:
        """Whether the run is a regression with a density of real numbers, not counts or labels."""
        if self.signature.task != "regression" or not isinstance(self.posterior, NetworkPosterior):
            return False
        return self.posterior.likelihood.scales_targets

    @property
    def has_counts(self) -> bool:
        """Whether the run predicts counts with a likelihood that has rates, and no target can be censored.

        The value is false with censoring, because tests of dispersion would be wrong: whether a count is known then
        depends on the count itself.
        """
        if self.signature.task != "regression" or not isinstance(self.posterior, NetworkPosterior):
            return False
        return has_rates(self.posterior.likelihood) and not self.signature.reading.censored

    @functools.cached_property
    def rounding_steps(self) -> Float[np.ndarray, " target"]:
        """Rounding step of each training target in original units; 0 for a target that is not rounded."""
        if self.signature.task != "regression" or not self.record.has_training_targets:
            return np.zeros(len(self.signature.target_names))
        y = uncensored_targets(self.record.array("observed_data", "y"))
        return np.array([rounding.rounding_step(column) for column in y.T])

    @property
    def scaler(self) -> Scaler:
        """Conversion between original units and the units of the network."""
        return self._restored_model.scaler

    @property
    def posterior(self) -> Predicting:
        """Posterior that makes the predictions.

        For a linearised network, it takes draws that are followed by the point of linearisation.
        """
        return self._restored_model.posterior

    @property
    def arrange(self) -> Callable[[Any], Any]:
        """Function that converts rows of a density to inputs of the network."""
        return self._restored_model.arrange

    @property
    def blocks(self) -> list[str]:
        """Names of the blocks of theta. Only if the model is known, they are in the order of theta."""
        if self.predicts:
            return [block.name for block in self.posterior.layout.blocks]
        return self.record.variables

    @functools.cached_property
    def draws(self) -> Draws:
        """Draws of all chains, one chain after the other, flattened, on their natural scale."""
        return Draws(self.record, self.blocks, self._check_finite)

    @functools.cached_property
    def thetas(self) -> Draws:
        """Draws as `posterior` takes them; for a linearised network, each draw is followed by the mode of its chain."""
        points = linearised_points(self.record.group("constant_data"), self.blocks)
        if points is None:
            return self.draws
        modes = np.concatenate([point.reshape(len(point), -1) for point in points], 1)
        self._check_finite(modes)
        return Draws(self.record, self.blocks, self._check_finite, modes)

    @property
    def _check_finite(self) -> Callable[[Float[np.ndarray, "some dim"]], None]:
        """Function that raises an error for draws with numbers that are not finite.

        The function has no reference to the predictor, so that cached draws are freed together with the predictor.
        """
        posterior = self.posterior if self.predicts else None
        return functools.partial(agreement.check_finite, posterior=posterior, path=self.record.path)

    @functools.cached_property
    def weights(self) -> Weights:
        """Statistics of each block of parameters over the draws, computed in one pass."""
        sizes = dict(zip(self.blocks, self.draws.widths, strict=True))
        return Weights.from_draws(self.draws, sizes, self.record.shape)

    def some_parameters(self) -> tuple[Int[np.ndarray, " value"], Float[np.ndarray, "chain draw value"]]:
        """Return the indices of at most 1000 evenly spaced parameters, and their values in every draw."""
        numbers = evenly(sum(self.draws.widths), _PARAMETERS)
        return numbers, self.columns(numbers)

    def columns(self, numbers: Int[np.ndarray, " value"]) -> Float[np.ndarray, "chain draw value"]:
        """Return the values of the parameters with these indices in every draw."""
        values = [self.draws[piece][:, numbers] for piece in draw_slices(self.draws, len(self.draws))]
        return np.concatenate(values).reshape(*self.record.shape, -1)

    def thinned(self, stride: int, most_rows: int | None = None) -> Predictor:
        """Return a predictor with every `stride`-th draw of each chain and at most `most_rows` test rows."""
        return self._with(self.record.thinned(stride, most_rows))

    def of_sampled_directions(self) -> Predictor:
        """Return a predictor for convergence tests, whose predictions leave out the directions that are not sampled.

        In the other directions, the draws are independent, so chains would seem to agree better than they do.
        """
        if not self.predicts or (restored := self._restored_model.without_others()) is self._restored_model:
            return self
        predictor = Predictor(self.record, self.model)
        predictor._restored_model = restored
        return predictor

    @functools.cached_property
    def row_cost(self) -> float:
        """Number of floating-point operations for the prediction of one row from one draw.

        XLA counts the operations before compilation. The result is at least two operations per parameter.
        """
        min_operations = 2.0 * sum(self.draws.widths)
        row = self.inputs(self.record.probes(1))
        with backend.arithmetic(self.precision):
            outputs = jax.jit(lambda theta, x: self.posterior.predictive(theta, x)[1])
            analysis = outputs.lower(self.thetas[0:1][0], row).cost_analysis()
            return max(min_operations, float((analysis or {}).get("flops", 0.0)))

    def inputs(self, x: Shaped[np.ndarray, "row ..."]) -> Shaped[np.ndarray, "row ..."]:
        """Return the inputs as `posterior` takes them.

        For a run that keeps predictions, these are the positions of the rows among the kept rows.
        """
        model = self._restored_model
        return model.inputs(x) if model.kept_rows is None else self.record.kept_numbers(x)

    def functions(self, x: Shaped[np.ndarray, "row ..."]) -> Float[np.ndarray, "chain draw row value"]:
        """Return the means in units of the network, or the class probabilities, that each draw predicts."""
        return self._for_each_draw(per_draw.functions, x)

    def log_scales(self, x: Shaped[np.ndarray, "row ..."]) -> Float[np.ndarray, "chain draw row value"]:
        """Return the log standard deviation that each draw of a regression predicts, in the units of the network."""
        return self._for_each_draw(per_draw.log_scales, x)

    def _for_each_draw(
        self, predicted: Callable[..., Float[np.ndarray, "draw row value"]], x: Shaped[np.ndarray, "row ..."]
    ) -> Float[np.ndarray, "chain draw row value"]:
        inputs, chains = self.inputs(x), self.record.shape[0]
        values = self.in_pieces(
            np.arange(len(self.thetas)), lambda thetas, _: predicted(self.posterior, thetas, inputs)
        )
        return values.reshape(chains, -1, *values.shape[1:])

    def in_pieces(
        self,
        index: Int[np.ndarray, " some"],
        predicted: Callable[[Float[np.ndarray, "piece both"], int], Shaped[np.ndarray, "value row ..."]],
    ) -> Shaped[np.ndarray, "values row ..."]:
        """Evaluate a function on draws, in pieces of draws that fit into memory.

        The results of the pieces are joined along the first axis.

        Args:
            index: indices of the draws.
            predicted: function of a piece of draws, and of the position of the first draw of this piece in `index`. The
                function returns one value per draw, or one sum per piece.
        """
        with backend.arithmetic(self.precision):
            piece_values = [
                predicted(self.thetas[index[cut]], cut.start) for cut in draw_slices(self.thetas, len(index))
            ]
        return piece_values[0] if len(piece_values) == 1 else np.concatenate(piece_values)

    def sums(
        self, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."] | None = None, *, apart: bool = True
    ) -> Sums:
        """Return the sums over draws from which the moments are computed, in the units of the network.

        If `apart` is true, there is one sum for each of about twenty batches of draws. Otherwise there is one sum over
        all draws.
        """
        return predictive.join_rows(self.row_map(functools.partial(row_functions.sums, apart=apart), self, x, y))

    def moments(
        self,
        x: Shaped[np.ndarray, "row ..."],
        y: Shaped[np.ndarray, "row ..."] | None = None,
        *,
        draw: int | None = None,
    ) -> Moments:
        """Return the predictive moments in the units of the network, over all draws or for a single `draw`."""
        if draw is None:
            return self.sums(x, y, apart=False).moments()
        inputs, target = self.inputs(x), None if y is None else self.scaler.scale_targets(y)
        with backend.arithmetic(self.precision):
            one_draw = self.thetas[draw : draw + 1]
            return predictive.sums(self.posterior, one_draw, inputs, target, keep_parts=False).moments()

    def log_likelihoods(
        self,
        x: Shaped[np.ndarray, "row ..."],
        y: Shaped[np.ndarray, "row ..."],
        draw_numbers: Int[np.ndarray, " kept"],
        *,
        linearised: bool = True,
    ) -> Float[np.ndarray, "chain kept row"]:
        """Return log p(y | x, theta) of each row under each kept draw theta, as a density in original units.

        Args:
            x: inputs.
            y: targets.
            draw_numbers: indices of the kept draws of a chain.
            linearised: whether to use the linearised network if the run predicts with it; if false, the original
                network is used.
        """
        options: dict[str, Any] = {"draw_numbers": draw_numbers, "linearised": linearised}
        shards = self.row_map(functools.partial(row_functions.log_likelihoods, **options), self, x, y)
        log_densities = np.concatenate(shards, 1)
        if y.ndim == 3:
            log_densities = log_densities - self.scaler.log_units(y).astype(np.float32)
        elif not self.classifies:
            log_densities = log_densities - np.sum(np.log(self.scaler.y_sd)).astype(np.float32)
        return log_densities.reshape(-1, len(draw_numbers), len(x))

    def draw_indices(self, draw_numbers: Int[np.ndarray, " kept"]) -> Int[np.ndarray, " draw"]:
        """Return the indices of the kept draws of all chains, where the chains follow each other."""
        chains, count = self.record.shape
        return (np.arange(chains)[:, None] * count + draw_numbers).ravel()
