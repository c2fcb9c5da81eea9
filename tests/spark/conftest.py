"""One Spark session for all tests here, because it takes seconds to start; a broker with sinks."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from brokerhouse.spark_jobs import job
from brokerhouse.spark_jobs.session import session
from tests.support import tokens, tools
from tests.support.broker_process import BrokerProcess
from tests.support.committed import create_topic
from tests.support.iceberg_sink import IcebergSink
from tests.support.typed_tables import SETTINGS

# Tests are short, so a Java that compiles fast takes half the processor time of one that compiles
# well: 43 s instead of 82 s for test_session and test_lag_job. Processes of tests inherit this.
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def few_tasks() -> Iterator[None]:
    """A shuffle of a job has a task for each of its slices, which are tiny here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "MAX_TASKS", 2)
        yield


@pytest.fixture(scope="session")
def spark(few_tasks: None) -> Iterator[SparkSession]:
    """A session with Spark's own Kafka source, if Maven could fetch it."""
    del few_tasks
    try:
        jars = tools.spark_source_jars()
    except pytest.fail.Exception:
        jars = []
    tokens.take()
    made = session(
        "brokerhouse tests",
        "local[2]",
        spark__driver__memory="1g",
        spark__jars=",".join(jars),
        spark__sql__shuffle__partitions=1,
        # Each plan runs once: to compile it takes more than to interpret it.
        spark__sql__codegen__wholeStage=False,
        spark__sql__codegen__factoryMode="NO_CODEGEN",
        spark__sql__session__timeZone="UTC",
    )
    yield made
    made.stop()


@pytest.fixture
def spark_with_kafka(spark: SparkSession) -> SparkSession:
    """Fails with Maven's message if Maven could not fetch the source."""
    tools.spark_source_jars()
    return spark


@pytest.fixture(scope="session")
def sink_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all tests of the job `iceberg` that leave it running."""
    settings = {
        **SETTINGS,
        "group_initial_rebalance_delay_ms": "0",
        "group_min_session_timeout_ms": "500",
    }
    broker = BrokerProcess(tmp_path_factory.mktemp("iceberg") / "data", settings)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def make(
    sink_broker: BrokerProcess, tmp_path: Path, topic: str
) -> Iterator[Callable[..., IcebergSink]]:
    """A sink of the test's own topic, with so many partitions."""
    made: list[IcebergSink] = []

    def make_sink(partitions: int = 1, **more: Any) -> IcebergSink:
        create_topic(sink_broker.kafka, topic, partitions)
        made.append(IcebergSink(sink_broker, tmp_path, {topic: partitions}, **more))
        return made[-1]

    yield make_sink
    for sink in made:
        sink.stop()
