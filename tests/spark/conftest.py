"""One Spark session for all tests here, because it takes seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import session
from tests.support import tools


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with Spark's own Kafka source, if Maven could fetch it."""
    try:
        jars = tools.spark_source_jars()
    except pytest.fail.Exception:
        jars = []
    made = session(
        "brokerhouse tests",
        "local[2]",
        spark__driver__memory="1g",
        spark__jars=",".join(jars),
        spark__sql__shuffle__partitions=2,
        spark__sql__session__timeZone="UTC",
    )
    yield made
    made.stop()


@pytest.fixture
def spark_with_kafka(spark: SparkSession) -> SparkSession:
    """Fails with Maven's message if Maven could not fetch the source."""
    tools.spark_source_jars()
    return spark
