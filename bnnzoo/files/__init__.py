"""Files and their names: atomic writes, checks of paths, quoting for a shell, names of variables."""
