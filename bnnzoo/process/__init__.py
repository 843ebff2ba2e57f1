"""The process of a command: signals, standard streams, clock, garbage collector. The modules load fast."""
