"""`brokerhouse engine`: the embedded ClickHouse without a broker, for clusters on one machine."""

import click

from brokerhouse.broker.cli.options import to_addresses
from brokerhouse.broker.cli.settings import settings_errors
from brokerhouse.broker.settings import config, config_sources
from brokerhouse.common.address import Address
from brokerhouse.storage.data_directory import keep_files_private


def _keepers(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[Address, ...]:
    keepers = to_addresses(context, parameter, texts)
    if any(keeper.port == 0 for keeper in keepers):
        raise click.BadParameter("nothing listens on port 0: write the port of the Keeper")
    return keepers


@click.command()
@click.option(
    "--data-dir",
    metavar="PATH",
    required=True,
    help="Directory that holds all data; one running engine per directory.",
)
@click.option(
    "--http",
    "listen",
    metavar="HOST:PORT",
    callback=to_addresses,
    multiple=True,
    default=("127.0.0.1:8123",),
    show_default=True,
    help="Where clients connect; port 0 picks a free port. May be repeated: each address is then a "
    "replica in sync.",
)
@click.option(
    "--keeper",
    "keepers",
    metavar="HOST:PORT",
    callback=_keepers,
    multiple=True,
    help="A ZooKeeper or ClickHouse Keeper, for KeeperMap and replicated tables; may be repeated.",
)
@click.option("--shard", default="1", show_default=True, help="Value of the macro {shard}.")
@click.option("--replica", default="1", show_default=True, help="Value of the macro {replica}.")
@click.option(
    "--sql-user",
    metavar="NAME",
    help="User with all rights; the password is BROKERHOUSE_SQL_PASSWORD. If not set, every client "
    "on this machine has all rights.",
)
@click.option("--fsync/--no-fsync", default=None, help="Flush every insert to the disk.")
@click.option(
    "--journal-skip-damage/--no-journal-skip-damage",
    default=None,
    help="Start without the damaged entries of a damaged journal; for one start only.",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.pass_context
def engine(
    context: click.Context,
    data_dir: str,
    listen: tuple[Address, ...],
    keepers: tuple[Address, ...],
    shard: str,
    replica: str,
    sql_user: str | None,
    fsync: bool | None,
    journal_skip_damage: bool | None,
    log_level: str | None,
) -> None:
    """Run the embedded ClickHouse alone until Ctrl-C or SIGTERM, without a broker.

    It stands in for a ClickHouse server, so that a cluster of brokers runs on one machine. It does
    not replicate. With --keeper, the data directory of a single broker becomes that of a shard,
    which cannot be undone (docs/cluster.md). Other configuration of ClickHouse goes into
    engine.d/*.xml in the data directory.
    Environment variables and a BROKERHOUSE_CONFIG file apply as for `serve`. When clients can
    connect, one line is printed:

        ready http=127.0.0.1:8123
    """
    flags = {
        "data_dir": data_dir,
        "sql_user": sql_user,
        "fsync": fsync,
        "log_level": log_level,
        "journal_skip_damage": journal_skip_damage,
    }
    keep_files_private()
    with settings_errors():
        settings = config_sources.load(flags).settings
        config.prepare_data_dir(settings)

    from brokerhouse.broker.from_settings import journal_limits
    from brokerhouse.common.logging import log_to_stderr
    from brokerhouse.sql.http import engine_server
    from brokerhouse.storage.embedded import ClusterPlace

    log_to_stderr(settings.log_level, settings.log_format)
    context.exit(
        engine_server.run(
            engine_server.EngineServerSettings(
                settings.sql,
                settings.fsync,
                journal_limits(settings),
                settings.journal_skip_damage,
                listen,
                ClusterPlace(keepers, shard, replica) if keepers else None,
            )
        )
    )
