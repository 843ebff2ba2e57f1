"""Reference posteriors of twelve problems, with the data set, the recipe and the long run of each problem."""

from __future__ import annotations

from bnnzoo import Entry, hookimpl

BNNZOO_API = 1

PROBLEMS = {
    "known-network": "16 tanh units, 5 rows: independent draws by rejection, so the posterior is exact",
    "mdn-sine": "mixture density network on y = sin 3x with noise that grows with |x|",
    "boston": "house prices, 306 rows, 13 inputs: one hidden layer",
    "energy": "heating load of buildings, 568 rows, 8 inputs: one hidden layer",
    "wine": "quality of red wine, 1399 rows, 11 inputs: one hidden layer",
    "yacht": "resistance of yachts, 108 rows, 6 inputs: one hidden layer",
    "airfoil": "noise of airfoils, 1303 rows, 5 inputs: one hidden layer",
    "digits-cnn": "300 images of digits: a small convolutional network",
    "logistic": "logistic regression on breast-cancer, 369 rows, 30 inputs",
    "poisson": "Poisson regression, 300 rows, 3 inputs",
    "last-layer": "the last layer of a classifier: 1e5 rows, 20 fixed features",
    "rbm1b-j10": "one hidden layer of 10 units on 100 images of digits, in the form of posteriordb's nn_rbm1bJ10",
}
"""Names and summaries of the problems. The data set and the recipe of the problem NAME are named reference-NAME."""


@hookimpl
def bnnzoo_datasets() -> list[Entry]:
    """Return the data sets of the problems."""
    return [
        Entry(f"reference-{name}", f"bnnzoo_references.data:{name.replace('-', '_')}", f"rows of the reference {name}")
        for name in PROBLEMS
    ]


@hookimpl
def bnnzoo_priors() -> list[Entry]:
    """Return the prior of the problem known-network."""
    summary = "N(0, inner^2) in the first layer, N(0, outer^2) on other weights, N(0, 1) on other biases"
    return [Entry("two-scales", "bnnzoo_references.prior:TwoScales", summary)]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """Return the recipes of the long runs."""
    return [Entry(f"reference-{name}", f"bnnzoo_references:recipes/{name}.yaml", "") for name in PROBLEMS]


@hookimpl
def bnnzoo_references() -> list[Entry]:
    """Return the reference posteriors."""
    return [Entry(name, f"bnnzoo_references:posteriors/{name}.nc", summary) for name, summary in PROBLEMS.items()]
