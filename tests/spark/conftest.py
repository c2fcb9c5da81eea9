"""One Spark for all tests here: it takes seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session(
        "brokerhouse tests",
        "local[2]",
        spark__driver__memory="1g",
        spark__sql__shuffle__partitions=2,
        spark__sql__session__timeZone="UTC",
    )
    yield made
    made.stop()
