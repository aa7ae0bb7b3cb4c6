"""`python -m deploy` is the command `truestep`."""

from deploy.cli import main

main()
