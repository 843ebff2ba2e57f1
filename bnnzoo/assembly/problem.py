"""Construction of a problem (posterior and sampler) from a recipe, from a run's file, or from Python objects."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from bnnzoo.assembly import row_source
from bnnzoo.assembly.by_hand import predicted_site
from bnnzoo.assembly.description import Description
from bnnzoo.assembly.network_posterior import build_posterior
from bnnzoo.assembly.positions import positions_of_chains
from bnnzoo.assembly.recipe_parts import (
    check_columns,
    check_init,
    check_targets,
    likelihood_task,
    make_parts,
    with_default_name,
)
from bnnzoo.data import Dataset, Scaler, Signature, load_inputs, load_recipe_data, split
from bnnzoo.data.encoding.targets import TAKEN_AS_NUMBERS
from bnnzoo.errors import DamagedError, NotFoundError, UsageError
from bnnzoo.files import mapped
from bnnzoo.models import AbstractModel, own
from bnnzoo.plugins import registry
from bnnzoo.posterior import AbstractPosterior, NetworkPosterior
from bnnzoo.posterior.censored import uncensored
from bnnzoo.posterior.layout import named_leaves
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.posterior.moments import Moments
from bnnzoo.posterior.outputs import Outputs
from bnnzoo.posterior.priors import AbstractPrior
from bnnzoo.recipe import Part, Recipe, as_dict, part_from_object, recipe_from
from bnnzoo.samplers import AbstractSampler
from bnnzoo.store.schema import KEPT_ROWS, ROW_SOURCE, ROWS_IN_FILES, fixed_leaves, prior_moments, targets_of


@dataclasses.dataclass(frozen=True)
class Problem:
    """A posterior and a sampler, with their recipe and data. A posterior made in Python has no `description`."""

    recipe: Recipe
    posterior: AbstractPosterior
    sampler: AbstractSampler
    description: Description | None = None
    train: Dataset | None = None
    """The training rows in original units.

    None if the posterior was built without data, or if it was made in Python and cannot predict.
    """
    test: Dataset | None = None
    kept_rows: Shaped[np.ndarray, "row ..."] | None = None
    """The inputs, in original units, at which predictions are stored; None if draws of the parameters are stored."""
    outputs: Outputs | None = None
    """The function from parameters to the stored predictions; None if draws of the parameters are stored."""

    @property
    def num_kept(self) -> int:
        """The number of values that are stored per draw."""
        return (self.posterior if self.outputs is None else self.outputs).layout.dim

    @property
    def has_mapped_rows(self) -> bool:
        """Whether the training rows are in temporary files."""
        return self.train is not None and mapped.is_mapped(self.train.x)

    @classmethod
    def from_recipe(
        cls,
        recipe: Recipe,
        dataset: Dataset | None = None,
        model: AbstractModel | None = None,
        *,
        scaler: Scaler | None = None,
    ) -> Problem:
        """Check the settings and the data of a recipe, and build its problem.

        For a recipe with `prior_from`, use `sequential.build_problem` instead, which also sets the prior.

        Args:
            recipe: the resolved recipe.
            dataset: data in memory; by default the data that the recipe names.
            model: an unregistered model; by default the model that the recipe names.
            scaler: the scaler of the rows; by default a scaler that is fitted to the training rows.

        Raises:
            UsageError: if the settings or the data are invalid. The message lists all invalid fields of the parts.
        """
        dataset = load_recipe_data(recipe) if dataset is None else dataset
        dataset = dataset.as_task(recipe.task or likelihood_task(recipe))
        parts = make_parts(recipe, dataset.signature, model)
        check_columns(parts.likelihood, dataset.signature)
        if recipe.likelihood is not None and recipe.likelihood.name:
            dataset = dataclasses.replace(dataset, notes=tuple(n for n in dataset.notes if TAKEN_AS_NUMBERS not in n))
        for rows in filter(None, (dataset, dataset.test)):  # before the split: messages count the rows of the file
            check_targets(parts.likelihood, rows)
        train, test = split(dataset, test_fraction=recipe.test_fraction, seed=recipe.split_seed)
        scaler = scaler or _fit_scaler(train, parts.likelihood, standardise=recipe.standardise)
        kept_rows = _kept_rows(recipe, train.signature, test)
        problem = _build_problem(recipe, Description(parts, train.signature, scaler), train, test, kept_rows=kept_rows)
        parts.sampler.check(problem.posterior)
        check_init(recipe, parts.model)
        return problem

    @classmethod
    def restored(
        cls,
        attributes: Mapping[str, Any],
        constant: Mapping[str, np.ndarray],
        observed: Mapping[str, np.ndarray] | None = None,
        model: AbstractModel | None = None,
    ) -> Problem:
        """Rebuild the problem of a run from the contents of its file.

        Args:
            attributes: the root attributes of the file.
            constant: the variables of the group constant_data.
            observed: the variables of the group observed_data, from which the training rows are restored; None for a
                posterior without data, which can only predict.
            model: the model, if it is not registered.

        Raises:
            UsageError: if the posterior was made in Python, if the data file changed, or if a part cannot be used.
            DamagedError: if the file is damaged.
        """
        if "signature" not in attributes:
            raise UsageError(
                "the posterior of this run was made in Python, so the file has draws but no model; open the file "
                "in Python with bnnzoo.open(path, model=posterior), where posterior is the posterior that was sampled"
            )
        recipe = recipe_from(str(attributes["recipe"]))
        refers_to_rows = observed is not None and ROW_SOURCE in attributes
        train = row_source.referenced_rows(attributes, recipe) if refers_to_rows else None
        try:
            signature = Signature.from_json(str(attributes["signature"]))
            scaler = Scaler(*(np.asarray(constant[name]) for name in ("x_mean", "x_sd", "y_mean", "y_sd")))
            scaler.check(signature)
            kept_rows = None
            if observed is not None and not refers_to_rows:
                x = signature.inputs(constant["x"])
                if not len(x):
                    raise ValueError("there are no rows")
                y = signature.targets(targets_of(observed["y"]), len(x))
                if ROWS_IN_FILES in attributes:
                    x, y = mapped.store(x), mapped.store(y)
                train = Dataset.from_signature(signature, x, y, "file")
            if recipe.keep == "predictions":
                kept_rows = signature.inputs(constant[KEPT_ROWS])
                if not len(kept_rows):
                    raise ValueError("there are no inputs at which predictions are kept")
        except (LookupError, TypeError, ValueError) as error:
            reason = ascii(" ".join(str(error).split())[:200])[1:-1]
            raise DamagedError(
                f"the description of the data cannot be read ({type(error).__name__}: {reason}); the file is "
                "damaged, or another version of bnnzoo wrote it"
            ) from error
        try:
            parts = make_parts(recipe, signature, model)
        except NotFoundError as error:
            raise registry.with_packages(error, str(attributes.get("plugins", ""))) from error
        if recipe.prior_from is not None:
            parts = parts._replace(prior=_restored_moments(constant, parts.likelihood))
        description = Description(parts, signature, scaler)
        fixed = fixed_leaves(constant)
        problem = _build_problem(recipe, description, train, fixed=fixed, kept_rows=kept_rows)
        if observed is None and fixed.keys() != named_leaves(problem.network_posterior.network).keys():
            raise DamagedError(
                "the file is damaged: the fixed parameters (trained, not sampled) do not match the recipe"
            )
        if train is None and problem.outputs is not None:
            return dataclasses.replace(problem, posterior=problem.outputs.table())
        return problem

    @classmethod
    def by_hand(cls, recipe: Recipe, posterior: AbstractPosterior, sampler: AbstractSampler) -> Problem:
        """Build the problem of a posterior that was made in Python.

        The model, likelihood, prior and data of the recipe are not used. The problem has training rows if the
        posterior can predict.

        Raises:
            UsageError: if the sampler does not support the posterior.
        """
        sampler.check(posterior)
        train = None
        with contextlib.suppress(UsageError):  # the error is raised again when predictions are requested
            train = predicted_site(posterior)[1]
        return cls(recipe, posterior, sampler, train=train)

    def with_fixed(self, fixed: Mapping[str, Array | np.ndarray]) -> Problem:
        """Return the problem with the values `fixed` of the parameters that are trained but not sampled, by name."""
        return _build_problem(self.recipe, self.require_description(), self.train, self.test, fixed, self.kept_rows)

    def in_bucket(self) -> Problem:
        """Return the problem with padding up to a round number of rows, see `NetworkPosterior.in_bucket`.

        Nothing is padded if rows are in files, if the sampler is not `density_only`, or if `stochastic` is not "all".
        """
        is_padded = self.sampler.density_only and self.recipe.stochastic == "all" and not self.has_mapped_rows
        if self.description is None or not is_padded:
            return self
        return dataclasses.replace(self, posterior=self.network_posterior.in_bucket())

    def with_lengths(self, recipe: Recipe, sampler: AbstractSampler) -> Problem:
        """Return the problem with a new recipe and a new sampler. Only the numbers of steps may differ from before."""
        description = self.description
        if description is not None:
            description = description._replace(parts=description.parts._replace(sampler=sampler))
        return dataclasses.replace(self, recipe=recipe, sampler=sampler, description=description)

    def with_part(self, kind: Literal["model", "likelihood"], part: Part) -> Problem:
        """Return the problem with another model, or with another likelihood that has the same `scales_targets`.

        Raises:
            UsageError: if the sampler or another part does not support the part.
        """
        description = self.require_description()
        changes: Any = {kind: part}
        recipe = dataclasses.replace(self.recipe, **changes)
        own_model = description.parts.model if recipe.model.name.startswith(own.PREFIX) else None
        parts = make_parts(recipe, description.signature, own_model)._replace(prior=description.parts.prior)
        description = description._replace(parts=parts)
        problem = _build_problem(recipe, description, self.train, self.test, kept_rows=self.kept_rows)
        parts.sampler.check(problem.posterior)
        return problem

    def with_prior(self, prior: AbstractPrior) -> Problem:
        """Return the problem with the given prior, which need not be registered."""
        description = self.require_description()
        description = description._replace(parts=description.parts._replace(prior=prior))
        return _build_problem(self.recipe, description, self.train, self.test, kept_rows=self.kept_rows)

    def with_all_sampled(self, chains: int = 1) -> Problem:
        """Return a problem with `chains` chains that samples all parameters; used to train the fixed parameters."""
        recipe = dataclasses.replace(self.recipe, stochastic="all", other_directions="fixed", chains=chains)
        return _build_problem(recipe, self.require_description(), self.train)

    def require_description(self) -> Description:
        """Return the description of the model and of the data.

        Raises:
            UsageError: if the posterior was made in Python.
        """
        if self.description is None:
            raise UsageError("the posterior was made in Python, so it has no model; use bnnzoo.sample(MODEL, SAMPLER)")
        return self.description

    @property
    def network_posterior(self) -> NetworkPosterior:
        """The posterior as a `NetworkPosterior`. The problem must have a description."""
        assert isinstance(self.posterior, NetworkPosterior)
        return self.posterior

    def initial_positions(self, *, trained: bool, key: PRNGKeyArray) -> Float[Array, "chain dim"]:
        """Return the position of each chain before training or warm-up.

        If `trained` is true, the position is a newly initialised network, or a point near the mode if a subspace is
        sampled. If `trained` is false, the position is a draw from the prior. There are two exceptions. With `init`
        "given", the position is the user's network, unless a subspace is sampled. For a posterior made in Python, the
        method `start` of the posterior returns the position.
        """
        description, chains = self.description, self.recipe.chains
        if self.recipe.init == "given" and description is not None and self.posterior.centre() is None:
            theta = self.network_posterior.position(cast(own.Own, description.parts.model).network)
            return jnp.broadcast_to(theta, (chains, len(theta)))
        architecture = description.architecture if trained and description is not None else None
        return positions_of_chains(self.posterior, architecture, key, jnp.arange(chains, dtype=jnp.uint32))

    def resolved_recipe(self) -> dict[str, Any]:
        """Return the recipe with the values of all fields of all parts. With this recipe, the run can be repeated."""
        recipe, (parts, signature, _) = self.recipe, self.require_description()
        fields: dict[str, Part | None] = {
            "model": recipe.model,
            "sampler": _written_part("sampler", recipe.sampler.name, parts.sampler),
            "prior": None,
            "likelihood": None,
        }
        if recipe.prior_from is None:
            name = with_default_name(recipe.prior, "normal").name
            fields["prior"] = _written_part("prior", name, parts.prior)
        if not recipe.model.name.startswith(own.PREFIX):
            fields["model"] = _written_part("model", recipe.model.name, parts.model)
        if not parts.model.brings_likelihood:
            name = with_default_name(recipe.likelihood, type(parts.model).default_likelihood(signature.task)).name
            fields["likelihood"] = _written_part("likelihood", name, uncensored(parts.likelihood))
        resolved: Any = {**fields, "task": signature.task, "init": recipe.init or "map"}
        return as_dict(dataclasses.replace(recipe, **resolved))


def _written_part(kind: str, name: str, part: object) -> Part:
    return part_from_object(registry.full_name(f"{kind}s", name), part)


def _fit_scaler(train: Dataset, likelihood: AbstractLikelihood, *, standardise: bool) -> Scaler:
    """Return the scaler of the training rows. It changes the targets only if the likelihood has `scales_targets`."""
    scaler = Scaler.fit(train, standardise)
    if likelihood.scales_targets:
        return scaler
    targets = len(train.target_names)
    return dataclasses.replace(scaler, y_mean=np.zeros(targets, np.float32), y_sd=np.ones(targets, np.float32))


def _restored_moments(constant: Mapping[str, np.ndarray], likelihood: AbstractLikelihood) -> Moments:
    means, sds, factors = prior_moments(constant)
    size = sum(means[name].size for name in means.keys() - {f"likelihood_{p.name}" for p in likelihood.parameters()})
    if not means or means.keys() != sds.keys() or any(factor.shape != (size, size) for factor in factors.values()):
        raise DamagedError("the file is damaged: the moments of the prior are missing or inconsistent")
    return Moments(means, sds, factors.get(""))


def _build_problem(
    recipe: Recipe,
    description: Description,
    train: Dataset | None,
    test: Dataset | None = None,
    fixed: Mapping[str, Array | np.ndarray] | None = None,
    kept_rows: Shaped[np.ndarray, "row ..."] | None = None,
) -> Problem:
    posterior, outputs = build_posterior(recipe, description, train, fixed or {}), None
    if kept_rows is not None:
        full_posterior = build_posterior(recipe, description, None, fixed or {})
        outputs = Outputs.at_inputs(full_posterior, description.inputs(kept_rows, recipe.precision))
    return Problem(recipe, posterior, description.parts.sampler, description, train, test, kept_rows, outputs)


def _kept_rows(recipe: Recipe, signature: Signature, test: Dataset | None) -> np.ndarray | None:
    """Return the inputs at which predictions are stored, or None if draws of the parameters are stored."""
    if recipe.keep == "draws":
        if recipe.keep_at is not None:
            raise UsageError("[[keep_at]] requires [[keep=predictions]]; add it, or remove [[keep_at]]")
        return None
    if signature.task == "density":
        raise UsageError("[[keep=predictions]]: a density model has no predictions to keep; use [[keep=draws]]")
    parts = [] if test is None else [test.x]
    if recipe.keep_at is not None:
        parts.append(load_inputs(recipe.keep_at, signature, unseen=recipe.unseen))
    if not sum(map(len, parts)):
        raise UsageError(
            "[[keep=predictions]]: there are no inputs for predictions; add [[keep_at=FILE]], or use a "
            "[[test_fraction]] above 0"
        )
    return np.concatenate(parts)
