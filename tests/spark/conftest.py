"""One Spark session for all tests here, because it takes seconds to start."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import session
from tests.support import tools

# Tests are short, so a Java that compiles fast takes half the processor time of one that compiles
# well: 43 s instead of 82 s for test_session and test_lag_job. Processes of tests inherit this.
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


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
