"""Handlers of the admin APIs over a catalog whose engine can be told to refuse or to wait."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataResponse

from brokerhouse.broker.api import (
    APIS,
    create_topics,
    find_coordinator,
    incremental_alter_configs,
    metadata,
)
from brokerhouse.broker.api.config_resources import ResourceType
from brokerhouse.broker.api.context import RequestContext
from brokerhouse.broker.api.refusals import as_kafka_error
from brokerhouse.broker.broker import Broker
from brokerhouse.broker.endpoints import BrokerEndpoint
from brokerhouse.broker.memory import ResponseMemory
from brokerhouse.broker.monitoring.request_counts import RequestCounts
from brokerhouse.broker.offsets_topic.offsets_topic import OffsetsTopic
from brokerhouse.broker.settings.admin_store import AdminStore
from brokerhouse.broker.settings.config import Settings
from brokerhouse.broker.settings.dynamic_settings import DynamicSettings
from brokerhouse.broker.settings.stored_configs import StoredConfigs
from brokerhouse.broker.slots.groups import SlotGroups
from brokerhouse.broker.slots.leadership import SlotLeadership
from brokerhouse.broker.topics.auto_creation import AutoCreation
from brokerhouse.broker.topics.encoded_topics import EncodedTopics
from brokerhouse.coordinator.messages import OFFSETS_TOPIC
from brokerhouse.coordinator.slots import OwnSlots
from brokerhouse.protocol._request_head import RequestHeader
from brokerhouse.protocol.errors import (
    KafkaError,
    KafkaStorageError,
    RequestTimedOut,
    UnknownServerError,
)
from brokerhouse.protocol.versions import ApiKey
from brokerhouse.storage.engine import Engine, EngineError
from brokerhouse.storage.registry import TableRegistry
from tests.support.embedded_topics import catalog_on
from tests.support.one_topic import create_topic

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REQUEST = 42

CHARGE = ResponseMemory(1 << 30).charge()
CreateTopics = APIS[ApiKey.CreateTopics].request
Metadata = APIS[ApiKey.Metadata].request
IncrementalAlterConfigs = APIS[ApiKey.IncrementalAlterConfigs].request


class RecordingEngine:
    """Takes every change, except for topics whose name contains "full"."""

    async def rows(self, *_: object) -> list[tuple[object, ...]]:
        return []

    async def execute(self, _: str, params: Mapping[str, object]) -> None:
        await asyncio.sleep(0)
        names = params["names"]
        assert isinstance(names, list)
        if any("full" in name for name in names):
            raise EngineError("Code: 243. Cannot reserve 1.00 MiB (NOT_ENOUGH_SPACE)", 243)


@pytest.fixture
def broker() -> Broker:
    settings = Settings()
    endpoint = BrokerEndpoint(1, "localhost", 9092)
    catalog = catalog_on(RecordingEngine())
    catalog.version = 1  # it has read the table
    registry = TableRegistry(cast(Engine, RecordingEngine()))
    stored = StoredConfigs(AdminStore(registry), registry)
    known = SimpleNamespace(
        settings=settings,
        stored_configs=stored,
        dynamic_settings=DynamicSettings(settings, stored, ()),
        offsets_topic=OffsetsTopic(SlotGroups(OwnSlots.alone(), {}), settings),
        topics=catalog,
        auto_creation=AutoCreation(catalog, settings.num_partitions),
        cluster_id="c" * 22,
        node_id=1,
        endpoint=endpoint,
        leadership=SlotLeadership.alone(endpoint),
        encoded_topics=EncodedTopics(),
        requests=RequestCounts(),
    )
    return cast(Broker, known)


def context(broker: Broker, key: ApiKey, version: int | None = None) -> RequestContext:
    version = APIS[key].max_version if version is None else version
    return RequestContext(
        broker,
        RequestHeader(int(key), version, 1, "test"),
        "test",
        APIS,
        CHARGE,
    )


async def described(ctx: RequestContext, request: ApiMessage) -> MetadataResponse:
    body = await metadata.metadata(ctx, request)
    return cast(MetadataResponse, MetadataResponse.decode(body, version=ctx.version))


def new_topic(name: str) -> Any:
    return CreateTopics.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )


async def test_a_topic_that_clickhouse_refuses_does_not_stop_the_others(broker: Broker) -> None:
    answer = await create_topics.create_topics(
        context(broker, ApiKey.CreateTopics),
        CreateTopics(
            topics=[new_topic("a"), new_topic("full"), new_topic("b")],
            timeout_ms=10_000,
            validate_only=False,
        ),
    )
    codes = {row.name: row.error_code for row in answer.topics}
    assert codes == {"a": 0, "full": KafkaStorageError.code, "b": 0}
    assert "NOT_ENOUGH_SPACE" in answer.topics[1].error_message


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, RequestTimedOut),
        (159, RequestTimedOut),
        (999, RequestTimedOut),
        (60, UnknownServerError),
    ],
)
def test_a_client_asks_again_if_there_was_no_answer(code: int, told: type[KafkaError]) -> None:
    assert type(as_kafka_error(EngineError("why", code))) is told


async def test_a_topic_that_cannot_be_made_on_demand_is_unknown_as_in_kafka(
    broker: Broker,
) -> None:
    """Clients ask again. For UNKNOWN_SERVER_ERROR librdkafka fails its records for good."""
    answer = await described(
        context(broker, ApiKey.Metadata),
        Metadata(
            topics=[Metadata.MetadataRequestTopic(name=name) for name in ("full", "a")],
            allow_auto_topic_creation=True,
        ),
    )
    assert [row.error_code for row in answer.topics] == [UNKNOWN_TOPIC_OR_PARTITION, 0]


async def test_topics_made_by_one_metadata_request_are_limited(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "MAX_NEW_PARTITIONS", 2)
    request = Metadata(
        topics=[Metadata.MetadataRequestTopic(name=name) for name in ("a", "b", "c")],
        allow_auto_topic_creation=True,
    )
    ctx = context(broker, ApiKey.Metadata)
    first = await described(ctx, request)
    assert [row.error_code for row in first.topics] == [0, 0, UNKNOWN_TOPIC_OR_PARTITION]
    second = await described(ctx, request)
    assert [row.error_code for row in second.topics] == [0, 0, 0], "it is made when asked again"


async def test_clients_that_ask_for_the_same_new_topic_at_once_all_get_it(broker: Broker) -> None:
    request = Metadata(
        topics=[Metadata.MetadataRequestTopic(name="a")], allow_auto_topic_creation=True
    )
    ctx = context(broker, ApiKey.Metadata)
    answers = await asyncio.gather(*(described(ctx, request) for _ in range(5)))
    assert {row.error_code for answer in answers for row in answer.topics} == {0}
    assert len({row.topic_id for answer in answers for row in answer.topics}) == 1


async def test_concurrent_changes_to_one_topic_are_all_kept(broker: Broker) -> None:
    await create_topic(broker.topics, "a", 1, {})
    row = IncrementalAlterConfigs.AlterConfigsResource

    async def set_one(name: str) -> int:
        resource = row(
            resource_type=ResourceType.TOPIC,
            resource_name="a",
            configs=[row.AlterableConfig(name=name, config_operation=0, value="5")],
        )
        answer = await incremental_alter_configs.incremental_alter_configs(
            context(broker, ApiKey.IncrementalAlterConfigs),
            IncrementalAlterConfigs(resources=[resource], validate_only=False),
        )
        return int(answer.responses[0].error_code)

    names = ["retention.ms", "segment.ms", "flush.ms", "delete.retention.ms"]
    assert await asyncio.gather(*map(set_one, names)) == [0] * 4
    topic = broker.topics.get("a")
    assert topic is not None
    assert dict(topic.configs) == dict.fromkeys(names, "5")


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_answers_for_groups_and_transactional_ids_only(
    broker: Broker, version: int
) -> None:
    ctx = RequestContext(broker, RequestHeader(10, version, 1, None), "test", APIS, CHARGE)

    async def code(key_type: int) -> int:
        fields: dict[str, Any] = ({"coordinator_keys": ["k"]} if version >= 4 else {"key": "k"}) | (
            {"key_type": key_type} if version >= 1 else {}
        )
        answer = await find_coordinator.find_coordinator(
            ctx, FindCoordinatorRequest(version=version, **fields)
        )
        return int(answer.coordinators[0].error_code if version >= 4 else answer.error_code)

    assert await code(0) == 0
    if version >= 1:
        assert await code(1) == 0
        assert await code(2) == INVALID_REQUEST


async def longest_step(work: Awaitable[object]) -> float:
    """The part of the processor time of `work` that passes without a turn for other tasks."""
    took_s: list[float] = []
    task = asyncio.ensure_future(work)
    gc.disable()  # it takes long where there are many objects, as in a test session
    try:
        before = time.thread_time()
        while not task.done():
            await asyncio.sleep(0)
            took_s.append(time.thread_time() - before)
            before = time.thread_time()
    finally:
        gc.enable()
    task.result()
    return max(took_s) / sum(took_s)


MANY = 2000


async def test_creating_and_describing_many_topics_does_not_block_other_requests(
    broker: Broker,
) -> None:
    names = [f"topic-{number}" for number in range(MANY)]
    new = CreateTopics(
        topics=[new_topic(name) for name in names], timeout_ms=60_000, validate_only=False
    )
    made = create_topics.create_topics(context(broker, ApiKey.CreateTopics), new)
    assert await longest_step(made) < 0.4
    assert len(broker.topics.all()) == MANY
    for_all = Metadata(topics=None, allow_auto_topic_creation=False)
    asked = metadata.metadata(context(broker, ApiKey.Metadata), for_all)
    assert await longest_step(asked) < 0.4
    again = await described(context(broker, ApiKey.Metadata), for_all)
    assert [row.name for row in again.topics] == [*sorted(names), OFFSETS_TOPIC]


async def test_topics_with_equal_configs_are_answered_with_the_configs_of_each(
    broker: Broker,
) -> None:
    """They are worked out once for all topics that have the same."""
    config = CreateTopics.CreatableTopic.CreatableTopicConfig
    asked = {"a": None, "b": "1000", "c": None, "d": "2000", "e": "1000"}
    topics = [new_topic(name) for name in asked]
    for topic in topics:
        value = asked[topic.name]
        topic.configs = [] if value is None else [config(name="retention.ms", value=value)]
    answer = await create_topics.create_topics(
        context(broker, ApiKey.CreateTopics),
        CreateTopics(topics=topics, timeout_ms=60_000, validate_only=False),
    )
    told = {
        row.name: next(one.value for one in row.configs if one.name == "retention.ms")
        for row in answer.topics
    }
    default = str(broker.settings.retention_ms)
    assert told == {name: value or default for name, value in asked.items()}
