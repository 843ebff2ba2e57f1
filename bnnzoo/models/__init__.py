"""Models, one per file. A model has the hyperparameters of an architecture and builds networks (Equinox modules)."""

from bnnzoo.models._base import AbstractModel
from bnnzoo.models.autoregressive import Autoregressive
from bnnzoo.models.cnn import Cnn
from bnnzoo.models.density import Density
from bnnzoo.models.linear import Linear
from bnnzoo.models.mdn import Mdn
from bnnzoo.models.mlp import Mlp
from bnnzoo.models.resnet import Resnet

__all__ = ["AbstractModel", "Autoregressive", "Cnn", "Density", "Linear", "Mdn", "Mlp", "Resnet"]
