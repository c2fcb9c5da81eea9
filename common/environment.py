"""How environment variables of the project are named."""

ENV_PREFIX = "BROKERHOUSE_"
"""Every variable begins with it: the setting `data_dir` is BROKERHOUSE_DATA_DIR."""
