"""`brokerhouse config`: prints every setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brokerhouse.broker.cli.options import json_option, print_json
from brokerhouse.broker.cli.settings import config_file_option, load_settings
from brokerhouse.broker.settings import config_sources
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.config_sources import SettingRow
from brokerhouse.common.console import console, new_table

if TYPE_CHECKING:
    from rich.table import Table


@click.command("config")
@config_file_option
@click.option(
    "--format",
    "output",
    type=click.Choice(["table", "toml"]),
    default="table",
    show_default=True,
    help="A table to read, or a file for --config.",
)
@json_option
def show_config(config_file: Path | None, output: str, as_json: bool) -> None:
    """Print every setting, its default and its meaning.

    Also the unit of each value and where it comes from: a flag, the environment, a file.
    """
    configuration = load_settings({}, config_file)
    rows = list(config_sources.rows(configuration))
    if as_json:
        print_json([_as_json(row) for row in rows])
    elif output == "toml":
        click.echo(_as_toml(rows), nl=False)
    else:
        console().print(_as_table(rows))


def _as_table(rows: list[SettingRow]) -> Table:
    from rich.text import Text

    table = new_table("setting", "value", "default", "unit", "meaning", "source")
    for row in rows:
        style = "" if row.source == "default" else "green"
        table.add_row(
            row.name,
            Text(row.value, style),
            row.default,
            row.unit,
            row.description,
            Text(row.source, style),
        )
    return table


def _as_toml(rows: list[SettingRow]) -> str:
    """A file that `--config` accepts. Settings without a value, and secrets, are comments in it."""
    blocks = []
    for row in rows:
        about = f"# {row.description} ({row.unit}; default: {row.default or 'not set'})"
        hidden = row.unit == "secret" or not row.value
        blocks.append(f"{about}\n{'# ' if hidden else ''}{row.name} = {_toml_value(row)}\n")
    return "\n".join(blocks)


def _toml_value(row: SettingRow) -> str:
    if row.unit == "secret" or not row.value:
        return '""'
    if isinstance(Settings.model_fields[row.name].default, int):
        return row.value
    return json.dumps(row.value, ensure_ascii=False)


def _as_json(row: SettingRow) -> dict[str, str]:
    return {name: getattr(row, name) for name in SettingRow.__slots__}
