"""`brokerhouse feed`: fills typed tables beside the brokers of a cluster (docs/tables.md)."""

from pathlib import Path

import click

from brokerhouse.broker.cli.settings import (
    WrongSettings,
    config_file_option,
    load_settings,
    settings_errors,
)
from brokerhouse.broker.cluster.config import load_cluster
from brokerhouse.broker.settings.config_sources import config_file_of_environment


@click.command()
@config_file_option
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
def feed(config_file: Path | None, log_level: str | None) -> None:
    """Fill tables from topics beside the brokers of a cluster, until Ctrl-C or SIGTERM.

    The brokers have the setting `feeds = false`, so that their processors are for Kafka. Any number
    of these processes share the partitions. When it has started, one line is printed:

        ready feeds
    """
    settings = load_settings({"log_level": log_level}, config_file).settings
    path = config_file or config_file_of_environment()
    with settings_errors():
        cluster = None if path is None else load_cluster(path)
    if cluster is None:
        raise WrongSettings(
            "`brokerhouse feed` needs a file with the table [cluster]: a single broker fills tables"
            " itself, because nobody else can change its registry"
        )

    import uvloop

    from brokerhouse.broker.cluster import feed_process
    from brokerhouse.common.logging import log_to_stderr

    log_to_stderr(settings.log_level, settings.log_format)
    uvloop.run(feed_process.serve(settings, cluster, click.echo))
