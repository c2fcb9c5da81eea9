"""What the tests of `brokerhouse groups` share: what the command prints, what a group committed."""

from kafka import KafkaAdminClient

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import output
from tests.support.group_consumer import consuming

RECORDS = 10
HOUR_MS = 3_600_000
COMMITTED = 4
"""What the group of `stopped_group` has read of its topic's only partition."""


def read_next(broker: BrokerProcess, group: str, topic: str) -> list[str]:
    """What a consumer of the group reads from where the group stands to the end."""
    with consuming(broker, group, topic) as consumer:
        return consumer.values_to_the_end()


def fields(*arguments: str) -> list[list[str]]:
    """The words of every line that the command prints."""
    return [line.split() for line in output("groups", *arguments).splitlines()]


def node(broker: BrokerProcess, group: str) -> str:
    """The id of the broker that coordinates the group."""
    return str(broker.coordinator(group)[0])


def committed(broker: BrokerProcess, group: str) -> dict[tuple[str, int], int]:
    """What the group committed, as another client sees it: (topic, partition) -> offset."""
    with KafkaAdminClient(bootstrap_servers=broker.kafka) as admin:
        offsets = admin.list_group_offsets({group: None})[group]
    return {tuple(partition): offset.offset for partition, offset in offsets.items()}
