"""`python -m broker.cli`: the command `brokerhouse` where it is not installed."""

from broker.cli.main import main

main()
