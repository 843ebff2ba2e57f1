"""Predictive distribution of a run, computed in original units from the run file alone."""

from __future__ import annotations

import functools
import warnings
import zlib
from collections.abc import Callable, Iterator
from numbers import Integral
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped, UInt32

from bnnzoo import registry
from bnnzoo.assembly import RestoredModel
from bnnzoo.data import Scaler, Signature, Unseen, load_inputs, load_like, rounding
from bnnzoo.data.bounds import uncensored_targets
from bnnzoo.data.frames import is_frame
from bnnzoo.data.new_codes import warn_of_new_codes
from bnnzoo.errors import BnnzooWarning, DamagedError, UsageError
from bnnzoo.evaluation import agreement, metrics, predictive
from bnnzoo.evaluation.draws import Draws, draw_slices
from bnnzoo.evaluation.predictive import Moments, Sums
from bnnzoo.evaluation.record import Record, evenly
from bnnzoo.evaluation.weights import Weights
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior, backend
from bnnzoo.posterior.censored import has_rates
from bnnzoo.posterior.predicting import Predicting
from bnnzoo.store.schema import CONSTANT_DATA, KEPT_ROWS, OBSERVED_DATA, linearised_points

QUANTILES = (0.05, 0.5, 0.95)
"""Quantile levels of a table of predictions."""

_LEAST_SAMPLES = 1000
"""Smallest number of samples behind a quantile; with fewer draws, each draw contributes several samples."""
_DENSITY_SAMPLES = 2**17
"""Samples of a density, shared by all test rows; their error in a distribution function is at most 0.0014."""
_BEST_OF_ROWS = 2000
"""Training rows whose likelihood selects the best draw, where the file has no log density."""
_PARAMETERS = 1000
"""Largest number of parameters whose convergence is tested, where there are no predictions to test."""


class Predictor:
    """The predictions of a run's draws.

    Without a model (neither in the file nor given), only the draws are available; everything else is refused.
    Inputs `x` are rows as `load_inputs` returns them. Targets `y` are as `load_like` returns them. Both are in original
    units.

    Raises:
        UsageError: on first use, if the model is unknown or cannot predict at new inputs.
        BnnzooError: if there are no draws yet.
    """

    def __init__(self, record: Record, model: AbstractModel | AbstractPosterior | None = None):
        self.record = record
        self.model = model

    @property
    def predicts(self) -> bool:
        """Whether the model is known: the file names it, or it was given and is defined for the file's rows."""
        if self.record.names_a_model:
            return True
        return isinstance(self.model, AbstractPosterior) and "data_sha256" in self.record.attributes

    @property
    def has_rows(self) -> bool:
        """Whether there are rows at which the model can be evaluated."""
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
            message = f"{self.record.name}: was made with other plugins than are installed here: {'; '.join(changed)}"
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
        """Whether the run predicts a density of real numbers given inputs, not counts or labels."""
        if self.signature.task != "regression" or not isinstance(self.posterior, NetworkPosterior):
            return False
        return self.posterior.likelihood.scales_targets

    @property
    def has_counts(self) -> bool:
        """Whether the run predicts counts, with a likelihood that has rates, and none of them is censored.

        Rows with known counts alone are a selection by the count, so tests of their dispersion would reject wrongly.
        """
        if self.signature.task != "regression" or not isinstance(self.posterior, NetworkPosterior):
            return False
        return has_rates(self.posterior.likelihood) and not self.signature.reading.censored

    @functools.cached_property
    def rounding_steps(self) -> Float[np.ndarray, " target"]:
        """Rounding step of each training target in original units; 0 for a target that is not rounded."""
        if self.signature.task != "regression" or not self.record.has_training_rows:
            return np.zeros(len(self.signature.target_names))
        y = uncensored_targets(self.record.array("observed_data", "y"))
        return np.array([rounding.rounding_step(column) for column in y.T])

    @property
    def scaler(self) -> Scaler:
        """Conversion between original units and the units of the network."""
        return self._restored_model.scaler

    @property
    def posterior(self) -> Predicting:
        """Posterior that predicts. For a linearised network, each draw is followed by the point of linearisation."""
        return self._restored_model.posterior

    @property
    def blocks(self) -> list[str]:
        """Names of the blocks of theta, in order. Only the model's layout has the order; the file does not."""
        if self.predicts:
            return [block.name for block in self.posterior.layout.blocks]
        return self.record.variables

    @functools.cached_property
    def draws(self) -> Draws:
        """Draws of all chains, one chain after the other, flattened, on their natural scale."""
        return Draws(self.record, self.blocks, self._check_finite)

    @functools.cached_property
    def thetas(self) -> Draws:
        """Draws as `posterior` takes them. Each is followed by its chain's mode where the run has modes."""
        points = linearised_points(self.record.group("constant_data"), self.blocks)
        if points is None:
            return self.draws
        modes = np.concatenate([point.reshape(len(point), -1) for point in points], 1)
        self._check_finite(modes)
        return Draws(self.record, self.blocks, self._check_finite, modes)

    @property
    def _check_finite(self) -> Callable[[Float[np.ndarray, "some dim"]], None]:
        """Check that refuses non-finite draws.

        It holds no reference to the draws, so their memory is freed with their last reader.
        """
        posterior = self.posterior if self.predicts else None
        return functools.partial(agreement.check_finite, posterior=posterior, path=self.record.path)

    @functools.cached_property
    def weights(self) -> Weights:
        """Statistics of each block of parameters over the draws."""
        sizes = dict(zip(self.blocks, self.draws.widths, strict=True))
        return Weights.from_draws(self.draws, sizes, self.record.shape)

    def some_parameters(self) -> tuple[Int[np.ndarray, " value"], Float[np.ndarray, "chain draw value"]]:
        """Return the indices of at most 1000 evenly spaced parameters, and their values in every draw."""
        numbers = evenly(sum(self.draws.widths), _PARAMETERS)
        values = [self.draws[piece][:, numbers] for piece in draw_slices(self.draws, len(self.draws))]
        return numbers, np.concatenate(values).reshape(*self.record.shape, -1)

    def thinned(self, stride: int, most_rows: int | None = None) -> Predictor:
        """Return a predictor with every `stride`-th draw of each chain and at most `most_rows` test rows."""
        lighter_predictor = Predictor(self.record.thinned(stride, most_rows), self.model)
        if self.predicts:
            lighter_predictor._restored_model = self._restored_model
        return lighter_predictor

    @functools.cached_property
    def row_cost(self) -> float:
        """Floating-point operations of one draw's prediction of one row, as XLA counts them before compilation.

        The value is at least two operations per parameter.
        """
        min_operations = 2.0 * sum(self.draws.widths)
        row = self.inputs(self.record.probes(1)[1])
        with backend.arithmetic(self.precision):
            outputs = jax.jit(lambda theta, x: self.posterior.predictive(theta, x)[1])
            analysis = outputs.lower(self.thetas[0:1][0], row).cost_analysis()
            return max(min_operations, float((analysis or {}).get("flops", 0.0)))

    def test_rows(self, data: Any = None, *, unseen: Unseen | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of the run's own test rows, or of `data`.

        Raises:
            UsageError: if there are no test rows and no `data`.
        """
        signature = self.signature
        if data is None:
            return self.record.test_rows()
        test = load_like(data, signature, unseen=unseen)
        self.scaler.refuse_far(test.x, test.y, signature, _name_of(data))
        self._warn_of_codes(test.x, test.y, _name_of(data))
        if isinstance(posterior := self.posterior, NetworkPosterior):
            posterior.likelihood.check(test.y, signature.num_targets)
        return test.x, test.y

    def rows_of(self, spec: Any, *, unseen: Unseen | None = None) -> Shaped[np.ndarray, "row ..."]:
        """Return the inputs to predict for, in original units, from anything that `load_inputs` accepts.

        Raises:
            UsageError: as `load_inputs`, or for a number that is too far from the training data.
        """
        x = load_inputs(spec, self.signature, unseen=unseen)
        self.scaler.refuse_far(x, None, self.signature, _name_of(spec))
        self._warn_of_codes(x, None, _name_of(spec))
        return x

    def _warn_of_codes(self, x: np.ndarray, y: np.ndarray | None, where: str) -> None:
        """Warn of new values that look like codes for a missing cell, beside the training rows of the file."""
        if self.record.has_training_rows:
            groups = {"x": CONSTANT_DATA, "y": OBSERVED_DATA}
            warn_of_new_codes(x, y, self.signature, lambda name: self.record.array(groups[name], name), where)

    def inputs(self, x: Shaped[np.ndarray, "row ..."]) -> Shaped[np.ndarray, "row ..."]:
        """Return the rows as `posterior` takes them."""
        if self._restored_model.kept_rows is not None:
            return self._kept_indices(x)
        return self._restored_model.inputs(x)

    @functools.cached_property
    def _kept_inputs(self) -> dict[bytes, int]:
        """Index of each input at which predictions were kept, keyed by the bytes of the row."""
        rows = self._restored_model.kept_rows
        assert rows is not None
        return {np.ascontiguousarray(row).tobytes(): number for number, row in enumerate(rows)}

    def _kept_indices(self, x: Shaped[np.ndarray, "row ..."]) -> Int[np.ndarray, " row"]:
        """Return the indices of these inputs among the rows at which predictions were kept.

        Raises:
            UsageError: if the run kept no predictions at one of them.
        """
        numbers = [self._kept_inputs.get(np.ascontiguousarray(row).tobytes(), -1) for row in x]
        if -1 in numbers:
            count = len(self.record.array(CONSTANT_DATA, KEPT_ROWS))
            run, row = self.record.name, numbers.index(-1) + 1
            raise UsageError(
                f"{run} keeps predictions at {count} inputs and no parameters, and row {row} is none of these "
                "inputs; sample again with these inputs as [[keep_at]], or with [[keep=draws]]"
            )
        return np.array(numbers, np.int32)

    def functions(self, x: Shaped[np.ndarray, "row ..."]) -> Float[np.ndarray, "chain draw row value"]:
        """Return the mean or the class probabilities that each draw predicts, in the units of the network."""
        return self._for_each_draw(predictive.functions, x)

    def log_scales(self, x: Shaped[np.ndarray, "row ..."]) -> Float[np.ndarray, "chain draw row value"]:
        """Return the log standard deviation that each draw of a regression predicts, in the units of the network."""
        return self._for_each_draw(predictive.log_scales, x)

    def _for_each_draw(
        self, predicted: Callable[..., Float[np.ndarray, "draw row value"]], x: Shaped[np.ndarray, "row ..."]
    ) -> Float[np.ndarray, "chain draw row value"]:
        inputs, chains = self.inputs(x), self.record.shape[0]
        values = self._in_pieces(
            np.arange(len(self.thetas)), lambda thetas, _: predicted(self.posterior, thetas, inputs)
        )
        return values.reshape(chains, -1, *values.shape[1:])

    def _in_pieces(
        self,
        index: Int[np.ndarray, " some"],
        predicted: Callable[[Float[np.ndarray, "piece both"], int], Shaped[np.ndarray, "piece row ..."]],
    ) -> Shaped[np.ndarray, "some row ..."]:
        """Evaluate `predicted_site` on the draws `index`, in pieces that fit into memory.

        `predicted_site` takes the thetas of a piece and the position of the first of them in `index`.
        """
        with backend.arithmetic(self.precision):
            piece_values = [
                predicted(self.thetas[index[cut]], cut.start) for cut in draw_slices(self.thetas, len(index))
            ]
        return piece_values[0] if len(piece_values) == 1 else np.concatenate(piece_values)

    def sums(
        self, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."] | None = None, *, apart: bool = True
    ) -> Sums:
        """Return the sums from which the moments follow, in the units of the network.

        With `apart` they are kept separately for about twenty batches of draws, otherwise as one sum.
        """
        inputs, parts = self.inputs(x), predictive.batches(*self.record.shape)
        target = None if y is None else self.scaler.scale_targets(y)
        with backend.arithmetic(self.precision):
            return predictive.sums(
                self.posterior, self.thetas, inputs, target, weights=self.record.weights, parts=parts, keep_parts=apart
            )

    def moments(
        self,
        x: Shaped[np.ndarray, "row ..."],
        y: Shaped[np.ndarray, "row ..."] | None = None,
        *,
        draw: int | None = None,
    ) -> Moments:
        """Return the moments of the mixture over all draws, or of one `draw`, in the units of the network."""
        if draw is None:
            return self.sums(x, y, apart=False).moments()
        inputs, target = self.inputs(x), None if y is None else self.scaler.scale_targets(y)
        with backend.arithmetic(self.precision):
            return predictive.moments(self.posterior, self.thetas[draw : draw + 1], inputs, target)

    def samples(
        self, x: Shaped[np.ndarray, "row ..."], numbers: UInt32[np.ndarray, " row"] | None = None, *, seed: int = 0
    ) -> Iterator[tuple[slice, Float[np.ndarray, "sample row target"]]]:
        """Yield blocks of rows with samples of their predictive distribution, at least 1000 per row, in original units.

        Rows with equal `numbers` share their noise. Without `numbers`, each row has its own noise.
        """
        inputs, key, weights = self.inputs(x), jax.random.key(seed), self.record.weights
        numbers = np.arange(len(x), dtype=np.uint32) if numbers is None else numbers
        index = predictive.sample_indices(len(self.thetas), weights, min_samples=_LEAST_SAMPLES)
        for rows in predictive.blocks(len(inputs), len(index) * len(self.signature.target_names)):
            draw = functools.partial(self._sample, numbers=numbers[rows], key=key)
            sampled = self._in_pieces(
                index, lambda thetas, first, x=inputs[rows], sample_rows=draw: sample_rows(thetas, x, first_draw=first)
            )
            yield rows, self.scaler.unscale_targets(sampled)

    def density_samples(self, *, seed: int = 0) -> Float[np.ndarray, "sample column"]:
        """Return samples from the predictive distribution of a density, in original units, equally many from each draw.

        A density has no inputs, so all test rows share these samples.
        """
        index = predictive.sample_indices(len(self.thetas), self.record.weights)
        rows_per_draw = -(-_DENSITY_SAMPLES // len(index))
        x = self.inputs(np.zeros((rows_per_draw, len(self.signature.target_names)), np.float32))
        with backend.arithmetic(self.precision):
            key = jax.random.key(seed)
        sampled = self._in_pieces(index, lambda thetas, first: self._sample(thetas, x, first_draw=first, key=key))
        return self.scaler.unscale_targets(sampled.reshape(-1, sampled.shape[-1]))

    def quantiles(
        self, x: Shaped[np.ndarray, "row ..."], levels: tuple[float, ...] = QUANTILES, *, seed: int = 0
    ) -> Float[np.ndarray, "quantile row target"]:
        """Return quantiles of the predictive distribution in original units; equal rows get equal quantiles."""
        blocks = self.samples(x, _content_seeds(x), seed=seed)
        return np.concatenate([metrics.quantiles(np.sort(values, 0), levels) for _, values in blocks], 1)

    def sample_each(
        self, x: Shaped[np.ndarray, "row ..."], kept: Int[np.ndarray, " kept"], *, seed: int
    ) -> Shaped[np.ndarray, "chain kept row *target"]:
        """Return one sampled target for each kept draw and row, in original units."""
        inputs = self.inputs(x)
        with backend.arithmetic(self.precision):
            key = jax.random.key(seed)
        sampled = self._in_pieces(
            self._draw_indices(kept), lambda thetas, first: self._sample(thetas, inputs, first_draw=first, key=key)
        )
        sampled = sampled if self.classifies else self.scaler.unscale_targets(sampled)
        return sampled.reshape(-1, len(kept), *sampled.shape[1:])

    def new_rows(self, count: int, *, seed: int = 0) -> pd.DataFrame:
        """Return `count` rows from the posterior predictive distribution of a density, in original units.

        Each row comes from a different draw while there are enough draws.

        Raises:
            UsageError: if the run has inputs (only a density has new rows), or if `count` is below 1.
        """
        if not self.is_density:
            raise UsageError(
                "new rows can be drawn from a density only ([[task=density]]); this run predicts targets from inputs"
            )
        if not isinstance(count, Integral) or count < 1:
            raise UsageError(f"draws: must be the number of new rows, 1 or more (got {count})")
        index = predictive.sample_indices(len(self.thetas), self.record.weights, min_samples=int(count))
        index = np.random.default_rng(seed).permutation(index)[:count]
        x = self.inputs(np.zeros((1, len(self.signature.target_names)), np.float32))
        with backend.arithmetic(self.precision):
            key = jax.random.key(seed)
        sampled = self._in_pieces(index, lambda thetas, first: self._sample(thetas, x, first_draw=first, key=key))
        return pd.DataFrame(self.scaler.unscale_targets(sampled[:, 0]), columns=list(self.signature.target_names))

    def log_density(self, rows: Float[np.ndarray, "row column"]) -> Float[np.ndarray, " row"]:
        """Return the log posterior predictive density of each row of a density run, in original units."""
        return self.moments(rows, rows).log_density - np.sum(np.log(self.scaler.y_sd.astype(np.float64)))

    def log_rounded(
        self, x: Shaped[np.ndarray, "row ..."], y: Float[np.ndarray, "row target"]
    ) -> Float[np.ndarray, " row"]:
        """Return the log predictive probability of the interval that was rounded to each row's targets."""
        half_step = self.rounding_steps / 2
        inputs, low, high = (
            self.inputs(x),
            self.scaler.scale_targets(y - half_step),
            self.scaler.scale_targets(y + half_step),
        )
        weights = self.record.weights
        total, count = np.full(len(x), -np.inf), len(self.thetas)
        log_weights = np.full(count, -np.log(count)) if weights is None else np.log(np.maximum(weights, 1e-300))
        with backend.arithmetic(self.precision):
            for cut in draw_slices(self.thetas, count):
                draw_numbers = np.arange(count)[cut]
                log_probabilities = predictive.log_intervals(
                    self.posterior, self.thetas[draw_numbers], log_weights[draw_numbers], inputs, low, high
                )
                total = np.logaddexp(total, log_probabilities)
        return total

    def _sample(self, thetas: Any, x: Any, **options: Any) -> Shaped[np.ndarray, "draw row ..."]:
        """Call `predictive.samples`: sample the targets of `x`, or whole rows of a density."""
        arrange = self._restored_model.arrange if self.is_density else None
        return predictive.samples(self.posterior, thetas, x, arrange=arrange, **options)

    def log_likelihoods(
        self,
        x: Shaped[np.ndarray, "row ..."],
        y: Shaped[np.ndarray, "row ..."],
        kept: Int[np.ndarray, " kept"],
        *,
        linearised: bool = True,
    ) -> Float[np.ndarray, "chain kept row"]:
        """Return log p(y | x, theta) of each row under each kept draw, as a density of y in original units.

        Args:
            linearised: for a run that predicts with the linearised network, use that network; False uses the original
                one.
        """
        inputs, target = self.inputs(x), self.scaler.scale_targets(y)
        dim = self.posterior.layout.dim

        def density(thetas: Float[np.ndarray, "piece both"], _: int) -> Float[np.ndarray, "piece row"]:
            evaluated_thetas = thetas if linearised else thetas[:, :dim]
            return predictive.log_likelihoods(self.posterior, evaluated_thetas, inputs, target)

        log_densities = self._in_pieces(self._draw_indices(kept), density)
        if y.ndim == 3:
            log_densities = log_densities - self.scaler.log_units(y).astype(np.float32)
        elif not self.classifies:
            log_densities = log_densities - np.sum(np.log(self.scaler.y_sd)).astype(np.float32)
        return log_densities.reshape(-1, len(kept), len(x))

    def _draw_indices(self, kept: Int[np.ndarray, " kept"]) -> Int[np.ndarray, " draw"]:
        """Return the indices of the kept draws of all chains."""
        chains, count = self.record.shape
        return (np.arange(chains)[:, None] * count + kept).ravel()

    def best_draw(self) -> int:
        """Return the index of the draw with the highest log density, or else with the highest log-likelihood."""
        if "lp" in self.record.statistics:
            return int(np.argmax(self.record.statistics["lp"]))
        self.record.require_training_rows("the best draw")
        x, y = self.record.training_rows(_BEST_OF_ROWS)
        chains, count = self.record.shape
        pieces = (np.arange(count)[piece] for piece in predictive.blocks(count, chains * len(x)))
        values = [self.log_likelihoods(x, y, piece).sum(2, dtype=np.float64) for piece in pieces]
        return int(np.argmax(np.concatenate(values, 1)))

    def table(self, x: Shaped[np.ndarray, "row ..."], *, seed: int = 0) -> pd.DataFrame:
        """Return the predictive distribution in original units, one row per input; see `Run.predict`."""
        if self.is_density:
            return pd.DataFrame({"log_density": self.log_density(x)})
        moments, signature = self.moments(x), self.signature
        if self.classifies:
            columns = {f"p_{name}": moments.mean[:, c] for c, name in enumerate(signature.class_names)}
            likeliest = np.asarray(signature.class_names)[moments.mean.argmax(1)]
            return pd.DataFrame({**columns, "entropy": metrics.entropy(moments.mean), "predicted": likeliest})
        scale = self.scaler.y_sd
        values = {
            "mean": self.scaler.unscale_targets(moments.mean),
            "sd": np.sqrt(moments.aleatoric + moments.epistemic) * scale,
            "aleatoric_sd": np.sqrt(moments.aleatoric) * scale,
            "epistemic_sd": np.sqrt(moments.epistemic) * scale,
        }
        quantiles = self.quantiles(x, seed=seed)
        values |= {f"q{round(100 * q):02d}": quantiles[i] for i, q in enumerate(QUANTILES)}
        return pd.DataFrame(
            {
                (f"{target}_{name}" if len(signature.target_names) > 1 else name): array[:, i]
                for i, target in enumerate(signature.target_names)
                for name, array in values.items()
            }
        )


def _name_of(spec: Any) -> str:
    """Return the name of the rows `spec` for messages."""
    return str(spec) if isinstance(spec, str | Path) else "data" if is_frame(spec) else "x"


def _content_seeds(x: Shaped[np.ndarray, "row ..."]) -> UInt32[np.ndarray, " row"]:
    """Return a seed for each row, computed from its inputs alone.

    Different rows need different noise; otherwise their Monte Carlo errors would add up.
    """
    return np.array([zlib.crc32((row + 0).tobytes()) for row in x], np.uint32)  # + 0: -0.0 and 0.0 are equal
