"""All settings of a run (`Recipe`), and their conversion to a dictionary and to YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Lt
from typing_extensions import Doc

from bnnzoo.recipe import yaml
from bnnzoo.recipe.fields import Field, unchecked_fields_of
from bnnzoo.recipe.parts import Part

PARTS = ("model", "sampler", "likelihood", "prior")


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. The parts (model, sampler, likelihood, prior) have raw fields, see `Part`."""

    model: Part
    sampler: Part
    likelihood: Part | None = None
    prior: Part | None = None

    data: Annotated[
        str | None, Doc("a registered data set, a file (.csv .tsv .parquet .pq .arrow .feather .npy .npz), or a folder")
    ] = None
    target: Annotated[tuple[str, ...], Doc("a target column; repeatable; default: the last column")] = ()
    task: Annotated[
        Literal["regression", "classification", "density"] | None, Doc("the task; by default determined by the data")
    ] = None
    columns: Annotated[
        tuple[str, ...], Doc("an input column; repeatable; default: all columns except the targets")
    ] = ()
    drop: Annotated[tuple[str, ...], Doc("a column to leave out; repeatable")] = ()
    categories: Annotated[
        tuple[str, ...], Doc("an input column whose cells are codes, not amounts; one input per level; repeatable")
    ] = ()
    missing: Annotated[
        Literal["error", "drop", "median"],
        Doc("missing cells: raise an error, leave out the row, or use the column's median"),
    ] = "error"
    unseen: Annotated[
        Literal["error", "zero"],
        Doc("text values that are not in the training rows: raise an error, or encode them with zeros"),
    ] = "error"
    exposure: Annotated[
        str | None,
        Doc("a column with the exposure of counts, such as the observation time; rates are multiplied by this column"),
    ] = None
    missing_code: Annotated[
        tuple[str, ...],
        Doc("a value that means a missing cell, such as -999, or NAME=VALUE for one column; repeatable"),
    ] = ()
    censored: Annotated[
        bool,
        Doc(
            "read targets such as <0.5, >100, 1..2 and [1,2] as intervals; the likelihood of such a target is the "
            "probability of the interval"
        ),
    ] = False
    separator: Annotated[
        str | None,
        Doc("separator of a text file: a character, or comma, semicolon, tab, pipe, space; default: detected"),
    ] = None
    decimal: Annotated[Literal[".", ","] | None, Doc("decimal mark of a text file; default: detected")] = None
    skip_rows: Annotated[
        tuple[str, ...], Doc("lines of a text file to leave out, counted from 1, such as 2 or 1-10,12; repeatable")
    ] = ()
    encoding: Annotated[str | None, Doc("encoding of a text file, such as cp1252; default: utf-8")] = None
    test_fraction: Annotated[float, Ge(0), Lt(1), Doc("fraction of the rows used as test rows")] = 0.1
    split_seed: Annotated[
        int,
        Ge(0),
        Le(2**32 - 1),
        Doc("seed that selects the test rows, and the held-out rows for the choice of likelihood and model"),
    ] = 0
    standardise: Annotated[bool, Doc("scale inputs and regression targets to mean 0 and variance 1")] = True
    units: Annotated[
        Literal["standardised", "data"],
        Doc("units of --likelihood.scale: multiples of the target's standard deviation, or the data's own units"),
    ] = "standardised"
    likelihood_power: Annotated[float, Ge(0), Doc("power of the likelihood; 1 gives the posterior, 0 the prior")] = 1.0
    stochastic: Annotated[
        str,
        Doc(
            "sampled parameters: all, last (the last layer), identified or linearised (directions that the data "
            "determine), or names such as layers_1_*; the other parameters are trained once"
        ),
    ] = "all"
    other_directions: Annotated[
        Literal["fixed", "linearised"],
        Doc(
            "for stochastic identified and linearised: directions that are not sampled stay at the mode (fixed), or "
            "predictions add draws of these directions from a Gaussian approximation (linearised)"
        ),
    ] = "fixed"
    chains: Annotated[int, Ge(1), Doc("number of chains")] = 4
    warmup: Annotated[int, Ge(0), Doc("warm-up steps per chain; with 0 nothing is adapted")] = 1000
    planned_warmup: Annotated[
        int | None,
        Ge(0),
        Doc(
            "planned number of warm-up steps if a budget ended warm-up early; this number determines the lengths of "
            "the adaptation windows"
        ),
    ] = None
    draws: Annotated[int, Ge(1), Doc("draws kept per chain")] = 1000
    thin: Annotated[int, Ge(1), Doc("steps per kept draw")] = 1
    budget: Annotated[
        str | None,
        Doc(
            "time for start, warm-up and draws, such as 90s, 5m or 2h; warm-up, draws and thin are chosen for this "
            "time, unless they are given"
        ),
    ] = None
    until: Annotated[
        Literal["converged", "predictions", "budget"] | None,
        Doc(
            "converged: end early if R-hat and ESS of predictions pass their limits; predictions: end also if more "
            "draws would hardly change the predictions; budget: use all of the time"
        ),
    ] = None
    seed: Annotated[
        int, Ge(0), Le(2**32 - 1), Doc("seed of the chains and of their initial positions; see split_seed")
    ] = 0
    init: Annotated[
        str | None,
        Doc(
            "initial positions: map (trained networks, the default for networks), prior (draws from the prior), run.nc "
            "(the last draws of a run), network.eqx (a trained network), or given (the arrays of your own network, in "
            "Python)"
        ),
    ] = None
    prior_from: Annotated[
        str | None,
        Doc(
            "file of an earlier run; the prior is a normal approximation of the draws of this run, so the data must "
            "contain only new rows"
        ),
    ] = None
    start_steps: Annotated[int, Ge(250), Doc("largest number of training steps for init map")] = 5000
    start_held_out: Annotated[
        float,
        Ge(0),
        Lt(1),
        Doc("fraction of rows held out for early stopping with init map; with 0 the training uses all rows"),
    ] = 0.1
    chain_method: Annotated[
        Literal["auto", "parallel", "vectorized", "sequential"], Doc("distribution of the chains over the devices")
    ] = "auto"
    mesh: Annotated[
        str | None,
        Doc(
            "mesh of C groups of D devices, as chains=C,data=D: the chains are distributed over the groups, and the "
            "rows over the devices of a group"
        ),
    ] = None
    keep_warmup: Annotated[bool, Doc("also write the warm-up draws")] = False
    keep: Annotated[
        Literal["draws", "predictions"],
        Doc("values to store for each draw: the parameters, or predictions at the test rows (for very large networks)"),
    ] = "draws"
    keep_at: Annotated[str | None, Doc("further inputs at which predictions are stored, given as for --data")] = None
    chain_weights: Annotated[
        Literal["auto", "equal", "stacking"],
        Doc(
            "weights of the chains in predictions: equal, by stacking of leave-one-out predictions, or auto: stacking "
            "if the chains settle in different modes and stacking predicts clearly better"
        ),
    ] = "auto"
    checkpoint_every: Annotated[float, Ge(0), Doc("seconds between checkpoints")] = 60.0
    precision: Annotated[Literal["float32", "float64"], Doc("floating-point precision")] = "float32"

    where: dict[str, str] = field(default_factory=dict)
    """The place at which the user wrote each setting that does not belong to a part. Messages show this place."""

    @property
    def init_file(self) -> Path | None:
        """The file that gives the initial positions, a run or a network; None if `init` is not a file."""
        return None if self.init is None or self.init in INITS else Path(self.init)

    @property
    def windowed_warmup(self) -> int:
        """The number of warm-up steps from which the lengths of the adaptation windows are computed."""
        return max(self.warmup, self.planned_warmup or 0)

    @property
    def trains_start(self) -> bool:
        """Whether networks are trained before sampling, as initial positions of the chains."""
        return self.init in (None, "map")


INITS = ("map", "prior", "given")
"""The values of `init` that are not paths of files."""
RUN_FIELDS: dict[str, Field] = {f.name: f for f in unchecked_fields_of(Recipe) if f.name not in {*PARTS, "where"}}
"""The fields of a recipe that are not parts. Each is a key of a recipe file and an option of the command line."""


def as_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a dictionary with the keys of a recipe file, in a fixed order.

    A likelihood or prior without a name and without fields is left out.
    """
    content: dict[str, Any] = {}
    for kind in PARTS:
        part: Part | None = getattr(recipe, kind)
        if part is not None:
            content[kind] = {**({"name": part.name} if part.name else {}), **dict(sorted(part.fields.items()))}
    for name in RUN_FIELDS:
        value = getattr(recipe, name)
        content[name] = list(value) if isinstance(value, tuple) else value
    return content


def to_yaml(recipe: Mapping[str, Any]) -> str:
    """Return the dictionary of a recipe as YAML, with the parts first. Reading the text gives the same values."""
    order = [*PARTS, *RUN_FIELDS]
    ordered_keys = [key for key in order if key in recipe]
    return yaml.write({key: recipe[key] for key in [*ordered_keys, *(key for key in recipe if key not in order)]})
