"""Process of the command: signals, standard streams, clock, garbage collector. Its imports are light."""
