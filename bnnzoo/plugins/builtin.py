"""The zoo's own entries, registered like those of any plugin: as text, and imported when they are used."""

from __future__ import annotations

from pathlib import Path

from bnnzoo.plugins.hookspecs import API_VERSION, Entry, hookimpl

BNNZOO_API = API_VERSION

# In a wheel the recipes are inside the package; in a source tree they are beside it.
_PACKAGE = Path(__file__).parent.parent
RECIPES = next((f for f in (_PACKAGE / "_zoo_configs", _PACKAGE.parent / "zoo_configs") if f.is_dir()), _PACKAGE)

ELSEWHERE: dict[str, dict[str, str]] = {
    "samplers": {
        **dict.fromkeys(("adjusted-mclmc", "blackjax-nuts", "blackjax-hmc", "barker"), "bnnzoo-blackjax"),
        **dict.fromkeys(("austerity", "confidence", "minibatch-barker"), "bnnzoo-minibatch-tests"),
    },
    "commands": {"bench": "bnnzoo-bench", "party": "bnnzoo-federated"},
}
"""Names that other packages offer, so that an error can name the package to install."""

CLASSES_ELSEWHERE = dict.fromkeys(("Austerity", "Confidence", "MinibatchBarker"), "bnnzoo-minibatch-tests")
"""Classes that can be imported from `bnnzoo` if the package that defines them is installed."""

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

A new command is one file with an `add_to(app)`, and its name here.
"""


@hookimpl
def bnnzoo_models() -> list[Entry]:
    """List the models of the zoo."""
    return [
        Entry("linear", "bnnzoo.models.linear:Linear", "one affine map: Bayesian linear or logistic regression"),
        Entry(
            "mlp",
            "bnnzoo.models.mlp:Mlp",
            "multilayer perceptron: dense layers with an activation between them",
        ),
        Entry(
            "mdn", "bnnzoo.models.mdn:Mdn", "mixture density network: a full predictive distribution for every input"
        ),
        Entry("density", "bnnzoo.models.density:Density", "a mixture of Gaussians for data without inputs"),
        Entry(
            "autoregressive",
            "bnnzoo.models.autoregressive:Autoregressive",
            "a density of rows: each column's mixture of Gaussians, given the columns before it",
        ),
        Entry("cnn", "bnnzoo.models.cnn:Cnn", "small convolutional network for images"),
        Entry("resnet", "bnnzoo.models.resnet:Resnet", "small residual network for images, without batch statistics"),
    ]


@hookimpl
def bnnzoo_samplers() -> list[Entry]:
    """List the samplers of the zoo."""
    return [
        _sampler(
            "exact",
            "random-walk",
            "mcmc.random_walk:RandomWalk",
            "random-walk Metropolis: no gradients, the simplest exact method",
        ),
        _sampler(
            "exact", "gibbs", "mcmc.gibbs:Gibbs", "Metropolis within Gibbs: layers, arrays or single numbers in turn"
        ),
        _sampler(
            "exact",
            "mala",
            "mcmc.mala:Mala",
            "Metropolis-adjusted Langevin: one gradient per step, then accept or reject",
        ),
        _sampler(
            "noise-corrected",
            "penalty",
            "subsampled.penalty:Penalty",
            "the penalty method: Metropolis on mini-batches, corrected for their noise",
        ),
        _sampler(
            "biased", "batched", "subsampled.batched:Batched", "the penalty method without its penalty, for comparison"
        ),
        _sampler(
            "biased",
            "sgld",
            "sgmcmc.sgld:Sgld",
            "stochastic gradient Langevin dynamics: mini-batch gradients, no accept step",
        ),
        _sampler(
            "biased",
            "sghmc",
            "sgmcmc.sghmc:Sghmc",
            "stochastic gradient HMC: mini-batch gradients with momentum and friction",
        ),
        _sampler(
            "biased",
            "sms-ubu",
            "sgmcmc.sms_ubu:SmsUbu",
            "Langevin with momentum and symmetric sweeps over the mini-batches",
        ),
        _sampler("biased", "psgld", "sgmcmc.psgld:Psgld", "SGLD with a step size for every parameter (RMSprop)"),
        _sampler("exact", "hmc", "mcmc.hmc:Hmc", "Hamiltonian Monte Carlo with a trajectory of fixed length"),
        _sampler(
            "exact",
            "mams",
            "mcmc.mams:Mams",
            "microcanonical trajectories with an accept step: the exact form of mclmc",
        ),
        _sampler(
            "biased",
            "mclmc",
            "mcmc.mclmc:Mclmc",
            "microcanonical Langevin: long moves with two gradients per step, no accept step",
        ),
        _sampler(
            "exact",
            "rejection",
            "independent.rejection:Rejection",
            "rejection: independent draws from the prior or another proposal; for few data",
        ),
        _sampler(
            "approximate",
            "importance",
            "independent.importance:Importance",
            "importance sampling: weighted draws from the prior or another proposal; for few data",
        ),
        _sampler("exact", "nuts", "mcmc.nuts:Nuts", "the No-U-Turn sampler: HMC that chooses its trajectory length"),
        _sampler(
            "approximate",
            "bbb",
            "variational.bbb:Bbb",
            "Bayes by Backprop: the closest Gaussian with independent parameters",
        ),
        _sampler(
            "approximate",
            "dropout",
            "variational.dropout:Dropout",
            "Monte Carlo dropout: a trained network with randomly dropped units",
        ),
        _sampler(
            "approximate", "ensemble", "variational.ensemble:Ensemble", "deep ensemble: one trained network per chain"
        ),
        _sampler(
            "approximate",
            "laplace",
            "variational.laplace:Laplace",
            "Laplace approximation: the Gaussian with the posterior's curvature at a mode",
        ),
        _sampler(
            "approximate",
            "swag",
            "variational.swag:Swag",
            "SWAG: a Gaussian through the path of stochastic gradient descent",
        ),
    ]


def _sampler(exactness: str, name: str, target: str, summary: str) -> Entry:
    return Entry(name, f"bnnzoo.samplers.{target}", summary, exactness)


@hookimpl
def bnnzoo_datasets() -> list[Entry]:
    """List the data sets of the zoo."""
    module = "bnnzoo.data.registered"
    return [
        Entry("linear-line", f"{module}:linear_line", "a noisy line: univariate linear regression"),
        Entry("mdn-sine", f"{module}:mdn_sine", "y = sin 3x + (0.1 + 0.3|x|) e: noise that grows away from 0"),
        Entry("mdn-branches", f"{module}:mdn_branches", "y = ±(0.5 + 0.5x) + 0.15 e: two branches for every input"),
        Entry(
            "mdn-bump",
            f"{module}:mdn_bump",
            "a bump with noise that grows to the right: two tanh units can represent both",
        ),
        Entry("two-moons", f"{module}:two_moons", "two interleaved half circles with noise: a density, without inputs"),
        Entry("tutorial-sine", f"{module}:tutorial_sine", "y = 10 sin(2 pi x) + e: 32 points for a first run"),
        Entry("diabetes", f"{module}:diabetes", "disease progression of 442 patients (scikit-learn), regression"),
        Entry("digits", f"{module}:digits", "1797 handwritten digits of 8 x 8 pixels (scikit-learn), 10 classes"),
        Entry("breast-cancer", f"{module}:breast_cancer", "569 tumours, 30 features (scikit-learn), 2 classes"),
    ]


@hookimpl
def bnnzoo_likelihoods() -> list[Entry]:
    """List the likelihoods of the zoo."""
    module, counts_module = "bnnzoo.posterior.likelihoods", "bnnzoo.posterior.counts"
    return [
        Entry("gaussian", f"{module}:Gaussian", "Gaussian noise of one scale, fixed or learned"),
        Entry("student-t", f"{module}:StudentT", "Student's t about the output: noise with outliers"),
        Entry("heteroscedastic", f"{module}:Heteroscedastic", "Gaussian or t whose mean and scale are network outputs"),
        Entry("mixture", f"{module}:Mixture", "mixture of Gaussians whose parameters are network outputs"),
        Entry("mixture-per-target", f"{module}:MixturePerTarget", "one such mixture for each of several targets"),
        Entry("categorical", f"{module}:Categorical", "one of C classes, by softmax"),
        Entry("bernoulli", f"{module}:Bernoulli", "labels 0 and 1, by the logistic function"),
        Entry("poisson", f"{module}:Poisson", "counts; the outputs are log rates"),
        Entry("negative-binomial", f"{counts_module}:NegativeBinomial", "counts that spread more than Poisson's"),
        Entry("zero-inflated-poisson", f"{counts_module}:ZeroInflatedPoisson", "counts with more zeros than Poisson's"),
    ]


@hookimpl
def bnnzoo_priors() -> list[Entry]:
    """List the priors of the zoo."""
    module = "bnnzoo.posterior.priors"
    return [
        Entry("normal", f"{module}:Normal", "N(0, scale^2) on every parameter"),
        Entry("laplace", f"{module}:Laplace", "Laplace(0, scale) on every parameter"),
        Entry("scale-mixture", f"{module}:ScaleMixture", "a wide and a narrow Gaussian: few large weights"),
        Entry("hierarchical", f"{module}:Hierarchical", "a Gaussian per layer, with sampled scales"),
        Entry("ard", "bnnzoo.posterior.ard:Ard", "weights of an input share a scale: irrelevant inputs are suppressed"),
        Entry(
            "fan-in",
            f"{module}:FanIn",
            "N(0, scale^2 / fan-in) on weights: the same function scale at any width",
        ),
    ]


@hookimpl
def bnnzoo_recipes() -> list[Entry]:
    """List the recipe files of the zoo."""
    return [Entry(path.stem, f"bnnzoo:{path.name}", "") for path in sorted(RECIPES.glob("*.yaml"))]


@hookimpl
def bnnzoo_commands() -> list[Entry]:
    """List the commands of the zoo."""
    return [Entry(name, f"bnnzoo.cli.{module}:add_to", "") for name, module in COMMANDS.items()]
