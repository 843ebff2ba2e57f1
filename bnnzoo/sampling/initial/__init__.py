"""Before the first step: initial positions, the choice of a likelihood, and lengths from a time budget."""
