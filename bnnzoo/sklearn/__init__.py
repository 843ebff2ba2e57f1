"""scikit-learn estimators for any model with any sampler.

    BayesianRegressor(model="mlp", sampler="nuts", draws=500).fit(X, y).predict(X, return_std=True)

The options have the names and the defaults of `bnnzoo sample`. By default the data determine model and sampler, and a
fit has a `budget` of two minutes unless `warmup` or `draws` is given. The attribute `run_` is the run. A pickle
contains its NetCDF file.
"""

from bnnzoo.sklearn.classifier import BayesianClassifier as BayesianClassifier
from bnnzoo.sklearn.regressor import BayesianRegressor as BayesianRegressor
