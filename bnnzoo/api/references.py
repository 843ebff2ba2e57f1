"""Reference posteriors: stored long runs that plugins offer, and the comparison of a run with one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bnnzoo.api import entrances
from bnnzoo.api.run import Run
from bnnzoo.errors import UsageError
from bnnzoo.evaluation.scores import reference_distances
from bnnzoo.evaluation.scores.reference_distances import ReferenceDistances
from bnnzoo.plugins import registry
from bnnzoo.plugins.entry_files import file_of, is_reference_name
from bnnzoo.recipe import as_dict, recipe_from

_SAME = (
    *("model", "likelihood", "prior", "standardise", "units", "likelihood_power", "stochastic"),
    *("other_directions", "exposure", "prior_from"),
)
"""Keys of the recipe that determine the posterior, in addition to the training rows."""
CONVERGED = "converged"
"""Value of the attribute `reference_status` of a reference that has converged."""


class Reference(NamedTuple):
    """A stored long run with which other runs are compared.

    Attributes:
        name: the registered name.
        run: the stored run. Its file has predictions at the inputs at which runs are compared.
    """

    name: str
    run: Run

    def remarks(self, distances: ReferenceDistances) -> tuple[str, ...]:
        """Return sentences: the distances between two halves of the chains, and any missing convergence."""
        floor = ", ".join(f"{name} {value:.2g}" for name, value in distances.floor.items())
        attributes = self.run.attributes
        halves = (
            f"two halves of the chains of the reference {self.name} differ by: {floor}; an exact run with very many "
            "draws differs from the reference by about half as much"
        )
        if attributes["reference_status"] == CONVERGED:
            return (halves,)
        rhat, ess = float(attributes["reference_rhat"]), float(attributes["reference_ess"])
        doubt = f"the reference {self.name} has not converged (R-hat {rhat:.3f}, ESS {ess:.0f})"
        return (halves, f"{doubt}; compare distances to this reference with the distances between its two halves")

    def distances(self, run: Run, name: str) -> ReferenceDistances:
        """Return the distances between the predictions of a run and of this reference.

        Args:
            run: a run that samples the same posterior as the reference.
            name: the name of the run in messages.

        Raises:
            UsageError: if the run has other training rows, another model, likelihood or prior, or other settings that
                change the posterior; the message states the first difference.
        """
        self._require_same_posterior(run, name)
        return reference_distances.compare(run.predictor, self.run.predictor)

    @property
    def _recipe(self) -> str:
        """Words for the recipe of the posterior: a registered name, or the command that shows the recipe."""
        recipe = f"reference-{self.name}"
        is_registered = recipe in registry.entries(registry.RECIPES)
        return f"the recipe {recipe}" if is_registered else f"the recipe that bnnzoo info reference {self.name} shows"

    def _require_same_posterior(self, run: Run, name: str) -> None:
        stored, run_attributes = self.run.attributes, run.attributes
        if "signature" not in run_attributes:
            raise UsageError(
                f"{name}: its posterior was made in Python, so the file has no recipe to compare with the reference "
                f"{self.name}; use {self._recipe}"
            )
        expected, actual = (_settings(attributes) for attributes in (stored, run_attributes))
        for key in _SAME:
            # A recipe lacks a likelihood that its model determines, and its prior if `prior_from` sets it.
            expected_value, value = expected.get(key), actual.get(key)
            if expected_value != value:
                raise UsageError(
                    f"{name}: its {key} differs from that of the reference {self.name}: expected "
                    f"{_words(expected_value)}, got {_words(value)}; use {self._recipe}"
                )
        if run_attributes.get("data_sha256") != stored["data_sha256"]:
            raise UsageError(
                f"{name}: its training rows differ from those of the reference {self.name} (got "
                f"{run_attributes.get('rows')} rows, expected {stored['rows']}); sample with "
                f"[[data={expected['data']}]]"
            )


def find_reference(text: Run | str | Path | None) -> Reference | None:
    """Return the reference with a registered name; None if the argument is a run, a path or None.

    Raises:
        NotFoundError: if the text has the form of a name, but no reference has this name.
        UsageError: if the file of the reference is missing.
    """
    if not isinstance(text, str) or not is_reference_name(text):
        return None
    entry = registry.find(registry.REFERENCES, text)
    return Reference(entry.name, entrances.open(file_of(entry)))


def _settings(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return as_dict(recipe_from(str(attributes["recipe"])))


def _words(part: Any) -> str:
    if not isinstance(part, Mapping):
        return "none" if part is None else str(part)
    fields = [f"{key} {value}" for key, value in part.items() if key != "name"]
    return f"{part.get('name', '')}" + (f" ({', '.join(fields)})" if fields else "")
