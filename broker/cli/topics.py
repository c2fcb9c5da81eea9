"""`brokerhouse topics`: list, create, describe and delete topics."""

import click

from brokerhouse.broker.cli.kafka_client import (
    admin_client,
    existing,
    partition_ranges,
    partitions_of,
    raise_for,
)
from brokerhouse.broker.cli.options import Bootstrap, bootstrap_option, json_option, print_json
from brokerhouse.common.console import console, new_table


@click.group()
def topics() -> None:
    """List, create, describe and delete topics."""


@topics.command("list")
@json_option
@bootstrap_option
def list_topics(as_json: bool, bootstrap: Bootstrap) -> None:
    """Print every topic with its number of partitions and its id."""
    with admin_client(bootstrap) as admin:
        described = [topic for topic in admin.describe_topics() if not topic["is_internal"]]
        found = sorted(described, key=lambda topic: str(topic["name"]))
    rows = [
        (topic["name"], len(topic["partitions"]), str(topic.get("topic_id", ""))) for topic in found
    ]
    columns = ("topic", "partitions", "id")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    table = new_table(*columns, right=["partitions"])
    for row in rows:
        table.add_row(*map(str, row))
    console().print(table)


def _to_configs(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    configs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(
                f"write NAME=VALUE, for example max.message.bytes=2000000, not {pair!r}"
            )
        configs[name] = value
    return configs


@topics.command("create")
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="Default: the broker's setting num_partitions.",
)
@click.option(
    "--config",
    "configs",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_to_configs,
    help="A topic config such as max.message.bytes=2000000; may be repeated.",
)
@bootstrap_option
def create_topic(
    name: str, partitions: int | None, configs: dict[str, str], bootstrap: Bootstrap
) -> None:
    """Create the topic NAME."""
    options = {"num_partitions": partitions or -1, "configs": configs}
    with admin_client(bootstrap) as admin:
        [outcome] = admin.create_topics({name: options}, raise_errors=False)["topics"]
        raise_for(outcome["error_code"], outcome.get("error_message"), f"topic {name}")
        count = len(partitions_of(admin, name))
    click.echo(f"created {name} with {count} {'partition' if count == 1 else 'partitions'}")


@topics.command("describe")
@click.argument("name")
@json_option
@bootstrap_option
def describe_topic(name: str, as_json: bool, bootstrap: Bootstrap) -> None:
    """Print the partitions of the topic NAME, the offsets they hold, and the configs set on it."""
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType

    with admin_client(bootstrap) as admin:
        [topic] = existing(admin.describe_topics([name]))
        partitions = sorted(topic["partitions"], key=lambda part: int(part["partition_index"]))
        keys = [TopicPartition(name, part["partition_index"]) for part in partitions]
        ranges = partition_ranges(admin, keys)
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        configs = admin.describe_configs([resource])["topic"][name]

    columns = ("partition", "leader", "earliest", "latest", "records")
    rows = [
        (key.partition, part["leader_id"], held.start, held.end, held.end - held.start)
        for key, part, held in zip(keys, partitions, map(ranges.__getitem__, keys), strict=True)
    ]
    topic_id = str(topic.get("topic_id", ""))
    chosen = {config: str(entry["value"]) for config, entry in sorted(configs.items())}
    if as_json:
        held_by = [dict(zip(columns, row, strict=True)) for row in rows]
        print_json({"topic": name, "id": topic_id, "partitions": held_by, "configs": chosen})
        return
    table = new_table(*columns, right=columns)
    for row in rows:
        table.add_row(*map(str, row))
    click.echo(f"{name}  {topic_id}\n")
    console().print(table)
    if chosen:
        config_table = new_table("config", "value")
        for pair in chosen.items():
            config_table.add_row(*pair)
        click.echo()
        console().print(config_table)


@topics.command("delete")
@click.argument("name")
@bootstrap_option
def delete_topic(name: str, bootstrap: Bootstrap) -> None:
    """Delete the topic NAME and all its records."""
    with admin_client(bootstrap) as admin:
        [outcome] = admin.delete_topics([name], raise_errors=False)["topics"]
        raise_for(outcome["error_code"], outcome.get("error_message"), f"topic {name}")
    click.echo(f"deleted {name}")
