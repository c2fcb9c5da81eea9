"""An example of each command, which its --help ends with. A test parses each of them."""

from collections.abc import Mapping

import click

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "serve": (
        "brokerhouse serve --data-dir /srv/log",
        "brokerhouse serve --kafka 0.0.0.0:9092 --advertised kafka.example.com:9092",
    ),
    "config": ("brokerhouse config --format toml > brokerhouse.toml", "brokerhouse config --json"),
    "migrate": ("brokerhouse migrate --config cluster.toml",),
    "check": ("brokerhouse check --config cluster.toml",),
    "slots show": ("brokerhouse slots show --config cluster.toml",),
    "slots move": ("brokerhouse slots move --config cluster.toml --slots 0-7 --to two",),
    "engine": ("brokerhouse engine --data-dir one --http 127.0.0.1:8101 --shard one",),
    "feed": ("brokerhouse feed --config cluster.toml",),
    "topics list": ("brokerhouse topics list --json",),
    "topics create": ("brokerhouse topics create orders --partitions 4",),
    "topics describe": ("brokerhouse topics describe orders",),
    "topics delete": ("brokerhouse topics delete orders",),
    "groups list": ("brokerhouse groups list --state Stable --watch 10",),
    "groups describe": ("brokerhouse groups describe billing --offsets",),
    "groups delete": ("brokerhouse groups delete billing",),
    "groups reset-offsets": (
        "brokerhouse groups reset-offsets billing --topic orders --to-earliest",
    ),
    "jobs list": ("brokerhouse jobs list",),
    "jobs run lag": ("brokerhouse jobs run lag --dry-run",),
    "jobs run audit": ("brokerhouse jobs run audit --topic 'orders-*' --json",),
    "jobs run feed": ("brokerhouse jobs run feed shop.orders --topic orders --once",),
    "jobs run iceberg": (
        "brokerhouse jobs run iceberg --catalog /srv/lake --topic orders"
        " --table shop.orders --create",
    ),
    "jobs run iceberg-maintenance": (
        "brokerhouse jobs run iceberg-maintenance --catalog /srv/lake --table shop.orders",
    ),
    "jobs run iceberg-view": (
        "brokerhouse jobs run iceberg-view mine.orders --catalog /srv/lake --table shop.orders",
    ),
    "jobs run compaction": ("brokerhouse jobs run compaction --topic prices --dry-run",),
    "produce": (
        "seq 1 100 | brokerhouse produce orders",
        "brokerhouse produce orders --input-format json orders.jsonl",
    ),
    "consume": (
        "brokerhouse consume orders --exit-at-end --json",
        "brokerhouse consume orders --group billing --format '%p:%o %k=%s\\n'",
    ),
    "tail": ("brokerhouse tail orders --offset -10",),
    "sql": ("brokerhouse sql 'SELECT topic, count() FROM messages GROUP BY topic'",),
    "views list": ("brokerhouse views list",),
    "views repair": ("brokerhouse views repair shop.totals --user admin",),
    "views drop": ("brokerhouse views drop shop.totals --user admin",),
    "tables create": ("brokerhouse tables create shop.orders --topic orders --user admin",),
    "tables list": ("brokerhouse tables list --json",),
    "tables describe": ("brokerhouse tables describe shop.orders",),
    "tables pause": ("brokerhouse tables pause shop.orders --user admin",),
    "tables resume": ("brokerhouse tables resume shop.orders --user admin",),
    "tables replay": ("brokerhouse tables replay shop.orders --user admin",),
    "tables drop": ("brokerhouse tables drop shop.orders --user admin",),
    "backup": ("brokerhouse backup /backups/monday --data-dir /srv/log",),
    "restore": ("brokerhouse restore /backups/monday --data-dir /srv/new-log",),
}
"""By the words of the command."""


def add_examples(command: click.Command, words: tuple[str, ...] = ()) -> None:
    """Ends the help of a command, or of all commands of a group, with its examples."""
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            add_examples(one, (*words, name))
    elif examples := EXAMPLES.get(" ".join(words)):
        lines = "\n".join(f"  {_broken(line)}" for line in examples)
        command.epilog = f"\b\nExample{'s' if len(examples) > 1 else ''}:\n{lines}"


def _broken(line: str) -> str:
    """In lines that a terminal of 80 columns shows, as a shell takes them."""
    if len(line) <= 74:
        return line
    end = line.rindex(" --", 0, 70)
    return f"{line[:end]} \\\n    {_broken(line[end + 1 :])}"
