"""The coordinator: a run of the penalty sampler over the rows of parties, without access to the rows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from bnnzoo.api import entrances, keywords
from bnnzoo.api.run import Run
from bnnzoo.assembly import Problem
from bnnzoo.data import Scaler, Signature, load_like
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.posterior.backend import arithmetic, keep_programs
from bnnzoo.progress import Observer, Progress
from bnnzoo.recipe import RUN_FIELDS, Part, Recipe, as_dict, fields_of, to_yaml
from bnnzoo.samplers import Penalty
from bnnzoo.sampling.keys import Keys
from bnnzoo_federated import checks
from bnnzoo_federated.asking import PartyQuestions
from bnnzoo_federated.chains import Chains, Positions
from bnnzoo_federated.lines import DaskLine, Line, LocalLine
from bnnzoo_federated.messages import Agreement, Request, Terms, Words, digest_run
from bnnzoo_federated.party import Party
from bnnzoo_federated.recording import Recording
from bnnzoo_federated.scaling import empty_dataset, fit_scaler
from bnnzoo_federated.strata import Stratum

_RESTARTS = 10
_OPTIONS = frozenset(
    ("chains", "warmup", "draws", "thin", "seed", "likelihood", "prior", "standardise", "likelihood_power")
)
"""Settings of the recipe that are keywords of `Coordinator.sample`."""
_FIELDS = ("step_size", "correction", "target_acceptance", "target_sigma2")
"""Fields of the penalty sampler that the chains of a coordinator use."""
_FIXED: dict[str, Any] = {
    **dict.fromkeys(("batch_size", "num_batches", "sampling"), "auto"),
    **{"proposal": "random-walk", "control_variate": "none", "variance": "pooled"},
}
"""Fields of the penalty sampler that can have only these values."""

Answer = TypeVar("Answer")


class Coordinator:
    """A client that asks parties for sums over batches of their rows, and runs chains with these sums."""

    def __init__(self, parties: Mapping[str, Party | Line | str], *, patience: float = 30.0, limit: float = 600.0):
        """Store the parties; no party is asked yet.

        Args:
            parties: for each name, a party in this process, a connection (line) to a party, or the address of a party.
            patience: seconds after which an answer is late, and the question is repeated.
            limit: seconds after which the run ends with an error if a party has not answered.
        """
        self._asking = PartyQuestions(
            {name: _line(party) for name, party in parties.items()}, patience=patience, limit=limit
        )

    def sample(
        self,
        model: Any,
        sampler: str | Mapping[str, Any] = "penalty",
        *,
        out: str | Path,
        test: Any = None,
        starts: Float[Any, "chain dim"] | None = None,
        force: bool = False,
        observer: Observer | None = None,
        **options: Any,
    ) -> Run:
        """Run chains over the rows of the parties, and return the run. The run's file contains no training rows.

        Args:
            model: the name of a model, or a mapping with the name and the fields of the model.
            sampler: `penalty`, with the fields `step_size`, `correction`, `target_acceptance` and `target_sigma2`; all
                other fields are refused. Each party sets its own batch size, and the proposal is a random walk.
            out: the NetCDF file of the run.
            test: test rows for evaluation and convergence diagnostics, in any form of `--data` of `bnnzoo sample`. No
                party may use these rows for training.
            starts: initial positions [chain, dim]; draws from the prior by default.
            force: whether to overwrite `out`.
            observer: function that receives the progress.
            options: `chains`, `warmup`, `draws`, `thin`, `seed`, `likelihood`, `prior`, `standardise`,
                `likelihood_power`, as in `bnnzoo.sample`; all other keywords are refused.

        Raises:
            UsageError: if an argument is invalid, if the rows of two parties have different columns, or if a private
                party allows too few releases.
            BnnzooError: if a party refuses to answer or does not answer in time; the draws so far are then in `out`.
        """
        keep_programs()
        _refuse({name: name not in _OPTIONS and options[name] is not None for name in options if name in RUN_FIELDS})
        words = {**options, "init": "prior"}
        if isinstance(sampler, Mapping):
            sampler = {"name": "penalty", **sampler}
        recipe = keywords.recipe_of(model, sampler, data=None, in_memory=True, **words)
        _check(recipe)
        # If no numbers of steps are given, a run has a time budget; a federated run uses the default numbers instead.
        recipe = dataclasses.replace(
            recipe, sampler=_random_walk(recipe.sampler), test_fraction=0.0, budget=None, until=None
        )
        self._asking.reset()
        with arithmetic("float32"):
            problem, agreements = self._agree(recipe, test, starts)
            self._run(problem, agreements, Path(out), starts, force, observer or (lambda _: None))
        return entrances.open(out)

    def _agree(self, recipe: Recipe, test: Any, starts: Any = None) -> tuple[Problem, dict[str, Agreement]]:
        """Agree with all parties on the model, the scaling, each party's terms and the initial positions.

        Raises:
            UsageError: if two parties have different columns, or if a private party allows fewer releases than needed.
        """
        offers = self._asking.all(
            "offer", {name: {} for name in self._asking.lines}, lambda _, answer: checks.check_offer(answer)
        )
        first_party, *others = offers
        text = offers[first_party]["signature"]
        for name in others:
            if offers[name]["signature"] != text:
                raise UsageError(
                    f"parties {first_party} and {name}: have different columns (got {text} and "
                    f"{offers[name]['signature']}); the rows of all parties must have the same columns"
                )
        signature = Signature.from_json(text)
        recipe = dataclasses.replace(recipe, task=signature.task)
        problem = _without_rows(recipe, signature, Scaler.fit(empty_dataset(signature), False))
        description = problem.require_description()
        scaler = fit_scaler(
            list(offers.values()),
            signature,
            standardise=recipe.standardise,
            scales_targets=description.parts.likelihood.scales_targets,
        )
        problem = dataclasses.replace(
            _without_rows(recipe, signature, scaler), test=None if test is None else load_like(test, signature)
        )
        scaling = {field.name: getattr(scaler, field.name).tolist() for field in dataclasses.fields(scaler)}
        recipe_text = to_yaml(problem.resolved_recipe())
        terms = {name: Terms.from_message(offer) for name, offer in offers.items()}
        run = digest_run(terms.values(), starts)
        agreements = {
            name: Agreement(recipe_text, text, scaling, party_terms, run) for name, party_terms in terms.items()
        }
        _check_releases(recipe, self._send_agreements(agreements))
        return problem, agreements

    def _send_agreements(self, agreements: Mapping[str, Agreement]) -> dict[str, int]:
        """Send each party its agreement, and return the number of releases that each private party allows."""
        messages = {name: agreement._asdict() for name, agreement in agreements.items()}
        releases = self._asking.all(
            "agree", messages, lambda name, answer: checks.check_agreement(answer, agreements[name])
        )
        return {name: number for name, number in releases.items() if number is not None}

    def _run(
        self,
        problem: Problem,
        agreements: Mapping[str, Agreement],
        out: Path,
        starts: Any,
        force: bool,
        tell: Observer,
    ) -> None:
        recipe, sampler, keys = problem.recipe, problem.sampler, Keys.from_seed(problem.recipe.seed)
        assert isinstance(sampler, Penalty)
        if starts is None:
            starts = problem.initial_positions(trained=False, key=keys.positions)
        expected_shape = (recipe.chains, problem.posterior.layout.dim)
        if np.shape(starts) != expected_shape:
            raise UsageError(f"starts: must have shape {list(expected_shape)} (got {list(np.shape(starts))})")

        strata = [Stratum.of(agreement.terms) for agreement in agreements.values()]
        ask = partial(self._sums, agreements)
        chains = Chains(problem.posterior, sampler, strata, ask, starts, keys)
        with Recording(problem, agreements, out, force=force) as recording:
            start_time = time.perf_counter()
            chains.warm_up(
                recipe.warmup,
                lambda done, rate: tell(Progress("warmup", done, recipe.warmup, acceptance=rate)),
            )
            recording.end_warmup(chains, time.perf_counter() - start_time)
            for draw in range(recipe.draws):
                first = recipe.warmup + draw * recipe.thin
                stats = [chains.step(first + i) for i in range(recipe.thin)]
                recording.add(chains.positions, stats)
                tell(Progress("sampling", draw + 1, recipe.draws))
            recording.finish(self._asking.again, self._clipped(agreements, recipe.warmup))

    def _sums(
        self,
        agreements: Mapping[str, Agreement],
        step: int,
        key: tuple[int, int],
        here: Positions,
        there: Positions,
    ) -> Float[np.ndarray, "party chain power"]:
        """Return each party's sums for a step, over the changes of its log-likelihoods from `here` to `there`."""

        def read(name: str, answer: Words) -> Float[np.ndarray, "chain power"] | None:
            return checks.check_sums(answer, agreements[name], len(here))

        requests = {
            name: Request(agreement.name, step, key, here, there).words() for name, agreement in agreements.items()
        }
        return np.array(list(self._ask_agreed("sums", requests, agreements, read).values()))

    def _clipped(self, agreements: Mapping[str, Agreement], first_step: int) -> dict[str, float]:
        """Return the fraction of clipped differences since `first_step`, with noise, for each private party."""

        def read(name: str, answer: Words) -> float | None:
            return checks.check_clipped(answer, agreements[name])

        questions = {
            name: {"agreement": agreement.name, "first": first_step}
            for name, agreement in agreements.items()
            if agreement.terms.is_private
        }
        return self._ask_agreed("clipped", questions, agreements, read)

    def _ask_agreed(
        self,
        question: str,
        messages: Mapping[str, Words],
        agreements: Mapping[str, Agreement],
        read: Callable[[str, Words], Answer | None],
    ) -> dict[str, Answer]:
        """Ask a question about an agreement. A restarted party receives the agreement again, up to `_RESTARTS` times.

        Args:
            question: the name of the question.
            messages: arguments of the question for each party.
            agreements: the agreements of all parties.
            read: function that converts a party's name and reply to the answer, or to None if the party does not know
                the agreement.

        Raises:
            BnnzooError: if a party restarts too often, refuses, sends an invalid answer, or does not answer in time.
        """
        answers: dict[str, Answer] = {}
        for _ in range(_RESTARTS):
            unanswered = {name: message for name, message in messages.items() if name not in answers}
            replies = self._asking.all(question, unanswered, read)
            answers |= {name: reply for name, reply in replies.items() if reply is not None}
            unknown_to = [name for name, reply in replies.items() if reply is None]
            if not unknown_to:
                return {name: answers[name] for name in messages}
            self._send_agreements({name: agreements[name] for name in unknown_to})
        raise BnnzooError(
            f"party {unknown_to[0]}: restarted {_RESTARTS} times in one step; remove the cause of the restarts, then "
            "start the run again"
        )


def _line(party: Party | Line | str) -> Line:
    if isinstance(party, str):
        return DaskLine(party)
    return LocalLine(party) if isinstance(party, Party) else party


def _check(recipe: Recipe) -> None:
    """Raise `UsageError` if a shipped recipe sets an option that a coordinator without rows does not support."""
    _refuse(
        {
            "stochastic": recipe.stochastic != "all",
            "keep_warmup": recipe.keep_warmup,
            "keep": recipe.keep != "draws",
            "prior_from": recipe.prior_from is not None,
            "precision": recipe.precision != "float32",
        }
    )


def _refuse(is_refused_by_name: Mapping[str, bool]) -> None:
    """Raise `UsageError` with the names of the options that are refused, if there are any."""
    if refused_names := [name for name, is_refused in is_refused_by_name.items() if is_refused]:
        raise UsageError(f"{', '.join(refused_names)}: not supported for federated data; remove it")


def _check_releases(recipe: Recipe, releases: Mapping[str, int]) -> None:
    """Check that every private party allows the number of releases that a run needs.

    Each step needs one release for each chain. The fraction of clipped differences at the end needs one more.

    Raises:
        UsageError: if a party allows fewer releases.
    """
    needed = recipe.chains * (recipe.warmup + recipe.draws * recipe.thin) + 1
    for name, allowed in releases.items():
        if allowed < needed:
            raise UsageError(
                f"party {name}: its differential privacy allows {allowed} releases, and this run needs {needed} "
                "(chains x (warmup + draws x thin) + 1); use smaller [[chains]], [[warmup]], [[draws]] or [[thin]], or "
                "ask the party for a larger epsilon"
            )


def _random_walk(sampler: Part) -> Part:
    """Return the penalty sampler for a random walk, with `auto` for the fields that the parties determine.

    Raises:
        UsageError: if `sampler` is another sampler, or if a field has a value that the chains cannot use.
    """
    if sampler.name != "penalty":
        raise UsageError(f"sampler {sampler.name}: requires more than sums over rows; use the sampler penalty")
    only_values = {field.name: field.default for field in fields_of(Penalty) if field.name not in _FIELDS} | _FIXED
    if refused := [name for name, value in sampler.fields.items() if only_values.get(name, value) != value]:
        raise UsageError(
            f"sampler.{', sampler.'.join(refused)}: each party sets its own batch size, and the proposal is a random "
            f"walk with the covariance of all chains; set only the fields {', '.join(_FIELDS)}"
        )
    return dataclasses.replace(sampler, fields={**sampler.fields, **_FIXED})


def _without_rows(recipe: Recipe, signature: Signature, scaler: Scaler) -> Problem:
    scaling: Words = {field.name: getattr(scaler, field.name) for field in dataclasses.fields(scaler)}
    attributes = {"recipe": to_yaml(as_dict(recipe)), "signature": signature.to_json()}
    return Problem.restored(attributes, scaling)
