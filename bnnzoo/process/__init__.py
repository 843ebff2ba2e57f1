"""The process of a command: signals, standard streams, clock and garbage collector.

The modules import only the standard library, so that they load fast.
"""
