"""Contents of a run file: draws, statistics and data rows. Opening a file does not import JAX."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float, Int, Shaped
from scipy import special

from bnnzoo.data.columns.bounds import are_bounds
from bnnzoo.errors import BnnzooError, DamagedError, UsageError
from bnnzoo.files.shell import quoted, resume_call
from bnnzoo.finding import Finding, from_json, spell_settings, spelling
from bnnzoo.recipe import Recipe, recipe_from
from bnnzoo.store import schema

_GROUP_BYTES = 2**25
"""Largest size of an array with one number per draw and row; a larger array is computed for every k-th draw only."""


class Record:
    """Draws, statistics and rows of a finished or unfinished run, in original units."""

    def __init__(self, tree: xr.DataTree, path: Path | None):
        self.tree = tree
        self.path = path
        # The absolute path stays valid when the working folder changes later.
        self.file = None if path is None else path.absolute()

    @property
    def name(self) -> str:
        """Name of the run in messages: the path of its file, or "the run" for a run in memory."""
        return "the run" if self.path is None else str(self.path)

    @property
    def attributes(self) -> dict[str, Any]:
        """Root attributes of the file."""
        return {
            str(name): value.item() if getattr(value, "size", 0) == 1 else value
            for name, value in self.tree.attrs.items()
        }

    @property
    def doubt(self) -> str:
        """Main reason to doubt the run, if it has not converged or its predictions are implausible; else empty.

        If the verdict has several reasons, the text adds the reason for implausible predictions, the remark on the
        noise scale, and the command or expression that returns all reasons.
        """
        attributes = self.attributes
        if attributes.get("converged") != 0 and not attributes.get("absurd"):
            return ""
        headline, _, other_reasons = self.verdict.partition("; ")
        if not other_reasons:
            return headline
        in_python = spelling() == "keywords" or self.path is None
        reference = "run.summary()['verdict']" if in_python else f"bnnzoo diagnose {quoted(self.path)}"
        remark = spell_settings(str(attributes.get("noise_remark", "")), spelling())
        implausible = str(attributes.get("absurd", "")).partition("; ")[0]
        reasons = [headline, "" if implausible in headline else implausible, remark, f"all reasons: {reference}"]
        return "; ".join(filter(None, reasons))

    @property
    def verdict(self) -> str:
        """Verdict in the file, with settings spelled for the command line or for Python; empty without a verdict."""
        attributes = self.attributes
        return str((spelling() == "keywords" and attributes.get("verdict_in_python")) or attributes.get("verdict", ""))

    @property
    def is_extensible(self) -> bool:
        """Whether `resume` can add draws: the file has the model and the last state of the chains, or is unfinished."""
        return self.names_a_model and (schema.FINAL_STATE in self.tree.children or self.attributes["complete"] == 0)

    @property
    def names_a_model(self) -> bool:
        """Whether the file specifies the model; a posterior that was made in Python cannot be stored in a file."""
        return "signature" in self.tree.attrs

    @property
    def shape(self) -> tuple[int, int]:
        """Number of chains and number of draws per chain.

        Raises:
            BnnzooError: if the run has no draws yet.
        """
        sizes = self.tree["posterior"].sizes if "posterior" in self.tree.children else {}
        if not sizes.get("draw", 0):
            raise BnnzooError(f"{self.name}: has no draws yet; continue it with {resume_call(self.path)}")
        return sizes["chain"], sizes["draw"]

    @functools.cached_property
    def _recipe(self) -> Recipe:
        return recipe_from(str(self.attributes["recipe"]), source=f"{self.name}: recipe")

    @property
    def thin(self) -> int:
        """Number of steps of the sampler from one recorded draw to the next; 1 if the file specifies no model."""
        return self._recipe.thin if self.names_a_model else 1

    @property
    def variables(self) -> list[str]:
        """Names of the blocks of parameters, in arbitrary order; only the model knows their order in theta."""
        return [str(name) for name in self.tree["posterior"].data_vars]

    def draws_of(
        self, name: str, chain: int, index: slice | Int[np.ndarray, " some"]
    ) -> Shaped[np.ndarray, "some ..."]:
        """Read some draws of one chain and one block of parameters, on the natural scale of the block."""
        # A shallow copy of a variable has its own cache, so the tree does not retain the values read here.
        variable = self.tree["posterior"][name].variable.copy(deep=False)
        return self._read(variable[chain, index], name)

    def thinned(self, stride: int, most_rows: int | None = None) -> Record:
        """Return a record with every `stride`-th draw of each chain and at most `most_rows` test rows.

        The test rows are evenly spaced. No array is read from the file.
        """
        groups = {str(name): node.to_dataset() for name, node in self.tree.children.items()}
        for name in {schema.POSTERIOR, schema.SAMPLE_STATS} & set(groups):
            groups[name] = groups[name].isel(draw=slice(None, None, stride), missing_dims="ignore")
        if self.has_test_rows and most_rows is not None:
            constant = groups[schema.CONSTANT_DATA]
            rows = {constant[name].dims[0] for name in ("x_test", "y_test") if name in constant}
            groups[schema.CONSTANT_DATA] = constant.isel(
                {dimension: evenly(constant.sizes[dimension], most_rows) for dimension in rows}
            )
        tree = xr.DataTree.from_dict({f"/{name}": group for name, group in groups.items()})
        tree.attrs.update(self.tree.attrs)
        return Record(tree, self.path)

    def group(self, name: str) -> dict[str, Shaped[np.ndarray, "..."]]:
        """Read the variables of a group; return an empty dictionary if the file has no such group."""
        variables = self.tree[name].data_vars if name in self.tree.children else {}
        return {str(key): self._read(value, str(key)) for key, value in variables.items()}

    @functools.cached_property
    def statistics(self) -> dict[str, Shaped[np.ndarray, "chain draw"]]:
        """Statistics of the steps of the sampler, by name.

        Raises:
            DamagedError: if a statistic does not have one number per draw.
        """
        return self._step_statistics(schema.SAMPLE_STATS)

    @property
    def warmup_statistics(self) -> dict[str, Shaped[np.ndarray, "chain step"]]:
        """Statistics of the warm-up steps, by name; empty if they were not recorded."""
        return self._step_statistics(f"{schema.WARMUP}{schema.SAMPLE_STATS}")

    def _step_statistics(self, group: str) -> dict[str, Shaped[np.ndarray, "chain draw"]]:
        for name, values in (self.tree[group].data_vars if group in self.tree.children else {}).items():
            if values.dims != schema.SAMPLED or values.dtype.kind not in "biuf":
                description = f"{values.dtype}{list(values.shape)}"
                raise DamagedError(
                    f"{self.name}: damaged: {group}/{ascii(name)[1:-1]} is {description}, expected one number per draw"
                )
        return self.group(group)

    @property
    def declarations(self) -> dict[str, dict[str, Any]]:
        """Properties that the sampler declares for its statistics, by name of the statistic.

        The properties are the fields of `Statistic`, with `long_name` instead of `label`. The limit and its label are
        left out if the final inspection computed the diagnostic that replaces the limit (`limit_unless`).
        """
        inspected = json.loads(self.attributes.get("inspected", "{}"))
        declarations = json.loads(self.attributes.get("statistics", "{}"))
        return {
            name: {
                field: value
                for field, value in declaration.items()
                if field not in ("limit", "limit_label") or declaration.get("limit_unless") not in inspected
            }
            for name, declaration in declarations.items()
        }

    @property
    def averaged(self) -> list[str]:
        """Names of the statistics that the sampler summarises by their mean over the run."""
        return [name for name, declaration in self.declarations.items() if declaration["reduce"] == "mean"]

    @property
    def weights(self) -> Float[np.ndarray, " draw"] | None:
        """Weights of the draws of all chains in predictions, with the sum 1; None if all weights are equal."""
        if self.draw_weights is not None or self.chain_weights is None:
            return self.draw_weights
        return np.repeat(self.chain_weights / self.shape[1], self.shape[1])

    @functools.cached_property
    def chain_weights(self) -> Float[np.ndarray, " chain"] | None:
        """Weights of the chains, computed by stacking; None if the chains have equal weights.

        Raises:
            DamagedError: if there is not one weight for each chain, if one is negative, or if their sum is not 1.
        """
        weights = np.array(json.loads(self.attributes.get("chain_weights", "[]")), np.float64)
        if not weights.size:
            return None
        if weights.shape != self.shape[:1] or not (weights >= 0).all() or abs(weights.sum() - 1) > 1e-3:
            raise DamagedError(
                f"{self.name}: damaged: the attribute chain_weights must have one weight >= 0 per chain, with the sum 1"
            )
        return weights / weights.sum()

    @functools.cached_property
    def draw_weights(self) -> Float[np.ndarray, " draw"] | None:
        """Weights that the sampler gave to its draws, with the sum 1; None if the sampler does not weight draws.

        Raises:
            DamagedError: if a log weight is NaN or +infinity, or if all are -infinity.
        """
        if "log_weight" not in self.statistics:
            return None
        logs = self.statistics["log_weight"]
        # If a log weight is NaN, the maximum is NaN, and both comparisons are false.
        if not -np.inf < logs.max() < np.inf:
            raise DamagedError(
                f"{self.name}: damaged: sample_stats/log_weight contains invalid log weights (NaN, infinity, or only "
                "-infinity)"
            )
        return special.softmax(logs.astype(np.float64).reshape(-1))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Problems that the sampler itself reported for the run."""
        return from_json(self.attributes.get("findings", "[]"))

    def array(self, group: str, name: str) -> Shaped[np.ndarray, "..."]:
        """Read one variable of a group.

        Inputs and targets must be finite, but a bound of a censored target may be infinite. Draws and statistics are
        not checked here.

        Raises:
            DamagedError: if an input or target is not finite, or if the variable cannot be read; the message names the
                file.
        """
        values = self._read(self.tree[f"{group}/{name}"], name)
        if (group, name) == (schema.OBSERVED_DATA, "y"):
            values = schema.targets_of(values)
        is_censored = name in ("y", "y_test") and values.ndim == 3
        is_valid = are_bounds(values) if is_censored else np.isfinite(values).all()
        if group in (schema.CONSTANT_DATA, schema.OBSERVED_DATA) and not is_valid:
            raise DamagedError(f"{self.name}: damaged: {group}/{name} contains numbers that are not finite")
        return values

    def _read(self, variable: Any, name: str) -> np.ndarray:
        try:
            return np.asarray(variable.values)
        except OSError as error:  # the checksum of HDF5 does not match: the file was changed after it was written
            raise DamagedError(f"{self.name}: damaged: {name} was changed after it was written") from error

    @property
    def has_training_rows(self) -> bool:
        """Whether the file has training rows at which the model can be evaluated.

        The value is false for a run that keeps predictions, for a federated run, and for a run on a large data file.
        It is true for a damaged file without `constant_data`, so that reading the rows raises an error.
        """
        constant = self.tree.children.get("constant_data")
        return not self.keeps_predictions and (constant is None or "x" not in constant or constant["x"].shape[0] > 0)

    @property
    def has_training_targets(self) -> bool:
        """Whether the file has the targets of training rows; a run that keeps predictions may also have them."""
        return len(self.group(schema.OBSERVED_DATA).get("y", ())) > 0

    @functools.cached_property
    def keeps_predictions(self) -> bool:
        """Whether the file stores predictions at given inputs, and not the parameters of the network."""
        return self.names_a_model and self._recipe.keep == "predictions"

    def require_training_rows(self, operation: str) -> None:
        """Check that the file has training rows, which `operation` needs.

        Raises:
            UsageError: if the file has no training rows.
        """
        if not len(self.array("constant_data", "x")):
            raise UsageError(f"{operation} needs the training rows, but the file of this run does not contain them")

    def training_rows(self, max_rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of all training rows, or of at most `max_rows` evenly spaced training rows."""
        x, y = self.array("constant_data", "x"), self.array("observed_data", "y")
        rows = slice(None) if max_rows is None else evenly(len(x), max_rows)
        return x[rows], y[rows]

    @property
    def has_test_rows(self) -> bool:
        """Whether the run has held-out rows."""
        return "constant_data" in self.tree.children and "x_test" in self.tree["constant_data"]

    def test_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of the held-out rows.

        Raises:
            UsageError: if the run has no held-out rows.
        """
        if not self.has_test_rows:
            remedy = "sample again with a larger [[test_fraction]], or give other rows to evaluate with [[data]]"
            if not self.names_a_model:
                remedy = "a posterior made in Python has only training rows; give other rows: run.evaluate((x, y))"
            raise UsageError(f"{self.name}: has no test rows; {remedy}")
        return self.array("constant_data", "x_test"), self.array("constant_data", "y_test")

    def probes(self, count: int) -> np.ndarray:
        """Return the first `count` inputs of the kept predictions, else of the test rows, else of the training rows."""
        name = schema.KEPT_ROWS if self.keeps_predictions else "x_test" if self.has_test_rows else "x"
        return self.array("constant_data", name)[:count]

    def kept_numbers(self, x: Shaped[np.ndarray, "row ..."]) -> Int[np.ndarray, " row"]:
        """Return the position of each input `x` among the inputs at which the run kept predictions.

        Two inputs are the same if their bytes are equal.

        Raises:
            UsageError: if the run kept no predictions at one of the inputs.
        """
        numbers = [self._kept_numbers.get(np.ascontiguousarray(row).tobytes(), -1) for row in x]
        if -1 in numbers:
            count = len(self.array(schema.CONSTANT_DATA, schema.KEPT_ROWS))
            raise UsageError(
                f"{self.name}: the run keeps no parameters, only predictions at {count} inputs, and row "
                f"{numbers.index(-1) + 1} is not one of these inputs; sample again with the new inputs as [[keep_at]], "
                "or with [[keep=draws]]"
            )
        return np.array(numbers, np.int32)

    @functools.cached_property
    def _kept_numbers(self) -> dict[bytes, int]:
        rows = self.array(schema.CONSTANT_DATA, schema.KEPT_ROWS)
        return {np.ascontiguousarray(row).tobytes(): number for number, row in enumerate(rows)}

    def kept_draws(self, numbers: int) -> Int[np.ndarray, " kept_draws"]:
        """Return the indices of every k-th draw of a chain.

        The stride k is the smallest one for which an array with `numbers` floats per draw has about 32 MB or less.
        """
        chains, count = self.shape
        return np.arange(0, count, -(-count * 4 * chains * numbers // _GROUP_BYTES))


def evenly(count: int, max_count: int) -> Int[np.ndarray, " some"]:
    """Return at most `max_count` of the integers 0 to `count` - 1, evenly spaced from the first to the last."""
    return np.linspace(0, count - 1, min(count, max_count)).round().astype(int)
