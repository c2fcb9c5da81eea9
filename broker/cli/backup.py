"""`brokerhouse backup` and `brokerhouse restore`: a single broker's data directory.

A running broker makes its backup itself, because only one process can use the directory
(broker/backup_socket.py). If none runs, the command opens the directory.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from brokerhouse.broker.cli.settings import (
    WrongSettings,
    config_file_option,
    load_settings,
    settings_errors,
)
from brokerhouse.broker.cluster.config import load_cluster
from brokerhouse.broker.settings import config_sources
from brokerhouse.broker.settings.config import Settings
from brokerhouse.storage.backup_files import SUMS, BackupError, BackupInfo
from brokerhouse.storage.data_directory import keep_files_private

_data_dir_option = click.option(
    "--data-dir", metavar="PATH", help="The data directory of the broker; as for `serve`."
)


@click.command()
@click.argument("destination", type=click.Path(path_type=Path))
@_data_dir_option
@config_file_option
def backup(destination: Path, data_dir: str | None, config_file: Path | None) -> None:
    """Back up a single broker into the new directory DESTINATION, also while it runs.

    It has everything that was acknowledged before. Run it on the machine of the broker and as the
    same user. DESTINATION appears when the backup is complete.
    """
    keep_files_private()
    settings = _settings(data_dir, config_file)
    path = Path(os.path.abspath(destination))
    began = time.monotonic()
    with _errors():
        if not (settings.data_dir / "clickhouse").is_dir():
            raise BackupError(
                f"{settings.data_dir} is not the data directory of a broker: name it by --data-dir"
            )
        info = asyncio.run(_made(settings, path))
    click.echo(f"{path}: {_size(info)} in {time.monotonic() - began:.1f} s")


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@_data_dir_option
@config_file_option
def restore(source: Path, data_dir: str | None, config_file: Path | None) -> None:
    """Restore the backup SOURCE into a data directory that is empty or does not exist.

    All of SOURCE is read and checked before. A restore that was interrupted can be run again; until
    it has finished, no broker starts on the directory.
    """
    keep_files_private()
    settings = _settings(data_dir, config_file)
    path = Path(os.path.abspath(source))
    began = time.monotonic()
    with _errors():
        from brokerhouse.storage.restore import restore as restored

        info = asyncio.run(restored(path, settings.data_dir))
    click.echo(
        f"{settings.data_dir}: {_size(info)} of {info.made_at} in {time.monotonic() - began:.1f} s"
    )


async def _made(settings: Settings, destination: Path) -> BackupInfo:
    """By the broker that runs, or here."""
    from brokerhouse.broker.backup_socket import NoBroker, ask_for_backup

    with suppress(NoBroker):
        info = await ask_for_backup(settings.data_dir, destination)
        if not (destination / SUMS).exists():
            raise BackupError(
                f"the broker has created {destination} in another file system: run this command"
                " in its container, or name a directory that both can see"
            )
        return info
    from brokerhouse.broker.single import open_engine
    from brokerhouse.storage.backup import Backups

    engine = await open_engine(settings)
    try:
        return await Backups(engine, durable=settings.fsync).make(destination)
    finally:
        await engine.close()


def _settings(data_dir: str | None, config_file: Path | None) -> Settings:
    """Raises click's error if they are those of a cluster."""
    settings = load_settings({"data_dir": data_dir}, config_file).settings
    path = config_file or config_sources.config_file_of_environment()
    with settings_errors():
        if path is not None and load_cluster(path) is not None:
            raise WrongSettings(
                "the data of a cluster is in its ClickHouse servers: back those up, as"
                " docs/operations.md says"
            )
    from brokerhouse.common.logging import log_to_stderr

    log_to_stderr("warning", settings.log_format)
    return settings


@contextmanager
def _errors() -> Iterator[None]:
    """Turns what may go wrong into the sentence that the user sees."""
    from brokerhouse.storage.data_directory import DataDirectoryError

    try:
        yield
    except (BackupError, DataDirectoryError) as error:
        raise click.ClickException(str(error)) from error


def _size(info: BackupInfo) -> str:
    return f"{info.size_bytes / 1e6:.1f} MB"
