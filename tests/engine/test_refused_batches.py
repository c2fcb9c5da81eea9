"""The error of a batch that follows a refused one: `RefusedBatches`, and Produce with a lane."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast
from uuid import UUID, uuid4

import pytest

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.api.produce import produce
from brokerhouse.broker.broker import Broker
from brokerhouse.broker.log import refused_batches as refused
from brokerhouse.broker.log.appender import Appender
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.refused_batches import RefusedBatches
from brokerhouse.broker.log.topic import Topic
from brokerhouse.broker.memory import ResponseMemory
from brokerhouse.protocol._produce_request import decode_produce_request
from brokerhouse.protocol._request_head import RequestHeader
from brokerhouse.protocol.errors import (
    InvalidRecord,
    KafkaError,
    KafkaStorageError,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
)
from brokerhouse.protocol.versions import ApiKey
from brokerhouse.storage.embedded import EmbeddedEngine
from tests.support import messages
from tests.support.log_parts import (
    ScriptedEngine,
    header_of,
    make_appender,
    make_log,
    make_topic,
    numbered,
    stored_values,
)
from tests.support.messages import Target

TOPIC = uuid4()
PRODUCER = 7
LAST = 2**31 - 1


@pytest.fixture
def batches() -> RefusedBatches:
    return RefusedBatches()


def note(
    batches: RefusedBatches,
    sequence: int,
    error: KafkaError | None = None,
    *,
    epoch: int = 0,
    topic_id: UUID = TOPIC,
    producer_id: int = PRODUCER,
) -> None:
    header = header_of(numbered(sequence, 1, producer_id, epoch).data)
    batches.note(topic_id, 0, header, error or NotLeaderOrFollower("elsewhere"))


def stored(batches: RefusedBatches, sequence: int, epoch: int = 0) -> None:
    batches.note_stored(TOPIC, 0, header_of(numbered(sequence, 1, PRODUCER, epoch).data))


def before(batches: RefusedBatches, sequence: int, epoch: int = 0) -> type[KafkaError] | None:
    header = header_of(numbered(sequence, 1, PRODUCER, epoch).data)
    found = batches.before(TOPIC, 0, header)
    return None if found is None else type(found)


@pytest.mark.parametrize("error", [NotLeaderOrFollower, KafkaStorageError, RequestTimedOut])
def test_a_batch_after_a_refused_one_is_refused_with_the_same_error(
    batches: RefusedBatches, error: type[KafkaError]
) -> None:
    note(batches, 5, error("for now"))
    assert [before(batches, n) for n in (4, 5, 6, 900)] == [None, None, error, error]
    found = batches.before(TOPIC, 0, header_of(numbered(6, 1, PRODUCER).data))
    assert str(found) == "Sequence 5 of producer 7 must be sent before 6, and was refused: for now"


def test_a_batch_with_a_lasting_error_does_not_hold_up_others(batches: RefusedBatches) -> None:
    note(batches, 5, InvalidRecord("bad"))
    assert before(batches, 6) is None


def test_refusals_of_other_topics_producers_and_epochs_do_not_count(
    batches: RefusedBatches,
) -> None:
    note(batches, 5, topic_id=uuid4())
    note(batches, 5, producer_id=8)
    note(batches, 5, epoch=1)
    assert before(batches, 6) is None
    assert before(batches, 6, epoch=1) is NotLeaderOrFollower


def test_the_earliest_refused_sequence_counts(batches: RefusedBatches) -> None:
    for sequence in (5, 6, 4, 7):
        note(batches, sequence)
    assert [before(batches, n) for n in (4, 5)] == [None, NotLeaderOrFollower]


def test_a_refused_batch_holds_up_later_ones_across_the_wrap_of_sequences(
    batches: RefusedBatches,
) -> None:
    note(batches, LAST)
    assert before(batches, 0) is NotLeaderOrFollower
    assert before(batches, LAST - 1) is None


def test_a_refused_batch_is_settled_when_it_or_a_later_one_is_stored(
    batches: RefusedBatches,
) -> None:
    for sequence in (5, 6):
        note(batches, 5)
        stored(batches, sequence)
        assert before(batches, 9) is None


def test_storing_an_earlier_batch_does_not_settle_a_refusal(batches: RefusedBatches) -> None:
    note(batches, 5)
    stored(batches, 4)
    assert before(batches, 6) is NotLeaderOrFollower


def test_a_new_epoch_settles_a_refused_batch(batches: RefusedBatches) -> None:
    note(batches, 5)
    stored(batches, 0, epoch=1)
    assert before(batches, 6) is None


def test_batches_of_an_earlier_epoch_do_not_change_a_refusal(batches: RefusedBatches) -> None:
    note(batches, 5, epoch=2)
    note(batches, 3, epoch=1)
    stored(batches, 9, epoch=1)
    assert before(batches, 6, epoch=2) is NotLeaderOrFollower
    assert before(batches, 4, epoch=1) is None


def test_the_number_of_remembered_refusals_is_limited(
    batches: RefusedBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused, "KEPT", 2)
    note(batches, 5)
    for producer_id in (8, 9):
        note(batches, 5, producer_id=producer_id)
    assert before(batches, 6) is None


# --- Produce with a lane


@pytest.fixture
async def appender(scripted: ScriptedEngine) -> AsyncIterator[Appender]:
    made = make_appender(scripted)
    yield made
    scripted.gate.set()  # or a test that failed would never end
    await made.close()


class Client:
    """Sends batches to one partition, as a connection hands them to Produce."""

    def __init__(self, appender: Appender, log: PartitionLog, *, leads: bool = True) -> None:
        self.leads = leads
        self._log = log
        self._broker = SimpleNamespace(
            topics=self, partitions=self, appender=appender, refused_batches=RefusedBatches()
        )

    async def send(self, *sequences: int, epoch: int = 0) -> list[int]:
        """The error codes of batches that are sent at once."""
        batches = [numbered(n, 1, PRODUCER, epoch).data for n in sequences]
        return await asyncio.gather(*map(self.send_batch, batches))

    async def send_batch(self, batch: bytes) -> int:
        header = RequestHeader(ApiKey.Produce, 9, 1, "test")
        charge = ResponseMemory(1 << 30).charge()
        context = RequestContext(cast(Broker, self._broker), header, "test", APIS, charge)
        target = Target(self._log.topic.name, self._log.topic_id)
        body = bytes(messages.produce(target, batch).encode(version=header.api_version))
        request, _ = decode_produce_request(body, 0, header.api_version)
        answer = await produce(context, request)
        assert answer is not None
        if isinstance(answer, list):  # only where every partition succeeded
            return 0
        return int(answer.responses[0].partition_responses[0].error_code)

    # broker.topics and broker.partitions

    def ready_log(self, key: object, partition: int) -> PartitionLog | None:
        return self._log if self.leads else None

    def opening(self, wanted: object) -> None: ...

    def get(self, name: str) -> Topic:
        return self._log.topic

    def log_of(self, topic: Topic, partition: int) -> PartitionLog:
        if not self.leads:
            raise NotLeaderOrFollower("another broker leads it")
        return self._log


async def test_a_batch_sent_to_a_new_leader_is_refused_until_the_refused_one_is_stored(
    engine: EmbeddedEngine, appender: Appender
) -> None:
    log = make_log(make_topic())
    client = Client(appender, log)
    assert await client.send(0) == [0]
    client.leads = False
    assert await client.send(1) == [NotLeaderOrFollower.code]
    client.leads = True
    assert await client.send(2, 3) == [NotLeaderOrFollower.code] * 2
    assert await client.send(1, 2, 3) == [0, 0, 0]
    assert await client.send(5) == [OutOfOrderSequenceNumber.code]
    assert await stored_values(engine, log) == [(n, f"{PRODUCER}/0/{n}") for n in range(4)]


async def test_a_batch_after_a_refused_block_is_refused_until_that_block_is_stored(
    engine: EmbeddedEngine, scripted: ScriptedEngine, appender: Appender
) -> None:
    log = make_log(make_topic())
    client = Client(appender, log)
    assert await client.send(0) == [0]
    scripted.faults.append("refused")
    scripted.gate.clear()
    first = asyncio.create_task(client.send(1))
    await scripted.next_insert()
    behind = asyncio.create_task(client.send(2, 3))
    await asyncio.sleep(0)
    scripted.gate.set()
    assert (await first, await behind) == (
        [KafkaStorageError.code],
        [KafkaStorageError.code] * 2,
    )
    assert await client.send(1, 2, 3) == [0, 0, 0]


@pytest.mark.parametrize("soon", [True, False])
async def test_a_later_batch_of_an_unknown_producer_is_not_taken_for_its_refused_first_batch(
    appender: Appender, monkeypatch: pytest.MonkeyPatch, soon: bool
) -> None:
    if not soon:
        monkeypatch.setattr(refused, "_SENT_AGAIN_S", 0)
    log = make_log(make_topic())
    log.has_forgotten = True  # so that a producer may begin anywhere
    client = Client(appender, log, leads=False)
    assert await client.send(6, 5) == [NotLeaderOrFollower.code] * 2
    client.leads = True
    if soon:
        assert await client.send(6, 7) == [NotLeaderOrFollower.code] * 2
        assert await client.send(5) == [0]
    assert await client.send(6, 7) == [0, 0]


async def test_a_gap_in_sequences_without_a_refused_batch_is_out_of_order(
    appender: Appender,
) -> None:
    client = Client(appender, make_log(make_topic()))
    assert await client.send(0, 2) == [0, OutOfOrderSequenceNumber.code]
    client.leads = False
    assert await client.send(1) == [NotLeaderOrFollower.code]
    client.leads = True
    assert await client.send(0, epoch=1) == [0]
    assert await client.send(2, epoch=1) == [OutOfOrderSequenceNumber.code]


async def test_a_broker_that_does_not_lead_answers_not_leader_to_an_invalid_batch(
    appender: Appender,
) -> None:
    client = Client(appender, make_log(make_topic()), leads=False)
    for batch in (b"", b"garbage" * 20, numbered(0, 1).data):
        assert await client.send_batch(batch) == NotLeaderOrFollower.code
