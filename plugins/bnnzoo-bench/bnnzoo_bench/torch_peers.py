"""Methods of packages that use PyTorch, each with the protocol `Peer`. A package is imported when its method is fitted.

None of them observes the time limit, except the training of `LaplaceTorch`.
"""

from __future__ import annotations

import copy
import time
from typing import Any, ClassVar

import numpy as np

from bnnzoo_bench.distributions import Normal
from bnnzoo_bench.peers import split_rows

_MIN_SD = 1e-3
"""Smallest predictive sd, in units of the target's sd; a network can fit a few held-out rows exactly."""


class RealMlp:
    """RealMLP (Holzmüller, Grinsztajn and Steinwart 2024) with the tuned default settings of pytabkit.

    RealMLP predicts a mean. The predictive distribution is normal, with the root mean squared error of a held-out tenth
    of the rows as its sd. The network is not trained on these rows.
    """

    requires: ClassVar[str] = "pytabkit"
    regressor: ClassVar[str] = "RealMLP_TD_Regressor"

    def fit(self, x: np.ndarray, y: np.ndarray, seconds: float, seed: int) -> None:
        """Train the network with the default settings. The time limit `seconds` is ignored."""
        del seconds
        import pytabkit  # pyright: ignore[reportMissingImports]

        train, held_out = split_rows(len(y), seed)
        self.model = getattr(pytabkit, self.regressor)(device="cpu", random_state=seed, verbosity=0)
        self.model.fit(x[train], y[train])
        self.sd = max(_MIN_SD, float(np.sqrt(np.mean((self._mean(x[held_out]) - y[held_out]) ** 2))))

    def predict(self, x: np.ndarray) -> Normal:
        """Return the predictive distribution of each row."""
        return Normal(self._mean(x), self.sd)

    def _mean(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict(x), np.float64).reshape(len(x))


class TabM(RealMlp):
    """TabM (Gorishniy, Kotelnikov and Babenko 2024) with the default settings of pytabkit.

    The predictive distribution is that of `RealMlp`.
    """

    regressor: ClassVar[str] = "TabM_D_Regressor"


class LaplaceTorch:
    """The linearised Laplace approximation of a network with two layers of 50 units (Daxberger et al. 2021).

    A tenth of the rows is held out for early stopping. The Hessian of all weights has Kronecker factors. The prior
    precision and the noise level maximise the approximate marginal likelihood, as in the package's example of a
    regression.
    """

    requires: ClassVar[str] = "laplace-torch"

    def fit(self, x: np.ndarray, y: np.ndarray, seconds: float, seed: int) -> None:
        """Train until the held-out loss has not improved for 100 epochs, then fit the approximation.

        Training ends earlier after 2000 epochs, or when half of the time limit has passed.
        """
        import torch  # pyright: ignore[reportMissingImports]
        from laplace import Laplace  # pyright: ignore[reportMissingImports]

        end = time.monotonic() + seconds / 2
        torch.manual_seed(seed)
        units: Any = [(x.shape[1], 50), (50, 50), (50, 1)]
        first, second, last = (torch.nn.Linear(*sizes) for sizes in units)
        network = torch.nn.Sequential(first, torch.nn.Tanh(), second, torch.nn.Tanh(), last)
        train, held_out = split_rows(len(y), seed)
        all_x, all_y = (torch.tensor(part, dtype=torch.float32) for part in (x, y[:, None]))
        rows = torch.utils.data.TensorDataset(all_x[train], all_y[train])
        batches = torch.utils.data.DataLoader(rows, batch_size=256, shuffle=True)
        best_loss, best_epoch, best_weights = np.inf, 0, copy.deepcopy(network.state_dict())
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        for epoch in range(2000):
            for batch_x, batch_y in batches:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(network(batch_x), batch_y).backward()
                optimizer.step()
            with torch.no_grad():
                loss = torch.nn.functional.mse_loss(network(all_x[held_out]), all_y[held_out]).item()
            if loss < best_loss:
                best_loss, best_epoch, best_weights = loss, epoch, copy.deepcopy(network.state_dict())
            if epoch - best_epoch > 100 or time.monotonic() > end:
                break
        network.load_state_dict(best_weights)
        self.model = Laplace(network, "regression", subset_of_weights="all", hessian_structure="kron")
        self.model.fit(batches)
        log_precision, log_sd = torch.ones(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        hyper_optimizer = torch.optim.Adam([log_precision, log_sd], lr=0.1)
        for _ in range(100):
            hyper_optimizer.zero_grad()
            (-self.model.log_marginal_likelihood(log_precision.exp(), log_sd.exp())).backward()
            hyper_optimizer.step()

    def predict(self, x: np.ndarray) -> Normal:
        """Return the predictive distribution of each row; its variance includes the noise."""
        import torch  # pyright: ignore[reportMissingImports]

        mean, variance = self.model(torch.tensor(x, dtype=torch.float32))
        noise = self.model.sigma_noise.item() ** 2
        return Normal(mean.detach().numpy()[:, 0], np.sqrt(variance.detach().numpy()[:, 0, 0] + noise))
