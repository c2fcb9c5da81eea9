"""`brokerhouse serve`: runs a broker, alone or as one of a cluster.

What libraries do when they are imported and no broker needs is left out, for a quicker start. A
broker takes Kafka's messages from kafka-python, and serves HTTP with aiohttp. It is nobody's client
with either of them, except of ClickHouse in a cluster.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import SecretStr

from brokerhouse.broker.cli.settings import config_file_option, load_settings, settings_errors
from brokerhouse.broker.settings import config, config_sources
from brokerhouse.broker.settings.config import Settings
from brokerhouse.common.process import collect_no_garbage_yet
from brokerhouse.common.text_table import read_lists
from brokerhouse.storage.chdb_library import load_library
from brokerhouse.storage.data_directory import keep_files_private

if TYPE_CHECKING:
    from brokerhouse.broker.cluster.config import ClusterConfig


def _settings_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command one flag per setting. Secrets have none: a command line is public."""
    for name, field in reversed(Settings.model_fields.items()):
        if field.annotation == SecretStr | None:
            continue
        flag = name.replace("_", "-")
        unit, default = config.unit(field), config.as_text(field.default)
        help_text = f"{field.description}  [{f'default: {default}' if default else 'not set'}]"
        command = (
            click.option(f"--{flag}/--no-{flag}", name, default=None, help=help_text)
            if field.annotation is bool
            else click.option(f"--{flag}", name, metavar=unit.upper(), help=help_text)
        )(command)
    return command


_GROUPS = read_lists("""
Where it is and what it is called: data_dir kafka http advertised node_id rack
Topics: auto_create_topics num_partitions retention_ms retention_check_interval_ms
Requests and connections: message_max_bytes request_max_bytes in_flight_max_bytes
    response_memory_bytes response_send_timeout_ms max_connections connections_max_idle_ms
    decompressed_max_bytes decompression_ratio_max decompression_memory_bytes fetch_max_bytes
    fetch_sessions_max tail_cache_bytes cold_cache_bytes
Storing records: fsync lanes linger_ms block_max_bytes block_max_rows journal_max_bytes
    journal_insert_bytes journal_insert_rows journal_insert_ms journal_skip_damage
    disk_reserve_bytes
Producers and transactions: producer_id_expiration_ms transaction_max_timeout_ms
    transactional_ids_max transactional_id_expiration_ms
Consumer groups: group_min_session_timeout_ms group_max_session_timeout_ms
    group_initial_rebalance_delay_ms group_max_size groups_max_bytes offsets_retention_minutes
    offset_metadata_max_bytes
Typed tables: feeds
SQL and HTTP: sql_user sql_anonymous sql_memory_bytes sql_max_queries sql_max_memory_bytes
    sql_max_threads sql_max_execution_ms sql_max_waiting sql_wait_ms sql_temporary_bytes
    iceberg_warehouse http_max_connections http_hosts metrics_partitions_max
Running it: config_file log_level log_format shutdown_timeout_ms broker_session_timeout_ms
    _click_default_help
""")
"""The flags by heading of --help; what is in none has a heading of its own at the end."""


class _Grouped(click.Command):
    """Its --help has the flags under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {param.name: param.get_help_record(ctx) for param in self.get_params(ctx)}
        grouped = {name for names in _GROUPS.values() for name in names}
        others = tuple(name for name in records if name not in grouped)
        for heading, names in {**_GROUPS, "Other": others}.items():
            rows = [record for name in names if (record := records.get(name)) is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


@click.command(cls=_Grouped)
@config_file_option
@_settings_flags
@click.pass_context
def serve(context: click.Context, /, config_file: Path | None, **flags: Any) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Every setting is a flag here, an environment variable BROKERHOUSE_NAME, and a key of the TOML
    file, in this order of precedence. When clients can connect, one line is printed:

        ready kafka=127.0.0.1:9092 http=127.0.0.1:8123

    With a table [cluster] in the file, this is one broker of several: docs/cluster.md.
    """
    keep_files_private()
    settings = load_settings(flags, config_file).settings
    path = config_file or config_sources.config_file_of_environment()
    with settings_errors():
        cluster = None if path is None else _cluster_of(path)
        if cluster is None:
            config.prepare_data_dir(settings)
            settings = config.enter_warehouse(settings)
        elif settings.iceberg_warehouse is not None:
            raise config.ConfigError(
                "iceberg_warehouse is for a single broker: in a cluster, ClickHouse's own"
                " configuration says what it may read"
            )

    # What a start makes stays: looking for garbage in it took a tenth of the imports' time.
    collect_no_garbage_yet()
    leave_out_kafka_clients()
    if cluster is None:
        load_library()
        with no_certificates():
            from brokerhouse.broker import server
    else:
        from brokerhouse.broker import server

    context.exit(server.run(settings, cluster))


def _cluster_of(path: Path) -> ClusterConfig | None:
    """The cluster in this file, if it has one. Raises `ConfigError`."""
    from brokerhouse.broker.cluster.config import load_cluster

    return load_cluster(path)


def leave_out_kafka_clients() -> None:
    """`import kafka` brings no producer, consumer and admin client, only what is asked for.

    `kafka/__init__.py`, which only names them, is not run: 0.04 s of CPU.
    """
    if "kafka" not in sys.modules and (spec := find_spec("kafka")) is not None:
        sys.modules["kafka"] = module_from_spec(spec)


@contextmanager
def no_certificates() -> Iterator[None]:
    """Import aiohttp without the certificates that its client would trust: 0.05 s of CPU.

    The two TLS contexts that aiohttp makes when it is imported trust nobody then.
    """
    name = "set_default_verify_paths"
    setattr(ssl.SSLContext, name, lambda context: None)
    try:
        yield
    finally:
        delattr(ssl.SSLContext, name)  # that of the base class again
