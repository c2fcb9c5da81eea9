"""The rules of the command line, held by every command: walks the tree of parsers.

The same meaning has the same flag in all of them; every flag says what it is for; a
terminal of 80 columns shows all of --help, which ends with an example that the parser accepts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from brokerhouse.broker.cli.examples import EXAMPLES
from brokerhouse.broker.cli.jobs import JOBS
from brokerhouse.broker.cli.main import main

VARIABLES = {
    "--bootstrap": "BROKERHOUSE_BOOTSTRAP",
    "--user": "BROKERHOUSE_SQL_USER",
    "--password": "BROKERHOUSE_SQL_PASSWORD",
}
LISTENS = ("serve", "engine")
"""Here --http is where the command itself listens."""
FLAG_OF_MEANING = {
    "Kafka brokers to connect to": "--bootstrap",
    "Print JSON": "--json",
    "Print a JSON object": "--json",
    "report as JSON": "--json",
    "format of the records": "--input-format",
    "Where to start": "--offset",
    "Where a new feed begins": "--offset",
    "How long to retry": "--timeout",
    "SQL server": "--http",
    "SQL interface, or the ClickHouse": "--http",
    "Password of": "--password",
}
"""What a help text says, and the flag that all commands with this meaning have."""
LISTING = (
    "topics list",
    "topics describe",
    "groups list",
    "groups describe",
    "slots show",
    "tables list",
    "tables describe",
    "views list",
    "config",
    "jobs list",
    "consume",
    "tail",
    "sql",
    *(f"jobs run {job}" for job in JOBS),
)
"""Commands whose output a program may want."""


def commands(command: click.Command = main, words: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(words)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*words, name))


def found(words: str) -> click.Command:
    command: click.Command = main
    for word in words.split():
        assert isinstance(command, click.Group)
        next_one = command.get_command(click.Context(command), word)
        assert next_one is not None, words
        command = next_one
    return command


def options(words: str) -> list[click.Option]:
    return [param for param in found(words).params if isinstance(param, click.Option)]


COMMANDS = list(commands())


@pytest.mark.parametrize("words", COMMANDS)
def test_help_of_a_command_fits_80_columns_and_ends_with_an_example(words: str) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(
        main, [*words.split(), "--help"], prog_name="brokerhouse"
    )
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    begin = max(number for number, line in enumerate(lines) if line.strip().startswith("Example"))
    assert f"brokerhouse {words}" in " ".join(lines[begin:])


@pytest.mark.parametrize("words", COMMANDS)
def test_every_flag_of_a_command_says_what_it_is_for(words: str) -> None:
    assert [option.opts for option in options(words) if not option.help] == []


@pytest.mark.parametrize("words", COMMANDS)
def test_options_of_the_same_meaning_have_the_same_flag_and_variable(words: str) -> None:
    for option in options(words):
        for meaning, flag in FLAG_OF_MEANING.items():
            if meaning in (option.help or ""):
                assert flag in option.opts, f"{words}: {option.help}"
        (name, *_) = option.opts
        if words not in LISTENS and name in VARIABLES:
            assert option.envvar == VARIABLES[name], words
        if words not in LISTENS and name == "--http":
            assert option.envvar == "BROKERHOUSE_HTTP", words
        if name == "--format":
            assert "json" not in f"{option.type} {option.metavar}", f"{words}: JSON is --json"


@pytest.mark.parametrize("words", LISTING)
def test_every_command_that_prints_data_can_print_json(words: str) -> None:
    (option,) = (one for one in options(words) if "--json" in one.opts)
    assert option.is_flag


@pytest.mark.parametrize("words", EXAMPLES)
def test_an_example_is_a_command_line_that_the_parser_accepts(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in EXAMPLES[words]:
        after = line.split("brokerhouse ", 1)[1].split(" > ")[0]
        arguments = shlex.split(after)
        assert arguments[: len(words.split())] == words.split()
        command = found(words)
        for param in command.params:
            # The files of the examples do not exist here.
            if isinstance(param.type, click.Path):
                monkeypatch.setattr(param, "type", click.STRING)
        given = arguments[len(words.split()) :]
        with command.make_context(words, given, resilient_parsing=True) as context:
            known = {
                flag for param in command.params for flag in (*param.opts, *param.secondary_opts)
            }
            assert {word for word in given if word.startswith("--")} <= known
            assert context.args == []


def test_serve_lists_every_flag_under_one_heading() -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["serve", "--help"])
    for option in options("serve"):
        assert shown.output.count(f"  {option.opts[0]} ") == 1, option.opts
    assert "\nOther:" not in shown.output
    assert "\nOptions:" not in shown.output
