"""The public functions and `Run`, which `bnnzoo` exports."""
