"""Methods of other packages, each with the protocol `Peer`. A package is imported when its method is fitted."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np

from bnnzoo_bench.distributions import Normal, StudentT

_MAX_ROWS_OF_A_GP = 2000
_HELD_OUT = 0.1


class Mean:
    """The same normal distribution for every row, with the mean and standard deviation of the training targets."""

    def fit(self, x: np.ndarray, y: np.ndarray, seconds: float, seed: int) -> None:
        """Compute the mean and the standard deviation of the targets."""
        del x, seconds, seed
        self.mean, self.sd = y.mean(), y.std()

    def predict(self, x: np.ndarray) -> Normal:
        """Return the same distribution for each row."""
        return Normal(np.full(len(x), self.mean), self.sd)


class Linear:
    """Bayesian linear regression with the conjugate prior.

    The predictive distribution is Student's t. The noise variance has the prior InverseGamma(1, 1/2). Given the noise
    variance, each weight and the intercept have the prior N(0, 100 noise variance).
    """

    def fit(self, x: np.ndarray, y: np.ndarray, seconds: float, seed: int) -> None:
        """Compute the posterior of the weights, the intercept and the noise variance."""
        del seconds, seed
        design = _with_intercept(x)
        precision = design.T @ design + 0.01 * np.eye(design.shape[1])
        self.covariance = np.linalg.inv(precision)
        self.weights = np.linalg.solve(precision, design.T @ y)
        self.shape = 1 + len(y) / 2
        self.rate = 0.5 + max(0.0, y @ y - self.weights @ precision @ self.weights) / 2

    def predict(self, x: np.ndarray) -> StudentT:
        """Return the predictive distribution of each row."""
        design = _with_intercept(x)
        spread = 1 + np.einsum("ri,ij,rj->r", design, self.covariance, design)
        return StudentT(2 * self.shape, design @ self.weights, np.sqrt(self.rate / self.shape * spread))


class GaussianProcess:
    """scikit-learn's Gaussian process: a squared-exponential kernel with one length scale per input, and white noise.

    More than 2000 training rows are replaced by a random sample of 2000. The optimisation of the kernel's
    parameters ends at the time limit.
    """

    requires: ClassVar[str] = "scikit-learn"

    def fit(self, x: np.ndarray, y: np.ndarray, seconds: float, seed: int) -> None:
        """Maximise the marginal likelihood of the kernel's parameters."""
        from scipy.optimize import minimize
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        end = time.monotonic() + seconds

        def maximise(negative_evidence: Any, start: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
            def stop_in_time(intermediate_result: Any) -> None:
                del intermediate_result
                if time.monotonic() > end:
                    raise StopIteration

            best = minimize(negative_evidence, start, jac=True, bounds=bounds, method="L-BFGS-B", callback=stop_in_time)
            return best.x, float(best.fun)

        if len(y) > _MAX_ROWS_OF_A_GP:
            sample = np.random.default_rng(seed).choice(len(y), _MAX_ROWS_OF_A_GP, replace=False)
            x, y = x[sample], y[sample]
        bounds = (1e-5, 1e5)
        lengths: Any = np.full(x.shape[1], np.sqrt(x.shape[1]))
        kernel = ConstantKernel(1.0, bounds) * RBF(lengths, bounds) + WhiteKernel(0.1, (1e-6, 10.0))
        optimiser: Any = maximise
        self.model = GaussianProcessRegressor(kernel, optimizer=optimiser, random_state=seed).fit(x, y)

    def predict(self, x: np.ndarray) -> Normal:
        """Return the predictive distribution of each row; its variance includes the noise."""
        mean, sd = self.model.predict(x, return_std=True)[:2]
        return Normal(mean, np.maximum(sd, 1e-6))


class CatBoost:
    """Gradient boosting of mean and variance by CatBoost. A tenth of the rows is held out for early stopping."""

    requires: ClassVar[str] = "catboost"

    def fit(self, x: np.ndarray, y: np.ndarray, seconds: float, seed: int) -> None:
        """Boost until the held-out loss has not improved for 100 iterations.

        Stop earlier after 5000 iterations or at the time limit.
        """
        import catboost  # pyright: ignore[reportMissingImports]

        end = time.monotonic() + seconds

        class Clock:
            def after_iteration(self, info: Any) -> bool:
                del info
                return time.monotonic() < end

        train, held_out = split_rows(len(y), seed)
        self.model = catboost.CatBoostRegressor(
            loss_function="RMSEWithUncertainty",
            iterations=5000,
            learning_rate=0.05,
            random_seed=seed,
            early_stopping_rounds=100,
            verbose=False,
            allow_writing_files=False,
        )
        self.model.fit(x[train], y[train], eval_set=(x[held_out], y[held_out]), callbacks=[Clock()])

    def predict(self, x: np.ndarray) -> Normal:
        """Return the predictive distribution of each row."""
        mean, variance = np.asarray(self.model.predict(x, prediction_type="RMSEWithUncertainty")).T
        return Normal(mean, np.sqrt(variance))


class NgBoost:
    """Natural gradient boosting of a normal distribution. A tenth of the rows is held out for early stopping."""

    requires: ClassVar[str] = "ngboost"

    def fit(self, x: np.ndarray, y: np.ndarray, seconds: float, seed: int) -> None:
        """Boost until the held-out loss has not improved for 50 iterations, but at most for 2000 iterations.

        The time limit `seconds` is ignored, because NGBoost cannot stop at a time limit.
        """
        del seconds
        from ngboost import NGBRegressor  # pyright: ignore[reportMissingImports]

        train, held_out = split_rows(len(y), seed)
        self.model = NGBRegressor(n_estimators=2000, learning_rate=0.02, random_state=seed, verbose=False)
        self.model.fit(x[train], y[train], X_val=x[held_out], Y_val=y[held_out], early_stopping_rounds=50)

    def predict(self, x: np.ndarray) -> Normal:
        """Return the predictive distribution of each row."""
        distribution = self.model.pred_dist(x, max_iter=self.model.best_val_loss_itr)
        return Normal(distribution.params["loc"], distribution.params["scale"])


def _with_intercept(x: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(x)), x])


def split_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide `count` rows at random, and return the indices of the training rows and of the held-out rows."""
    order = np.random.default_rng(seed).permutation(count)
    size = max(1, round(_HELD_OUT * count))
    return order[size:], order[:size]
