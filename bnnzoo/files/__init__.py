"""Files and their names: atomic writes, paths from the user, quoting for a shell, names of variables."""
