"""How environment variables of the project are named.

Without click, unlike options.py: workers of Spark import the names.
"""

ENV_PREFIX = "BROKERHOUSE_"
"""The prefix of every variable: the setting `data_dir` is BROKERHOUSE_DATA_DIR."""

BOOTSTRAP_VARIABLE = "BOOTSTRAP"
"""Kafka brokers that commands and jobs connect to. `KAFKA` is where a broker listens."""
