"""scikit-learn estimators for any model with any sampler.

    BayesianRegressor(model="mlp", sampler="nuts", draws=500).fit(X, y).predict(X, return_std=True)

The options have the names and the defaults of `bnnzoo sample`. By default, the data determine the model and the
sampler. A fit has a time budget (option `budget`) of two minutes, unless `warmup` or `draws` is given. After `fit`, the
attribute `run_` is the `bnnzoo.Run`. A pickle of the estimator contains the NetCDF file of the run.
"""

from bnnzoo.sklearn.classifier import BayesianClassifier as BayesianClassifier
from bnnzoo.sklearn.regressor import BayesianRegressor as BayesianRegressor
