"""The built-in entries. As in a plugin, an entry names its target as text. The target is imported when used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bnnzoo.plugins.hookspecs import API_VERSION, Entry, hookimpl

BNNZOO_API = API_VERSION

# In a wheel the recipes are in the package; in a source tree they are next to it.
_PACKAGE = Path(__file__).parent.parent
RECIPES = next((f for f in (_PACKAGE / "_zoo_configs", _PACKAGE.parent / "zoo_configs") if f.is_dir()), _PACKAGE)

_REFERENCES = (
    *("known-network", "mdn-sine", "boston", "energy", "wine", "yacht", "airfoil", "digits-cnn", "logistic", "poisson"),
    *("last-layer", "rbm1b-j10"),
)

EXTERNAL_PACKAGES: dict[str, dict[str, str]] = {
    "samplers": {
        **dict.fromkeys(("adjusted-mclmc", "blackjax-nuts", "blackjax-hmc", "barker"), "bnnzoo-blackjax"),
        **dict.fromkeys(("austerity", "confidence", "minibatch-barker"), "bnnzoo-minibatch-tests"),
    },
    "commands": {"bench": "bnnzoo-bench", "distill": "bnnzoo-distill", "party": "bnnzoo-federated"},
    "references": dict.fromkeys(_REFERENCES, "bnnzoo-references"),
    **{kind: {f"reference-{name}": "bnnzoo-references" for name in _REFERENCES} for kind in ("datasets", "configs")},
}
"""Names of parts and commands that other packages offer, with the name of the package for error messages."""

EXTERNAL_CLASSES = dict.fromkeys(("Austerity", "Confidence", "MinibatchBarker"), "bnnzoo-minibatch-tests")
"""Classes of other packages, each with its package. They can be imported from `bnnzoo` if the package is installed."""

COMMANDS = {
    "sample": "sample",
    "resume": "sample",
    "show": "sample",
    "evaluate": "evaluate",
    "predict": "predict",
    "diagnose": "diagnose",
    "audit": "audit",
    "evidence": "evidence",
    "compare": "compare",
    "merge": "merge",
    "plot": "report",
    "report": "report",
    "check": "check",
    "new": "new",
    "list": "catalogue",
    "info": "catalogue",
    "plugins": "catalogue",
    "zoo": "zoo",
}
"""The commands and their modules in `bnnzoo.cli`, in the order of --help.

A new command needs a module with a function `add_to(app)`, and an entry in this dictionary.
"""


_MODELS = {
    "linear": "one affine map: Bayesian linear or logistic regression",
    "mlp": "multilayer perceptron: dense layers with an activation between them",
    "mdn": "mixture density network: a full predictive distribution for every input",
    "density": "a mixture of Gaussians for data without inputs",
    "autoregressive": "a density of rows: a mixture of Gaussians for each column, given the columns before it",
    "cnn": "small convolutional network for images",
    "resnet": "small residual network for images, without batch statistics",
}
"""Models. The name of a model is also the name of its module."""

_SAMPLERS = {
    "mcmc.random-walk": "random-walk Metropolis: no gradients, the simplest exact method",
    "mcmc.gibbs": "Metropolis within Gibbs: layers, arrays or single numbers in turn",
    "mcmc.mala": "Metropolis-adjusted Langevin: one gradient per step, then accept or reject",
    "subsampled.penalty": "the penalty method: Metropolis on mini-batches, corrected for their noise",
    "subsampled.batched": "Metropolis on mini-batches without a correction for their noise, for comparison",
    "sgmcmc.sgld": "stochastic gradient Langevin dynamics: mini-batch gradients, no accept step",
    "sgmcmc.sghmc": "stochastic gradient HMC: mini-batch gradients with momentum and friction",
    "sgmcmc.sms-ubu": "Langevin with momentum and symmetric sweeps over the mini-batches",
    "sgmcmc.psgld": "SGLD with a step size for every parameter (RMSprop)",
    "mcmc.hmc": "Hamiltonian Monte Carlo with a trajectory of fixed length",
    "mcmc.mams": "microcanonical trajectories with an accept step: the exact form of mclmc",
    "mcmc.mclmc": "microcanonical Langevin: long moves with two gradients per step, no accept step",
    "independent.rejection": "rejection: independent draws from the prior or another proposal; for few data",
    "independent.importance": "importance sampling: weighted draws from the prior or another proposal; for few data",
    "mcmc.nuts": "the No-U-Turn sampler: HMC that chooses its trajectory length",
    "variational.bbb": "Bayes by Backprop: the closest Gaussian with independent parameters",
    "variational.dropout": "Monte Carlo dropout: a trained network with randomly dropped units",
    "variational.ensemble": "deep ensemble: one trained network per chain",
    "variational.laplace": "Laplace approximation: the Gaussian with the posterior's curvature at a mode",
    "variational.swag": "SWAG: a Gaussian fitted to the path of stochastic gradient descent",
}
"""Samplers by FAMILY.NAME, where FAMILY is the package and NAME the module and the name of the sampler."""

_INEXACT = {
    "penalty": "noise-corrected",
    **dict.fromkeys(("batched", "sgld", "sghmc", "sms-ubu", "psgld", "mclmc"), "biased"),
    **dict.fromkeys(("importance", "bbb", "dropout", "ensemble", "laplace", "swag"), "approximate"),
}
"""Exactness of each sampler that is not exact; all other samplers are exact."""

_DATASETS = {
    "linear-line": "a noisy line: univariate linear regression",
    "mdn-sine": "y = sin 3x + (0.1 + 0.3|x|) e: noise that grows away from 0",
    "mdn-branches": "y = ±(0.5 + 0.5x) + 0.15 e: two branches for every input",
    "mdn-bump": "a bump with noise that grows to the right: two tanh units can represent the bump and the noise",
    "mdn-hills": "200 000 noisy points of a curve with two hills, few at the edges; four tanh units represent it",
    "two-moons": "two interleaved half circles with noise: a density, without inputs",
    "tutorial-sine": "y = 10 sin(2 pi x) + e: 32 points for a first run",
    "diabetes": "disease progression of 442 patients (scikit-learn), regression",
    "digits": "1797 handwritten digits of 8 x 8 pixels (scikit-learn), 10 classes",
    "breast-cancer": "569 tumours, 30 features (scikit-learn), 2 classes",
}

_LIKELIHOODS = {
    "likelihoods.gaussian": "Gaussian noise of one scale, fixed or learned",
    "likelihoods.student-t": "Student's t centred at the output: noise with outliers",
    "likelihoods.heteroscedastic": "Gaussian or t whose mean and scale are network outputs",
    "likelihoods.mixture": "mixture of Gaussians whose parameters are network outputs",
    "likelihoods.mixture-per-target": "a separate mixture of Gaussians for each target",
    "likelihoods.categorical": "one of C classes, by softmax",
    "likelihoods.bernoulli": "labels 0 and 1, by the logistic function",
    "likelihoods.poisson": "counts; the outputs are log rates",
    "counts.negative-binomial": "counts with a larger variance than Poisson's",
    "counts.zero-inflated-poisson": "counts with more zeros than Poisson's",
}
"""Likelihoods by MODULE.NAME, the module and the name of the likelihood."""

_PRIORS = {
    "priors.normal": "N(0, scale^2) on every parameter",
    "priors.laplace": "Laplace(0, scale) on every parameter",
    "priors.scale-mixture": "a wide and a narrow Gaussian: few large weights",
    "priors.hierarchical": "a Gaussian per layer, with sampled scales",
    "ard.ard": "weights of an input share a scale: irrelevant inputs are suppressed",
    "priors.fan-in": "N(0, scale^2 / fan-in) on weights: the scale of the outputs does not depend on the layer widths",
}
"""Priors by MODULE.NAME, the module and the name of the prior."""

_OBSERVERS = {
    "jsonl": "a file with one JSON object per line: jsonl:FILE",
    "tensorboard": "event files for TensorBoard: tensorboard:DIR",
    "wandb": "Weights & Biases: wandb or wandb:PROJECT",
}
"""Observers. The name of an observer is also the name of its module."""


@hookimpl
def bnnzoo_models() -> list[Entry]:
    """List the models of the zoo."""
    return [_class_entry(f"bnnzoo.models.{_snake(name)}", name, summary) for name, summary in _MODELS.items()]


@hookimpl
def bnnzoo_samplers() -> list[Entry]:
    """List the samplers of the zoo."""
    return [
        _class_entry(f"bnnzoo.samplers.{_snake(path)}", name, summary, _INEXACT.get(name, "exact"))
        for path, summary in _SAMPLERS.items()
        for name in [path.partition(".")[2]]
    ]


@hookimpl
def bnnzoo_datasets() -> list[Entry]:
    """List the data sets of the zoo."""
    return [Entry(name, f"bnnzoo.data.registered:{_snake(name)}", summary) for name, summary in _DATASETS.items()]


@hookimpl
def bnnzoo_likelihoods() -> list[Entry]:
    """List the likelihoods of the zoo."""
    return _posterior_entries(_LIKELIHOODS)


@hookimpl
def bnnzoo_priors() -> list[Entry]:
    """List the priors of the zoo."""
    return _posterior_entries(_PRIORS)


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """List the recipe files of the zoo."""
    return [Entry(path.stem, f"bnnzoo:{path.name}", "") for path in sorted(RECIPES.glob("*.yaml"))]


@hookimpl
def bnnzoo_commands() -> list[Entry]:
    """List the commands of the zoo."""
    return [Entry(name, f"bnnzoo.cli.{module}:add_to", "") for name, module in COMMANDS.items()]


@hookimpl
def bnnzoo_observers() -> list[Entry]:
    """List the observers of the zoo."""
    return [_class_entry(f"bnnzoo.observers.{name}", name, summary) for name, summary in _OBSERVERS.items()]


def _class_entry(module: str, name: str, summary: str, exactness: str = "") -> Entry:
    """Return the entry of a class. The name of the class follows from the name of the part: `sms-ubu` is `SmsUbu`."""
    return Entry(name, f"{module}:{name.title().replace('-', '')}", summary, exactness)


def _posterior_entries(summaries: Mapping[str, str]) -> list[Entry]:
    paths = {path: path.partition(".") for path in summaries}
    return [
        _class_entry(f"bnnzoo.posterior.{module}", name, summaries[path]) for path, (module, _, name) in paths.items()
    ]


def _snake(name: str) -> str:
    return name.replace("-", "_")
