"""Generated cases: combinations of model, likelihood, task, format, start, sampler, prior, entrance and options.

`single_cases()` gives every value of every option at least once and is spread over forty commits. `everything()` gives
every combination of model, likelihood, task, format and start. `all_of(number)` makes a case of such a combination,
with the other options at random, so that different options occur together.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from bnnzoo.errors import UsageError
from bnnzoo.plugins import registry
from bnnzoo.recipe import RUN_FIELDS
from bnnzoo.sklearn import BayesianRegressor
from end_to_end import rules, tables, values

ENTRANCES = ("command line", "python", "estimator")
TASKS = ("regression", "classification", "density")
ESTIMATOR = set(inspect.signature(BayesianRegressor).parameters)
"""Options that estimators take."""
_MAX_OPTIONS = 5
"""Largest number of run options in a case of `single_cases()`, so that a failure shows which option causes it."""
_LEFT_OUT = 0.7
"""Probability that an option of a random case is left out."""


class Combination(NamedTuple):
    """A model with a likelihood for a task; None means the default likelihood."""

    model: str
    likelihood: str | None
    task: str
    images: bool

    @property
    def label(self) -> str:
        return "-".join(filter(None, [self.model, self.likelihood or "default", self.task]))


class Case(NamedTuple):
    """A case: the entrance, the combination, the format of the data, and the options."""

    combination: Combination
    kind: str
    entrance: str
    sampler: str
    prior: str | None
    options: Mapping[str, Any]
    """Options of the run by name, and of the parts as `sampler.step_size`."""

    @property
    def label(self) -> str:
        start = self.options.get("init") or "map"
        parts = [self.combination.label, self.sampler, self.kind.strip("."), start, self.entrance.replace(" ", "-")]
        return "+".join(parts)

    def used(self) -> Iterator[tuple[str, Any]]:
        """The documented options that the case sets, with their values."""
        yield from (("model", self.combination.model), ("sampler", self.sampler))
        if self.prior:
            yield "prior", self.prior
        if self.combination.likelihood:
            yield "likelihood", self.combination.likelihood
        for name, value in self.options.items():
            kind = name.partition(".")[0]
            yield values.labelled(kind, self.part(kind), name) if "." in name else name, value

    def part(self, kind: str) -> str:
        """The name of the part of that kind; empty for the default."""
        parts = {"model": self.combination.model, "likelihood": self.combination.likelihood}
        return {**parts, "sampler": self.sampler, "prior": self.prior}[kind] or ""


@functools.cache
def combinations() -> list[Combination]:
    """Return every model with every likelihood and task that its class allows."""
    results = []
    for model in registry.entries("models"):
        cls = registry.load("models", model)
        images = _needs_images(cls)
        for task in TASKS:
            try:
                cls.default_likelihood(task)
            except UsageError:
                continue
            results.append(Combination(model, None, task, images))
            if not cls.brings_likelihood:
                offered = {name: registry.load("likelihoods", name).task for name in registry.entries("likelihoods")}
                results += [Combination(model, name, task, images) for name, of in offered.items() if of == task]
    return results


def _needs_images(cls: Any) -> bool:
    try:
        cls().arrange(np.zeros((2, 3), np.float32))
    except UsageError:
        return True
    return False


class _Builder:
    """Selects the values of cases: at random with a generator, otherwise values that no earlier case has used."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng
        self.counts: Counter[tuple[str, str]] = Counter()

    def build(self, fixed: Mapping[str, Any]) -> Case | None:
        """Return a case with the values of `fixed`; None if no other values are compatible with them."""
        assigned = dict(fixed)
        if not self._fill(assigned, [pair for pair in dimensions().items() if pair[0] not in assigned]):
            return None
        case = _case(assigned)
        for kind in ("model", "likelihood", "sampler", "prior"):
            if name := case.part(kind):
                fields = [pair for pair in values.part_values(kind, name).items() if pair[0] not in assigned]
                if not self._fill(assigned, fields, f"{kind} {name}"):
                    return None
        case = _case(assigned)
        self.counts.update((name, str(value)) for name, value in case.used())
        self.counts.update([("combination", str(case.combination)), ("kind", case.kind), ("entrance", case.entrance)])
        return case

    def _fill(self, assigned: dict[str, Any], rest: list[tuple[str, list[Any]]], part: str = "") -> bool:
        """Assign a value to each remaining dimension; return False if none is compatible with the earlier values."""
        if not rest:
            return True
        name, offered = rest[0]
        for value in self._sorted(f"{part}.{name.partition('.')[2]}" if part else name, offered, assigned):
            assigned[name] = value
            if not rules.conflict(_case(assigned)) and self._fill(assigned, rest[1:], part):
                return True
            del assigned[name]
        return False

    def _sorted(self, name: str, offered: list[Any], assigned: Mapping[str, Any]) -> list[Any]:
        """Return the values in the order in which they are tried."""
        if self.rng is not None:
            values_ = list(offered)
            self.rng.shuffle(values_)
            return sorted(values_, key=lambda value: value is not None) if self.rng.random() < _LEFT_OUT else values_
        count = sum(value is not None for key, value in assigned.items() if key in RUN_FIELDS)
        full = count >= _MAX_OPTIONS and None in offered
        return sorted(offered, key=lambda v: (v is not None) if full else (self.counts[name, str(v)] + (v is None)))


@functools.cache
def dimensions() -> dict[str, list[Any]]:
    """Return the choices of a case besides the fields of its parts; None means that an option is left out."""
    kinds = list(dict.fromkeys(kind for images in (False, True) for kind in tables.formats("", images=images)))
    parts = {
        "sampler": list(registry.entries("samplers")),
        "combination": combinations(),
        "entrance": list(ENTRANCES),
        "kind": kinds,
        "prior": [None, *registry.entries("priors")],
    }
    return parts | {name: [None, *offered] for name, offered in values.run_values().items()}


def _case(assigned: Mapping[str, Any]) -> Case:
    """Return the case with these values, some of which may not be selected yet."""
    named = ("combination", "kind", "entrance", "sampler", "prior")
    options = {name: value for name, value in assigned.items() if name not in named and value is not None}
    return Case(*(assigned.get(name) for name in named), options)  # type: ignore[arg-type]


@functools.cache
def single_cases() -> list[Case]:
    """Return cases that contain every value of every option at least once, and every combination."""
    builder, cases = _Builder(), list[Case]()
    for sampler in registry.entries("samplers"):
        rows = max([1, *(len(offered) for offered in values.part_values("sampler", sampler).values())])
        for _ in range(rows):
            if case := builder.build({"sampler": sampler}):
                cases.append(case)
    for combination in combinations():
        if not builder.counts["combination", str(combination)] and (
            case := builder.build({"combination": combination})
        ):
            cases.append(case)
    for option, value in rules.WITH_EVERY_LIKELIHOOD.items():
        for combination in combinations():
            case = Case(combination, "frame", "python", "nuts", None, {option: value})
            is_new = not any(c.part("likelihood") == case.part("likelihood") and option in c.options for c in cases)
            if is_new and not rules.conflict(case):
                cases += filter(None, [builder.build({"combination": combination, option: value})])
    for name, value in missing(cases):
        if not builder.counts[name, str(value)] and (case := builder.build(_wanted(name, value))):
            cases.append(case)
    return cases


def missing(cases: list[Case]) -> list[tuple[str, Any]]:
    """Return documented options with the values that no case contains."""
    used = {(name, str(value)) for case in cases for name, value in case.used()}
    return [
        (name, value)
        for name, offered in values.documented().items()
        for value in offered
        if (name, str(value)) not in used
    ]


def _wanted(name: str, value: Any) -> dict[str, Any]:
    """Return the choices that give this documented option this value."""
    kind, _, field = name.partition(" ")
    part, _, bare = field.partition(".")
    if kind in ("sampler", "prior"):
        return {kind: part, f"{kind}.{bare}": value} if field else {kind: value}
    if kind in ("model", "likelihood"):
        index = ("model", "likelihood").index(kind)
        combination = next(c for c in combinations() if c[index] == (part or value))
        return {"combination": combination, **({f"{kind}.{bare}": value} if field else {})}
    return {name: value, **rules.NEEDS.get((name, value), {})}


def all_of(number: int) -> Case:
    """Return a case for one (model, likelihood, task, format, start), with its other options at random."""
    combination, kind, init = everything()[number]
    case = _Builder(random.Random(number)).build({"combination": combination, "kind": kind, "init": init})
    assert case is not None, f"no case of {combination}, {kind}, {init}"
    return case


@functools.cache
def everything() -> list[tuple[Combination, str, Any]]:
    """Return every combination with every format and start."""
    return [
        (combination, kind, init)
        for combination in combinations()
        for kind in tables.formats(combination.task, combination.likelihood, images=combination.images)
        for init in values.run_values()["init"]
    ]
