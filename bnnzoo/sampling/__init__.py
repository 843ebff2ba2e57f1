"""A run: its initial positions, its warm-up, the sampling loop, and the placement of chains on devices."""
