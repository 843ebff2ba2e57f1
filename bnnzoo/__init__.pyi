"""The public names of bnnzoo, one import per name.

Type checkers read this file. `bnnzoo/__init__.py` reads the module of each name here.
"""

from bnnzoo.api.compare import compare as compare
from bnnzoo.api.concat import concat as concat
from bnnzoo.api.entrances import open as open
from bnnzoo.api.entrances import sample as sample
from bnnzoo.api.resuming import resume as resume
from bnnzoo.api.run import Run as Run
from bnnzoo.data import Dataset as Dataset
from bnnzoo.errors import BnnzooError as BnnzooError
from bnnzoo.errors import BnnzooWarning as BnnzooWarning
from bnnzoo.errors import UsageError as UsageError
from bnnzoo.evaluation.predictions.predictive_distribution import PredictiveDistribution as PredictiveDistribution
from bnnzoo.models import AbstractModel as AbstractModel
from bnnzoo.observers import AbstractObserver as AbstractObserver
from bnnzoo.plugins.hookspecs import Entry as Entry
from bnnzoo.plugins.hookspecs import hookimpl as hookimpl
from bnnzoo.posterior import AbstractPosterior as AbstractPosterior
from bnnzoo.posterior import Data as Data
from bnnzoo.posterior import NetworkPosterior as NetworkPosterior
from bnnzoo.posterior.hyperparameter import number as number
from bnnzoo.posterior.layout import Layout as Layout
from bnnzoo.posterior.likelihoods import AbstractLikelihood as AbstractLikelihood
from bnnzoo.posterior.likelihoods import Parameter as Parameter
from bnnzoo.posterior.numpyro import NumpyroPosterior as NumpyroPosterior
from bnnzoo.posterior.priors import AbstractPrior as AbstractPrior
from bnnzoo.recipe import TargetUnits as TargetUnits
from bnnzoo.samplers.base import AbstractSampler as AbstractSampler
from bnnzoo.samplers.base import Stats as Stats
from bnnzoo.samplers.independent.importance import Importance as Importance
from bnnzoo.samplers.independent.rejection import Rejection as Rejection
from bnnzoo.samplers.kernel import choose as choose
from bnnzoo.samplers.kernel import metropolis as metropolis
from bnnzoo.samplers.kernel import replace as replace
from bnnzoo.samplers.kernel import standard_normal as standard_normal
from bnnzoo.samplers.mcmc.gibbs import Gibbs as Gibbs
from bnnzoo.samplers.mcmc.hmc import Hmc as Hmc
from bnnzoo.samplers.mcmc.mala import Mala as Mala
from bnnzoo.samplers.mcmc.mams import Mams as Mams
from bnnzoo.samplers.mcmc.mclmc import Mclmc as Mclmc
from bnnzoo.samplers.mcmc.nuts import Nuts as Nuts
from bnnzoo.samplers.mcmc.random_walk import RandomWalk as RandomWalk
from bnnzoo.samplers.sgmcmc.psgld import Psgld as Psgld
from bnnzoo.samplers.sgmcmc.sghmc import Sghmc as Sghmc
from bnnzoo.samplers.sgmcmc.sgld import Sgld as Sgld
from bnnzoo.samplers.sgmcmc.sms_ubu import SmsUbu as SmsUbu
from bnnzoo.samplers.statistics import Statistic as Statistic
from bnnzoo.samplers.subsampled.batched import Batched as Batched
from bnnzoo.samplers.subsampled.penalty import Penalty as Penalty
from bnnzoo.samplers.variational.bbb import Bbb as Bbb
from bnnzoo.samplers.variational.dropout import Dropout as Dropout
from bnnzoo.samplers.variational.ensemble import Ensemble as Ensemble
from bnnzoo.samplers.variational.laplace import Laplace as Laplace
from bnnzoo.samplers.variational.swag import Swag as Swag
from bnnzoo.sampling.devices.jax_settings import devices as devices
