"""JAX settings, the placement of chains on devices, and several processes."""
