"""The predictive distribution of a run, in original units, from its file alone."""

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
from bnnzoo.assembly import Known
from bnnzoo.data import Scaler, Signature, Unseen, load_inputs, load_like, rounding
from bnnzoo.data.bounds import recorded
from bnnzoo.data.frames import is_frame
from bnnzoo.errors import BnnzooWarning, DamagedError, UsageError
from bnnzoo.evaluation import agreement, metrics, predictive
from bnnzoo.evaluation.draws import Draws, cuts
from bnnzoo.evaluation.predictive import Moments, Sums
from bnnzoo.evaluation.record import Record, evenly
from bnnzoo.evaluation.weights import Weights
from bnnzoo.models import AbstractModel
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior, backend
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.posterior.predicting import Predicting
from bnnzoo.store.schema import CONSTANT_DATA, KEPT_ROWS, linearised_points

QUANTILES = (0.05, 0.5, 0.95)
"""Those of a table of predictions."""

_LEAST_SAMPLES = 1000
"""Quantiles are of at least so many samples, several a draw where there are few draws."""
_DENSITY_SAMPLES = 2**17
"""Samples of a density that all rows are judged by: they move a distribution function by 0.0014 at most."""
_BEST_OF_ROWS = 2000
"""Of how many training rows the likelihood decides which draw is best, where the file has no log density."""
_PARAMETERS = 1000
"""How many parameters stand for all of them, where convergence is judged by parameters."""


class Predictor:
    """What a run's draws predict. Where the model is neither in the file nor given, all but the draws is refused.

    Inputs `x` are rows as `load_inputs` returns them, targets `y` as `load_like` does, both in original units.

    Raises:
        UsageError: on first use, if the model is not known, or says nothing of new inputs.
        BnnzooError: if there are no draws yet.
    """

    def __init__(self, record: Record, model: AbstractModel | AbstractPosterior | None = None):
        self.record = record
        self.model = model

    @property
    def predicts(self) -> bool:
        """Whether the model is known: the file names it, or it was given and says something of the file's rows."""
        if self.record.names_a_model:
            return True
        return isinstance(self.model, AbstractPosterior) and "data_sha256" in self.record.attributes

    @property
    def has_rows(self) -> bool:
        """Whether there are any at which the model can be looked at."""
        record = self.record
        return self.predicts and (record.has_training_rows or record.has_test_rows or record.keeps_predictions)

    @functools.cached_property
    def _known(self) -> Known:
        # Here the first computation begins: opening a file alone leaves JAX as it is.
        backend.keep_programs()
        with backend.arithmetic(self.precision):
            group = self.record.group("constant_data")
            try:
                known = Known.of(self.record.attributes, group, self.model)
            except UsageError as error:
                kind = DamagedError if isinstance(error, DamagedError) else UsageError
                raise kind(f"{self.record.name}: {error}") from error
        agreement.check(self.record.tree, self.record.path, known)
        about = self.record.attributes
        if changed := registry.changed(about.get("plugins", "{}"), about.get("plugin_sources", "{}")):
            said = f"{self.record.name}: made with other plugins than are here: {'; '.join(changed)}"
            warnings.warn(said, BnnzooWarning, stacklevel=2)
        return known

    @property
    def precision(self) -> Any:
        """ "float32" or "float64": in which the run was made, and predictions are."""
        return self.record.attributes["precision"]

    @property
    def signature(self) -> Signature:
        """What rows look like: shape and names of features and targets, the task."""
        return self._known.signature

    @property
    def classifies(self) -> bool:
        """Whether targets are labels."""
        return self.signature.task == "classification"

    @property
    def is_density(self) -> bool:
        """Whether there are no inputs: what is modelled are whole rows."""
        return self.signature.task == "density"

    @property
    def has_continuous_targets(self) -> bool:
        """Whether a density of numbers is predicted, given inputs: neither counts nor labels."""
        if self.signature.task != "regression" or not isinstance(self.posterior, NetworkPosterior):
            return False
        return self.posterior.likelihood.scales_targets

    @property
    def has_counts(self) -> bool:
        """Whether counts are predicted, by a likelihood with rates."""
        if self.signature.task != "regression" or not isinstance(self.posterior, NetworkPosterior):
            return False
        return type(self.posterior.likelihood).exposed is not AbstractLikelihood.exposed

    @functools.cached_property
    def rounding_steps(self) -> Float[np.ndarray, " target"]:
        """The step of each training target that is rounded, in original units; 0 of others."""
        if self.signature.task != "regression" or not self.record.has_training_rows:
            return np.zeros(len(self.signature.target_names))
        y = recorded(self.record.array("observed_data", "y"))
        return np.array([rounding.step_of(column) for column in y.T])

    @property
    def scaler(self) -> Scaler:
        """Between original units and those that the network sees."""
        return self._known.scaler

    @property
    def posterior(self) -> Predicting:
        """What predicts; of a network linear in theta where a draw is followed by the point to be linear at."""
        return self._known.posterior

    @property
    def blocks(self) -> list[str]:
        """The blocks of theta in order: the layout of the model knows it, the file does not."""
        if self.predicts:
            return [block.name for block in self.posterior.layout.blocks]
        return self.record.variables

    @functools.cached_property
    def draws(self) -> Draws:
        """All chains' draws one after the other, flattened, on their natural scale."""
        return Draws(self.record, self.blocks, self._check_finite)

    @functools.cached_property
    def thetas(self) -> Draws:
        """The draws as `posterior` takes them: each followed by its chain's mode where there are modes."""
        points = linearised_points(self.record.group("constant_data"), self.blocks)
        if points is None:
            return self.draws
        modes = np.concatenate([point.reshape(len(point), -1) for point in points], 1)
        self._check_finite(modes)
        return Draws(self.record, self.blocks, self._check_finite, modes)

    @property
    def _check_finite(self) -> Callable[[Float[np.ndarray, "some dim"]], None]:
        """Refuses draws that no run keeps. Bound to nothing that holds draws: they go with their last reader."""
        posterior = self.posterior if self.predicts else None
        return functools.partial(agreement.check_finite, posterior=posterior, path=self.record.path)

    @functools.cached_property
    def weights(self) -> Weights:
        """What each block of parameters does over the draws."""
        sizes = dict(zip(self.blocks, self.draws.widths, strict=True))
        return Weights.of(self.draws, sizes, self.record.shape)

    def some_parameters(self) -> tuple[Int[np.ndarray, " value"], Float[np.ndarray, "chain draw value"]]:
        """The numbers of (at most 1000, evenly spaced) parameters, and their values in every draw."""
        numbers = evenly(sum(self.draws.widths), _PARAMETERS)
        values = [self.draws[piece][:, numbers] for piece in cuts(self.draws, len(self.draws))]
        return numbers, np.concatenate(values).reshape(*self.record.shape, -1)

    def lighter(self, every: int, most_rows: int | None = None) -> Predictor:
        """The same of every k-th draw of each chain, and of at most so many test rows."""
        found = Predictor(self.record.lighter(every, most_rows), self.model)
        if self.predicts:
            found._known = self._known
        return found

    @functools.cached_property
    def row_cost(self) -> float:
        """Floating-point operations that one draw's prediction of one row takes, as XLA counts them before it compiles.

        Never less than two a parameter.
        """
        least = 2.0 * sum(self.draws.widths)
        row = self.inputs(self.record.probes(1)[1])
        with backend.arithmetic(self.precision):
            outputs = jax.jit(lambda theta, x: self.posterior.predictive(theta, x)[1])
            counted = outputs.lower(self.thetas[0:1][0], row).cost_analysis()
            return max(least, float((counted or {}).get("flops", 0.0)))

    def test_rows(self, data: Any = None, *, unseen: Unseen | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of the run's own test rows, or of `data`.

        Raises:
            UsageError: when there are no test rows and no `data`.
        """
        like = self.signature
        if data is None:
            return self.record.test_rows()
        test = load_like(data, like, unseen=unseen)
        self.scaler.refuse_far(test.x, test.y, like, _name_of(data))
        if isinstance(posterior := self.posterior, NetworkPosterior):
            posterior.likelihood.check(test.y, like.num_targets)
        return test.x, test.y

    def rows_of(self, spec: Any, *, unseen: Unseen | None = None) -> Shaped[np.ndarray, "row ..."]:
        """Inputs to predict for, in original units, of what `load_inputs` takes.

        Raises:
            UsageError: as `load_inputs`, or for a number that is too far from those of training.
        """
        x = load_inputs(spec, self.signature, unseen=unseen)
        self.scaler.refuse_far(x, None, self.signature, _name_of(spec))
        return x

    def inputs(self, x: Shaped[np.ndarray, "row ..."]) -> Shaped[np.ndarray, "row ..."]:
        """Rows as `posterior` takes them."""
        if self._known.kept_rows is not None:
            return self._numbers(x)
        return self._known.inputs(x)

    @functools.cached_property
    def _kept(self) -> dict[bytes, int]:
        """The number of each input at which predictions were kept, by its bytes."""
        rows = self._known.kept_rows
        assert rows is not None
        return {np.ascontiguousarray(row).tobytes(): number for number, row in enumerate(rows)}

    def _numbers(self, x: Shaped[np.ndarray, "row ..."]) -> Int[np.ndarray, " row"]:
        """Where these inputs stand among those at which predictions were kept."""
        numbers = [self._kept.get(np.ascontiguousarray(row).tobytes(), -1) for row in x]
        if -1 in numbers:
            count = len(self.record.array(CONSTANT_DATA, KEPT_ROWS))
            run, row = self.record.name, numbers.index(-1) + 1
            raise UsageError(
                f"{run} keeps predictions at the {count} inputs that it was asked for, and no parameters: row {row} is "
                "none of them; sample again with these inputs as --keep-at, or with --keep draws"
            )
        return np.array(numbers, np.int32)

    def functions(self, x: Shaped[np.ndarray, "row ..."]) -> Float[np.ndarray, "chain draw row value"]:
        """The mean or the class probabilities that each draw predicts, in the units the network sees."""
        return self._each(predictive.functions, x)

    def log_scales(self, x: Shaped[np.ndarray, "row ..."]) -> Float[np.ndarray, "chain draw row value"]:
        """The logarithm of the standard deviation that each draw of a regression predicts, in the same units."""
        return self._each(predictive.log_scales, x)

    def _each(
        self, predicted: Callable[..., Float[np.ndarray, "draw row value"]], x: Shaped[np.ndarray, "row ..."]
    ) -> Float[np.ndarray, "chain draw row value"]:
        inputs, chains = self.inputs(x), self.record.shape[0]
        values = self._over(np.arange(len(self.thetas)), lambda thetas, _: predicted(self.posterior, thetas, inputs))
        return values.reshape(chains, -1, *values.shape[1:])

    def _over(
        self,
        index: Int[np.ndarray, " some"],
        predicted: Callable[[Float[np.ndarray, "piece both"], int], Shaped[np.ndarray, "piece row ..."]],
    ) -> Shaped[np.ndarray, "some row ..."]:
        """What some draws predict, in pieces that fit into memory: of thetas, and the number of the first of them."""
        with backend.arithmetic(self.precision):
            found = [predicted(self.thetas[index[cut]], cut.start) for cut in cuts(self.thetas, len(index))]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def sums(
        self, x: Shaped[np.ndarray, "row ..."], y: Shaped[np.ndarray, "row ..."] | None = None, *, apart: bool = True
    ) -> Sums:
        """Of about twenty batches of draws, or not `apart`; from which moments come, in the units the network sees."""
        inputs, parts = self.inputs(x), predictive.batches(*self.record.shape)
        target = None if y is None else self.scaler.scale_targets(y)
        with backend.arithmetic(self.precision):
            return predictive.sums(
                self.posterior, self.thetas, inputs, target, weights=self.record.weights, parts=parts, apart=apart
            )

    def moments(
        self,
        x: Shaped[np.ndarray, "row ..."],
        y: Shaped[np.ndarray, "row ..."] | None = None,
        *,
        draw: int | None = None,
    ) -> Moments:
        """Of the mixture over all draws, or of a single one, in the units the network sees."""
        if draw is None:
            return self.sums(x, y, apart=False).moments()
        inputs, target = self.inputs(x), None if y is None else self.scaler.scale_targets(y)
        with backend.arithmetic(self.precision):
            return predictive.moments(self.posterior, self.thetas[draw : draw + 1], inputs, target)

    def samples(
        self, x: Shaped[np.ndarray, "row ..."], numbers: UInt32[np.ndarray, " row"] | None = None, *, seed: int = 0
    ) -> Iterator[tuple[slice, Float[np.ndarray, "sample row target"]]]:
        """Blocks of rows: samples of their predictive distribution in original units, at least 1000 a row.

        Rows of one of the `numbers` have the same noise; each has its own unless they are given.
        """
        inputs, key, weights = self.inputs(x), jax.random.key(seed), self.record.weights
        numbers = np.arange(len(x), dtype=np.uint32) if numbers is None else numbers
        index = predictive.copies(len(self.thetas), weights, least=_LEAST_SAMPLES)
        for rows in predictive.blocks(len(inputs), len(index) * len(self.signature.target_names)):
            draw = functools.partial(self._sample, numbers=numbers[rows], key=key)
            drawn = self._over(index, lambda thetas, first, x=inputs[rows], of=draw: of(thetas, x, first_draw=first))
            yield rows, self.scaler.unscale_targets(drawn)

    def density_samples(self, *, seed: int = 0) -> Float[np.ndarray, "sample column"]:
        """Rows from the predictive distribution of a density, in original units, as many from each draw.

        A density has no inputs: the rows that are judged by these samples share them.
        """
        index = predictive.copies(len(self.thetas), self.record.weights)
        each = -(-_DENSITY_SAMPLES // len(index))
        x = self.inputs(np.zeros((each, len(self.signature.target_names)), np.float32))
        with backend.arithmetic(self.precision):
            key = jax.random.key(seed)
        drawn = self._over(index, lambda thetas, first: self._sample(thetas, x, first_draw=first, key=key))
        return self.scaler.unscale_targets(drawn.reshape(-1, drawn.shape[-1]))

    def quantiles(
        self, x: Shaped[np.ndarray, "row ..."], levels: tuple[float, ...] = QUANTILES, *, seed: int = 0
    ) -> Float[np.ndarray, "quantile row target"]:
        """Quantiles of the predictive distribution in original units, the same for equal rows wherever they stand."""
        blocks = self.samples(x, _of_content(x), seed=seed)
        return np.concatenate([metrics.quantiles(np.sort(values, 0), levels) for _, values in blocks], 1)

    def sample_each(
        self, x: Shaped[np.ndarray, "row ..."], kept: Int[np.ndarray, " kept"], *, seed: int
    ) -> Shaped[np.ndarray, "chain kept row *target"]:
        """One target of each kept draw and row, in original units."""
        inputs = self.inputs(x)
        with backend.arithmetic(self.precision):
            key = jax.random.key(seed)
        drawn = self._over(self._thinned(kept), lambda t, first: self._sample(t, inputs, first_draw=first, key=key))
        drawn = drawn if self.classifies else self.scaler.unscale_targets(drawn)
        return drawn.reshape(-1, len(kept), *drawn.shape[1:])

    def new_rows(self, count: int, *, seed: int = 0) -> pd.DataFrame:
        """So many rows from the posterior predictive distribution of a density, in original units.

        Each is of a draw of its own while there are enough of them.

        Raises:
            UsageError: where there are inputs: rows are drawn of a density alone; or for fewer than one.
        """
        if not self.is_density:
            raise UsageError("draws of new rows are of a density (--task density); this run predicts targets of inputs")
        if not isinstance(count, Integral) or count < 1:
            raise UsageError(f"draws: how many new rows, 1 or more (got {count})")
        index = predictive.copies(len(self.thetas), self.record.weights, least=int(count))
        index = np.random.default_rng(seed).permutation(index)[:count]
        x = self.inputs(np.zeros((1, len(self.signature.target_names)), np.float32))
        with backend.arithmetic(self.precision):
            key = jax.random.key(seed)
        drawn = self._over(index, lambda thetas, first: self._sample(thetas, x, first_draw=first, key=key))
        return pd.DataFrame(self.scaler.unscale_targets(drawn[:, 0]), columns=list(self.signature.target_names))

    def log_density(self, rows: Float[np.ndarray, "row column"]) -> Float[np.ndarray, " row"]:
        """log of the posterior predictive density of a density's rows, in original units."""
        return self.moments(rows, rows).log_density - np.sum(np.log(self.scaler.y_sd.astype(np.float64)))

    def log_rounded(
        self, x: Shaped[np.ndarray, "row ..."], y: Float[np.ndarray, "row target"]
    ) -> Float[np.ndarray, " row"]:
        """The log predictive probability of the interval that was rounded to each row's targets."""
        half = self.rounding_steps / 2
        inputs, low, high = self.inputs(x), self.scaler.scale_targets(y - half), self.scaler.scale_targets(y + half)
        weights = self.record.weights
        total, count = np.full(len(x), -np.inf), len(self.thetas)
        logs = np.full(count, -np.log(count)) if weights is None else np.log(np.maximum(weights, 1e-300))
        with backend.arithmetic(self.precision):
            for cut in cuts(self.thetas, count):
                some = np.arange(count)[cut]
                found = predictive.log_intervals(self.posterior, self.thetas[some], logs[some], inputs, low, high)
                total = np.logaddexp(total, found)
        return total

    def _sample(self, thetas: Any, x: Any, **how: Any) -> Shaped[np.ndarray, "draw row ..."]:
        """`predictive.samples`: targets of `x`, or of a density whole rows."""
        arrange = self._known.arrange if self.is_density else None
        return predictive.samples(self.posterior, thetas, x, arrange=arrange, **how)

    def log_likelihoods(
        self,
        x: Shaped[np.ndarray, "row ..."],
        y: Shaped[np.ndarray, "row ..."],
        kept: Int[np.ndarray, " kept"],
        *,
        linearised: bool = True,
    ) -> Float[np.ndarray, "chain kept row"]:
        """log p(y | x, theta) of each row by each kept draw, a density of y in original units.

        Args:
            linearised: of a run whose predictions are those of the linearised network, by that; else by the network.
        """
        inputs, target = self.inputs(x), self.scaler.scale_targets(y)
        dim = self.posterior.layout.dim

        def density(thetas: Float[np.ndarray, "piece both"], _: int) -> Float[np.ndarray, "piece row"]:
            used = thetas if linearised else thetas[:, :dim]
            return predictive.log_likelihoods(self.posterior, used, inputs, target)

        found = self._over(self._thinned(kept), density)
        if y.ndim == 3:
            found = found - self.scaler.log_units(y).astype(np.float32)
        elif not self.classifies:
            found = found - np.sum(np.log(self.scaler.y_sd)).astype(np.float32)
        return found.reshape(-1, len(kept), len(x))

    def _thinned(self, kept: Int[np.ndarray, " kept"]) -> Int[np.ndarray, " draw"]:
        """The numbers of every chain's kept draws."""
        chains, count = self.record.shape
        return (np.arange(chains)[:, None] * count + kept).ravel()

    def best_draw(self) -> int:
        """The draw of the highest log density, or where the file has none of the highest log-likelihood."""
        if "lp" in self.record.statistics:
            return int(np.argmax(self.record.statistics["lp"]))
        self.record.require_training_rows("the best draw")
        x, y = self.record.training_rows(_BEST_OF_ROWS)
        chains, count = self.record.shape
        pieces = (np.arange(count)[piece] for piece in predictive.blocks(count, chains * len(x)))
        values = [self.log_likelihoods(x, y, piece).sum(2, dtype=np.float64) for piece in pieces]
        return int(np.argmax(np.concatenate(values, 1)))

    def table(self, x: Shaped[np.ndarray, "row ..."], *, seed: int = 0) -> pd.DataFrame:
        """The predictive distribution in original units, a row each: see `Run.predict`."""
        if self.is_density:
            return pd.DataFrame({"log_density": self.log_density(x)})
        moments, like = self.moments(x), self.signature
        if self.classifies:
            columns = {f"p_{name}": moments.mean[:, c] for c, name in enumerate(like.class_names)}
            likeliest = np.asarray(like.class_names)[moments.mean.argmax(1)]
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
                (f"{target}_{name}" if len(like.target_names) > 1 else name): array[:, i]
                for i, target in enumerate(like.target_names)
                for name, array in values.items()
            }
        )


def _name_of(spec: Any) -> str:
    """What messages call the rows that somebody gave."""
    return str(spec) if isinstance(spec, str | Path) else "data" if is_frame(spec) else "x"


def _of_content(x: Shaped[np.ndarray, "row ..."]) -> UInt32[np.ndarray, " row"]:
    """A number for each row, of its inputs alone. Rows that differ need noise of their own, or errors would add up."""
    return np.array([zlib.crc32((row + 0).tobytes()) for row in x], np.uint32)  # + 0: -0.0 and 0.0 are equal
