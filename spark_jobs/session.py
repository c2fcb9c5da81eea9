"""Spark sessions for jobs, docs and tests: quiet, and with the data source registered.

pyspark is imported only when a session is made, so that a missing package is reported in one
sentence.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
OLDEST_PYSPARK = (4, 2)
"""The first version whose streams accept a limit of records per batch."""
LOGGING = Path(__file__).with_name("log4j2.properties")
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING}",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without it Spark refuses every data source that accepts filters.
    "spark.sql.python.filterPushdown.enabled": "true",
}


class SparkMissing(Exception):
    """Something that Spark needs is missing; the message says in one sentence what to install."""


def session(
    app_name: str, master: str | None = "local[*]", **conf: str | int | bool
) -> SparkSession:
    """A session in which `spark.read.format("brokerhouse")` works; an existing one is reused.

    `master=None` leaves the master to spark-submit. In `conf`, `__` stands for a dot in a name:
    `spark__sql__shuffle__partitions=4`. Raises SparkMissing.
    """
    properties = _checked_properties(app_name, master, conf)
    from pyspark.sql import SparkSession

    from brokerhouse.spark_jobs.datasource import BrokerhouseDataSource

    builder = SparkSession.builder
    for name, value in properties.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        # pyspark does not support pandas 3 yet; no pandas data is passed to it here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(BrokerhouseDataSource)
    return spark


def spark_context(
    app_name: str, master: str | None = "local[*]", **conf: str | int | bool
) -> SparkContext:
    """For tasks in Python, without SQL: it takes about half the processor time of a session.

    Parameters and errors are those of `session`.
    """
    properties = _checked_properties(app_name, master, conf)
    from pyspark import SparkConf, SparkContext
    from pyspark.errors.exceptions.captured import install_exception_handler

    # A session does this, too: errors of tasks are Python's, not a stack trace of Java.
    install_exception_handler()
    configuration = SparkConf()
    for name, value in properties.items():
        configuration.set(name, value)
    return SparkContext.getOrCreate(configuration)


def _checked_properties(
    app_name: str, master: str | None, conf: Mapping[str, str | int | bool]
) -> dict[str, str]:
    """Raises SparkMissing."""
    check_installed()
    # Without it, Python workers run the first `python3` of the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = {name.replace("__", "."): _text(value) for name, value in conf.items()}
    fixed = {"spark.app.name": app_name} | ({} if master is None else {"spark.master": master})
    return {**fixed, **QUIET, **given}


def check_installed() -> None:
    """Raises SparkMissing unless pyspark, what it needs, and a Java that can run it are there."""
    try:
        import pandas
        import pyarrow
        import pyspark
    except ImportError as error:
        raise SparkMissing(
            f"{error.name} is missing: pip install 'brokerhouse[spark]', and Java {OLDEST_JAVA}"
        ) from error
    del pandas, pyarrow
    if tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2]) < OLDEST_PYSPARK:
        raise SparkMissing(
            f"pyspark is {pyspark.__version__}, but 4.2 is the oldest that works:"
            " pip install --upgrade 'brokerhouse[spark]'"
        )
    version = java_version()
    wanted = f"install Java {OLDEST_JAVA} (apt-get install openjdk-{OLDEST_JAVA}-jre-headless)"
    if version is None:
        raise SparkMissing(f"Spark needs Java: {wanted}")
    if version < OLDEST_JAVA:
        raise SparkMissing(f"Spark needs Java {OLDEST_JAVA}, but this is Java {version}: {wanted}")


def java_version() -> int | None:
    """The major version of the Java that Spark would start; None if Java is not installed."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        return None
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else None


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
