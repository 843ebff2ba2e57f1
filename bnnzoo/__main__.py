"""`python -m bnnzoo`."""

from bnnzoo.cli import main

main()
