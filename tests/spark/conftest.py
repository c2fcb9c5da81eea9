"""One Spark for all tests here: it takes seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import session
from tests.support import tools


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """With Spark's own Kafka source, where Maven has fetched it."""
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
    """Fails with what Maven said, if it could not fetch the source."""
    tools.spark_source_jars()
    return spark
