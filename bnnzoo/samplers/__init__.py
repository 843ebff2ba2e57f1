"""Methods: each file is one, read top to bottom as state, init, step."""

from bnnzoo.posterior.hyperparameter import number
from bnnzoo.samplers.base import AbstractSampler, Stats
from bnnzoo.samplers.bbb import Bbb
from bnnzoo.samplers.dropout import Dropout
from bnnzoo.samplers.ensemble import Ensemble
from bnnzoo.samplers.gibbs import Gibbs
from bnnzoo.samplers.hmc import Hmc
from bnnzoo.samplers.importance import Importance
from bnnzoo.samplers.kernel import choose, metropolis, replace, standard_normal
from bnnzoo.samplers.laplace import Laplace
from bnnzoo.samplers.mala import Mala
from bnnzoo.samplers.nuts import Nuts
from bnnzoo.samplers.penalty import Batched, Penalty
from bnnzoo.samplers.psgld import Psgld
from bnnzoo.samplers.random_walk import RandomWalk
from bnnzoo.samplers.rejection import Rejection
from bnnzoo.samplers.sghmc import Sghmc
from bnnzoo.samplers.sgld import Sgld
from bnnzoo.samplers.sms_ubu import SmsUbu
from bnnzoo.samplers.statistics import Statistic
from bnnzoo.samplers.swag import Swag

__all__ = [
    "AbstractSampler",
    "Batched",
    "Bbb",
    "Dropout",
    "Ensemble",
    "Gibbs",
    "Hmc",
    "Importance",
    "Laplace",
    "Mala",
    "Nuts",
    "Penalty",
    "Psgld",
    "RandomWalk",
    "Rejection",
    "Sghmc",
    "Sgld",
    "SmsUbu",
    "Statistic",
    "Stats",
    "Swag",
    "choose",
    "metropolis",
    "number",
    "replace",
    "standard_normal",
]
