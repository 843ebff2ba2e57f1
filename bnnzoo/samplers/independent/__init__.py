"""Independent draws from a proposal: rejection and importance sampling."""
