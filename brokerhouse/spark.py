"""What programs import for Spark; docs/spark.md shows how.

* `session` makes a Spark session in which `spark.read.format("brokerhouse")` works; `SparkMissing`
  says in one sentence what has to be installed first.
* `BrokerhouseDataSource` is to be registered in a session of one's own. It needs pyspark.
* `JOBS` is the folder of the jobs' files, for spark-submit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerhouse.spark_jobs.session import SparkMissing, session

if TYPE_CHECKING:
    from brokerhouse.spark_jobs.datasource import BrokerhouseDataSource

__all__ = ["JOBS", "BrokerhouseDataSource", "SparkMissing", "session"]

JOBS = Path(__file__).with_name("spark_jobs")


def __getattr__(name: str) -> Any:
    """The data source, once somebody asks for it: without pyspark the rest can be imported."""
    if name != "BrokerhouseDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from brokerhouse.spark_jobs.datasource import BrokerhouseDataSource

    return BrokerhouseDataSource
