"""A run: initial positions, warm-up, the sampling loop, and the placement of chains on devices."""
