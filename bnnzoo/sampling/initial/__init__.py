"""The work before the first step: initial positions, choice of the likelihood, and lengths of a run from its budget."""
