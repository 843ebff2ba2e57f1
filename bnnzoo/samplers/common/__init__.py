"""Tools that samplers of several families share."""
