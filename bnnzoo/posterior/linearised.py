"""A network posterior whose predictions are linear in the parameters around a point: what Laplace predicts with."""

from __future__ import annotations

import dataclasses

import jax
from jaxtyping import Array, Float, Shaped

from bnnzoo.posterior.likelihoods import AbstractLikelihood
from bnnzoo.posterior.network import NetworkPosterior


class LinearisedPosterior(NetworkPosterior):
    """A posterior that predicts with the network's first-order Taylor polynomial in theta at a point, its `mode`.

    A draw as `predictive` takes it is followed by its mode, both on their natural scale: `[2 * dim]`.
    """

    @classmethod
    def like(cls, posterior: NetworkPosterior) -> LinearisedPosterior:
        """The same posterior, predicting linearly."""
        return cls(**{field.name: getattr(posterior, field.name) for field in dataclasses.fields(posterior)})

    def predictive(
        self, natural: Float[Array, " both"], x: Shaped[Array, "batch ..."]
    ) -> tuple[AbstractLikelihood, Float[Array, "batch output"]]:
        """Likelihood, and f(x, mode) + J(x, mode) (theta - mode)."""
        theta, mode = natural[: self.layout.dim], natural[self.layout.dim :]
        values = self.layout.unflatten(theta)
        own = {p.name: values[f"likelihood_{p.name}"] for p in self.likelihood.parameters()}
        outputs, change = jax.jvp(lambda t: self.outputs(t, x), (mode,), (theta - mode,))
        return self.likelihood.with_parameters(own), outputs + change
