"""``python -m frameworktax`` is the command line."""

from frameworktax.cli import main

main()
