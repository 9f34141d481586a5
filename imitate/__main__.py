"""``python -m imitate``: the command line."""

from imitate.cli.main import main

main()
