"""Recipes: the settings of a run, which are merged from options and recipe files.

The settings of a model, sampler, likelihood or prior stay raw values. `build` makes the objects from these values.
"""

from bnnzoo.recipe.fields import Field, TargetUnits, fields_of
from bnnzoo.recipe.layers import Layer, PartLayer, Value, read_layer
from bnnzoo.recipe.parts import Part, build, build_all, part_from_object, plain
from bnnzoo.recipe.precedence import broken_parts, broken_recipes, part_names, recipe_from, resolve
from bnnzoo.recipe.recipe import PARTS, RUN_FIELDS, Recipe, as_dict, to_yaml
from bnnzoo.recipe.shipped_files import shipped, shipped_names, warn_of

__all__ = [
    "PARTS",
    "RUN_FIELDS",
    "Field",
    "Layer",
    "Part",
    "PartLayer",
    "Recipe",
    "TargetUnits",
    "Value",
    "as_dict",
    "broken_parts",
    "broken_recipes",
    "build",
    "build_all",
    "fields_of",
    "part_from_object",
    "part_names",
    "plain",
    "read_layer",
    "recipe_from",
    "resolve",
    "shipped",
    "shipped_names",
    "to_yaml",
    "warn_of",
]
