"""Combinations that the documentation excludes, each with its reason. The suite leaves out only these.

A likelihood, sampler or option that needs special data or another option gets a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bnnzoo.data.formats.delimited import DELIMITERS
from bnnzoo.plugins import registry
from bnnzoo.posterior.likelihoods import AbstractLikelihood
from end_to_end import tables

if TYPE_CHECKING:
    from end_to_end.cases import Case

Rule = Callable[["Case"], bool]
_COUNTS = ("poisson", "negative-binomial", "zero-inflated-poisson")
_OF_COLUMNS = ("target", "columns", "drop", "categories")


def _of_tables(case: Case) -> bool:
    options = [name for name in (*_OF_COLUMNS, "exposure") if name in case.options]
    options += [name for name in ("missing", "unseen") if case.options.get(name, "error") != "error"]
    return bool(options) and not tables.is_table(case.kind)


def _unlike_density(case: Case) -> bool:
    """Whether an option names a column that rows of a density do not have, or applies to inputs."""
    options = case.options
    return (
        any(name in options for name in ("target", "categories"))
        or any("colour" in name for option in ("columns", "drop", "missing_code") for name in options.get(option, ()))
        or options.get("missing") == "median"
        or options.get("unseen", "error") != "error"
    )


def _likelihood(case: Case) -> str:
    """Return the name of the likelihood, including the default one."""
    model, likelihood, task, _ = case.combination
    return likelihood or registry.load("models", model).default_likelihood(task)


def _has_rates(case: Case) -> bool:
    return registry.load("likelihoods", _likelihood(case)).with_exposure is not AbstractLikelihood.with_exposure


def _is_censorable(case: Case) -> bool:
    """Whether targets may be bounds: numeric targets that are not from a folder of images or a registered data set."""
    laws = ("gaussian", "student-t", "heteroscedastic", "mixture", "mixture-per-target", "poisson")
    in_place = case.kind in (tables.FOLDER, tables.REGISTERED)
    return case.combination.task == "regression" and _likelihood(case) in laws and not in_place


def _is_no_input(case: Case) -> bool:
    """Whether a column that is declared as a category is not an input."""
    columns = case.options.get("columns", case.options.get("categories", ()))
    dropped = case.options.get("drop", ())
    return any(name in dropped or name not in columns for name in case.options.get("categories", ()))


def _density(case: Case) -> bool:
    return case.combination.task == "density"


def _unlike_regression(case: Case) -> bool:
    """Whether the conditionals differ from those of a linear regression with a normal prior."""
    model, likelihood, task, _ = case.combination
    of_model = registry.load("models", model).brings_likelihood
    return (
        of_model
        or task != "regression"
        or likelihood not in (None, "gaussian")
        or case.prior not in (None, "normal")
        or case.options.get("censored", False)
    )


def _unbounded(case: Case) -> bool:
    """Whether the density of a target has no upper bound, or the given bound is not valid for it."""
    model, likelihood, task, _ = case.combination
    if task == "classification":
        return False
    with_scale = ("gaussian", "student-t")
    if registry.load("models", model).brings_likelihood or likelihood not in (*with_scale, *_COUNTS):
        return True
    is_learned = likelihood in with_scale and case.options.get("likelihood.scale", 0.5) == "learned"
    return is_learned or case.options.get("sampler.log_bound", "auto") != "auto"


def _unlike_gaussian(case: Case) -> bool:
    """Whether a posterior is not Gaussian, so that it may have heavier tails than a Gaussian fitted to it."""
    return case.combination.model != "linear" or _unlike_regression(case)


def _takes(case: Case) -> bool:
    """Whether the estimator supports the options, and data of that format and task."""
    from end_to_end.cases import ESTIMATOR

    names = {name for name in case.options if "." not in name and name not in ("task", "test_fraction")}
    return (
        case.kind in ("arrays", "frame") and not _density(case) and not case.combination.images and names <= ESTIMATOR
    )


def _of_subspace(case: Case) -> bool:
    """Whether directions are sampled instead of parameters."""
    return case.options.get("stochastic") in ("identified", "linearised")


NEEDS: dict[tuple[str, Any], dict[str, Any]] = {
    ("until", "budget"): {"budget": "1s"},
    ("keep_at", "new rows"): {"keep": "predictions"},
    ("other_directions", "linearised"): {"stochastic": "identified"},
    ("missing_code", ("-999",)): {"missing": "median"},
    ("missing_code", ("-999", "colour=unknown")): {"missing": "drop"},
}
"""Further options that a value of an option requires."""

WITH_EVERY_LIKELIHOOD = {"censored": True, "exposure": "time"}
"""Values that are combined with every likelihood that supports them."""

RULES: dict[str, Rule] = {
    "that format is not one of the task": lambda c: (
        c.kind not in tables.formats(c.combination.task, c.combination.likelihood, images=c.combination.images)
    ),
    "a command line names data": lambda c: c.entrance == "command line" and c.kind in tables.IN_MEMORY,
    "an estimator takes arrays and frames, and fewer options": lambda c: c.entrance == "estimator" and not _takes(c),
    "columns, levels and missing cells are those of tables": _of_tables,
    "a target in a frame beside another frame has its own name": lambda c: c.kind == "frame" and "target" in c.options,
    "rows of a density are numbers, without inputs and targets": lambda c: _density(c) and _unlike_density(c),
    "a code stands for a cell that may be missing": lambda c: (
        "missing_code" in c.options and c.options.get("missing", "error") == "error"
    ),
    "an exposure is for counts": lambda c: "exposure" in c.options and not _has_rates(c),
    "censored targets are numbers with known probabilities of intervals": lambda c: (
        c.options.get("censored", False) and not _is_censorable(c)
    ),
    "separator, decimal mark, lines and encoding are those of text files": lambda c: (
        any(name in c.options for name in tables.Text._fields) and c.kind not in DELIMITERS
    ),
    "separator and decimal mark differ": lambda c: (
        c.options.get("decimal") == "," and c.options.get("separator") == "comma"
    ),
    "a category is an input": _is_no_input,
    "a column is left out or taken in": lambda c: "columns" in c.options and "drop" in c.options,
    "other directions are added to predictions from draws of a small network's subspace": lambda c: (
        c.options.get("other_directions") == "linearised"
        and (not _of_subspace(c) or c.options.get("keep") == "predictions" or c.combination.images)
    ),
    "predictions are kept of targets, and not by estimators": lambda c: (
        c.options.get("keep") == "predictions" and (_density(c) or c.entrance == "estimator")
    ),
    "keep-at requires": lambda c: "keep_at" in c.options and c.options.get("keep") != "predictions",
    "rows of a mesh are those of parallel chains": lambda c: (
        "mesh" in c.options and c.options.get("chain_method", "auto") not in ("auto", "parallel")
    ),
    "until budget needs a budget": lambda c: c.options.get("until") == "budget" and "budget" not in c.options,
    "conjugate conditionals are those of a linear regression": lambda c: (
        c.options.get("sampler.conditionals") == "conjugate" and _unlike_regression(c)
    ),
    "a Kronecker product is not of the Hessian": lambda c: (
        c.options.get("sampler.covariance") == "kronecker" and c.options.get("sampler.curvature") == "hessian"
    ),
    "laplace needs independent weights": lambda c: c.prior == "ard" and c.sampler == "laplace",
    "a prior with sampled scales has no mode": lambda c: c.prior == "hierarchical" and c.sampler == "laplace",
    # If the likelihood saturates and q is narrower than the prior, prior L / q is unbounded.
    "other posteriors have heavier tails than a fitted Gaussian": lambda c: (
        c.sampler == "rejection" and c.options.get("sampler.proposal", "prior") != "prior" and _unlike_gaussian(c)
    ),
    "rejection accepts no draw of a large network's prior for targets with small noise": lambda c: (
        c.sampler == "rejection" and c.combination.images and c.combination.likelihood in ("gaussian", "student-t")
    ),
    "rejection needs a bound": lambda c: c.sampler == "rejection" and _unbounded(c),
    "rejection and importance are for few data": lambda c: c.sampler in tables.FEW and c.kind == tables.REGISTERED,
    "a subspace needs a normal prior": lambda c: _of_subspace(c) and c.prior not in (None, "normal", "fan-in"),
    "dropout drops inputs of layers, not of a subspace": lambda c: _of_subspace(c) and c.sampler == "dropout",
    "dropout drops inputs of hidden units": lambda c: c.sampler == "dropout" and c.combination.model == "density",
}
"""The exclusions: a reason, and a function that tests whether a case is excluded."""


def conflict(case: Case) -> str:
    """Return why a case is not allowed, or an empty string. Values that are not selected yet cause no conflict."""
    if case.combination is None or case.kind is None or case.entrance is None:
        return ""
    return next((reason for reason, rule in RULES.items() if rule(case)), "")
