"""Methods: each file is one, read top to bottom as state, init, step."""

from bnnzoo.number import number
from bnnzoo.samplers._base import AbstractSampler, Stats
from bnnzoo.samplers.bbb import Bbb
from bnnzoo.samplers.dropout import Dropout
from bnnzoo.samplers.ensemble import Ensemble
from bnnzoo.samplers.hmc import Hmc
from bnnzoo.samplers.laplace import Laplace
from bnnzoo.samplers.mala import Mala
from bnnzoo.samplers.nuts import Nuts
from bnnzoo.samplers.penalty import Penalty
from bnnzoo.samplers.random_walk import RandomWalk
from bnnzoo.samplers.sgld import Sgld
from bnnzoo.samplers.swag import Swag

__all__ = [
    "AbstractSampler",
    "Bbb",
    "Dropout",
    "Ensemble",
    "Hmc",
    "Laplace",
    "Mala",
    "Nuts",
    "Penalty",
    "RandomWalk",
    "Sgld",
    "Stats",
    "Swag",
    "number",
]
