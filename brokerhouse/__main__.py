"""`python -m brokerhouse`: the command `brokerhouse` where it is not installed."""

from brokerhouse.broker.cli.main import main

main()
