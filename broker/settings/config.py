"""The settings: names, defaults, limits. broker/settings/config_sources.py reads their values.

Every field has its unit and one line of description. `brokerhouse config`, the flags of
`brokerhouse serve` and docs/configuration.md are made from the fields. A value that no user has a
reason to change does not belong here.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic.fields import FieldInfo

from brokerhouse.broker.net.named_addresses import NamedAddress, listeners_text, parse_listeners
from brokerhouse.common.address import Address, parse_address
from brokerhouse.common.process import memory_bytes
from brokerhouse.sql.http.settings import SqlLimits, SqlQueue, SqlSettings
from brokerhouse.storage.engine import PeopleBounds

# For its first model Pydantic would look for plugins in every package that is installed: 0.01 s.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_SQL_MEMORY_MIN = 16 * _MIB
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_WAREHOUSE = re.compile(r"[A-Za-z0-9/._-]+")


class ConfigError(Exception):
    """The settings cannot be used. The message is one sentence that tells the user why."""


def _address_text(text: str) -> str:
    return str(parse_address(text))


def _listeners_text(text: str) -> str:
    return listeners_text(parse_listeners(text))


def _advertised_text(text: str) -> str:
    if any(one.port == 0 for one in parse_listeners(text)):
        raise ValueError("clients cannot connect to port 0: write the port that they should use")
    return _listeners_text(text)


AddressText = Annotated[str, AfterValidator(_address_text)]
ListenersText = Annotated[str, AfterValidator(_listeners_text)]
AdvertisedText = Annotated[str, AfterValidator(_advertised_text)]


def _setting(default: Any, unit: str, description: str, **limits: Any) -> Any:
    """A field with the unit that its value is counted in; `limits` are pydantic's (`ge`, `le`)."""
    return Field(default, description=description, json_schema_extra={"unit": unit}, **limits)


def _count(default: int, unit: str, description: str, **limits: int) -> Any:
    """How many of something: at least one."""
    return _setting(default, unit, description, ge=1, **limits)


def _bytes(default: int, description: str, **limits: int) -> Any:
    return _setting(default, "bytes", description, **limits)


def _ms(default: int, description: str, **limits: int) -> Any:
    return _setting(default, "ms", description, **limits)


class Settings(BaseModel):
    """Everything that can be set, with defaults that suit one machine. Immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    data_dir: Path = _setting(
        Path("./data"), "path", "Directory that holds all data; one running broker per directory"
    )
    kafka: ListenersText = _setting(
        "127.0.0.1:9092",
        "host:port",
        "Listeners for Kafka clients: host:port (port 0 picks one), or NAME://host:port,...",
    )
    http: AddressText = _setting(
        "127.0.0.1:8123",
        "host:port",
        "Address of the HTTP server (SQL, /metrics); port 0 picks a free port",
    )
    advertised: AdvertisedText | None = _setting(
        None, "host:port", "Addresses that clients use, if they differ from those in `kafka`"
    )
    node_id: int = _setting(1, "id", "Id of this broker in Metadata answers", ge=0, le=_INT32_MAX)
    rack: str | None = _setting(
        None, "name", "Rack of this broker, as clients see it", min_length=1
    )
    broker_session_timeout_ms: int = _ms(
        7_000,
        "In a cluster: a broker that is silent for this long loses its partitions to others",
        ge=500,
        le=600_000,
    )
    auto_create_topics: bool = _setting(
        True, "true/false", "Create a topic when a client first asks for it"
    )
    num_partitions: int = _count(
        1, "partitions", "Partitions of a new topic, unless its creator gives a number", le=10_000
    )
    message_max_bytes: int = _bytes(
        1_048_588,
        "Largest record batch accepted, compressed, unless a topic overrides it",
        ge=1,
        le=_INT32_MAX,
    )
    request_max_bytes: int = _bytes(
        104_857_600,
        "Largest request accepted; a client that sends a larger one is disconnected",
        ge=1024,
        le=_INT32_MAX,
    )
    in_flight_max_bytes: int = _bytes(
        256 * _MIB,
        "Memory for unanswered requests of all connections; at the limit no more are read",
        ge=1024,
    )
    disk_reserve_bytes: int = _bytes(
        0,
        "Disk space reserved for deleting when the disk is full; 0 for a twentieth of the disk",
        ge=0,
    )
    response_memory_bytes: int = _bytes(
        0,
        "Memory for unsent responses of all connections; 0 for an eighth of the machine's",
        ge=0,
    )
    response_send_timeout_ms: int = _ms(
        30_000, "A client that does not read its responses for this long is disconnected", ge=100
    )
    max_connections: int = _count(
        10_000, "connections", "Largest number of open Kafka connections; further ones are closed"
    )
    connections_max_idle_ms: int = _ms(
        600_000, "A connection without a request for this long is closed", ge=1000
    )
    lanes: int = _count(
        2, "lanes", "Inserts that run in parallel; a partition always uses the same lane", le=64
    )
    linger_ms: int = _ms(
        0, "Wait this long for more records before an insert starts", ge=0, le=60_000
    )
    block_max_bytes: int = _bytes(
        16 * _MIB, "No further batch is added to an insert of this size", ge=1024
    )
    block_max_rows: int = _count(
        65_536, "records", "No further batch is added to an insert of this many records"
    )
    decompressed_max_bytes: int = _bytes(
        32 * _MIB,
        "Largest batch after decompression, plus 71 bytes for each record; for all topics",
        ge=1024,
        le=_INT32_MAX,
    )
    decompression_memory_bytes: int = _bytes(
        0, "Memory for large batches that are decompressed; 0 for 1/16 of the machine's", ge=0
    )
    tail_cache_bytes: int = _bytes(
        128 * _MIB, "Memory for the latest batches, for consumers that keep up", ge=0
    )
    cold_cache_bytes: int = _bytes(
        64 * _MIB,
        "Memory for batches that are read ahead from the table, for other consumers",
        ge=0,
    )
    fetch_max_bytes: int = _bytes(
        57_671_680, "Largest answer to one fetch; one batch is always sent", ge=1024
    )
    fetch_sessions_max: int = _setting(
        1000, "sessions", "Incremental fetch sessions remembered (KIP-227)", ge=0
    )
    fsync: bool = _setting(
        False, "true/false", "Flush every insert to the disk before it is acknowledged"
    )
    journal_max_bytes: int = _bytes(
        256 * _MIB,
        "Acknowledged rows that wait in the journal and in memory; at the limit inserts wait",
        ge=1024,
    )
    journal_insert_bytes: int = _bytes(
        96 * _MIB,
        "The journal inserts rows into the table when they have this size, not packed",
        ge=1,
    )
    journal_insert_rows: int = _setting(
        1_048_576, "records", "The journal inserts rows into the table when it has this many", ge=1
    )
    journal_insert_ms: int = _ms(
        1000,
        "How long records wait in the journal before an insert; rows of small tables: 4 times this",
        ge=0,
    )
    journal_skip_damage: bool = _setting(
        False,
        "true/false",
        "Start without the damaged entries of a damaged journal; for one start only",
    )
    producer_id_expiration_ms: int = _ms(
        86_400_000, "An idempotent producer silent for this long is forgotten", ge=1000
    )
    transaction_max_timeout_ms: int = _ms(
        900_000, "Longest transaction.timeout.ms that a producer can ask for", ge=1000
    )
    transactional_ids_max: int = _count(
        100_000, "ids", "Largest number of transactional ids; further ones are refused"
    )
    transactional_id_expiration_ms: int = _ms(
        604_800_000, "A transactional id that is not used for this long is forgotten", ge=1000
    )
    group_min_session_timeout_ms: int = _ms(
        6_000, "Shortest session time-out that a group member can ask for", ge=1
    )
    group_max_session_timeout_ms: int = _ms(
        1_800_000, "Longest session time-out that a group member can ask for", ge=1
    )
    group_initial_rebalance_delay_ms: int = _ms(
        3_000, "An empty group waits this long for more members before it starts", ge=0
    )
    group_max_size: int = _count(1000, "members", "Largest number of members in one consumer group")
    groups_max_bytes: int = _bytes(
        256 * _MIB,
        "Subscriptions and assignments of all groups; at the limit no new member is accepted",
        ge=1024,
    )
    retention_ms: int = _ms(
        604_800_000,
        "Age at which records are deleted, unless a topic overrides it; -1 for never",
        ge=-1,
        le=_INT64_MAX,
    )
    retention_check_interval_ms: int = _ms(
        300_000,
        "How often topics are checked for records to delete (retention.ms, retention.bytes)",
        ge=1,
    )
    offsets_retention_minutes: int = _setting(
        10_080,
        "minutes",
        "Committed offsets of a group without members are kept this long",
        ge=1,
        le=_INT32_MAX,
    )
    offset_metadata_max_bytes: int = _bytes(
        4096, "Largest metadata that a consumer can commit with an offset", ge=0
    )
    feeds: bool = _setting(
        True,
        "true/false",
        "Whether brokers fill tables from topics; false: `brokerhouse feed` does it",
    )
    schema_registry: SecretStr | None = _setting(None, "URL", "Schema registry of feeds")
    sql_user: str | None = _setting(
        None, "name", "User who can also write through SQL", min_length=1
    )
    sql_password: SecretStr | None = _setting(
        None, "secret", "Password of sql_user; better set in the environment or the file"
    )
    sql_anonymous: Literal["loopback", "always", "never"] = _setting(
        "loopback",
        "loopback/always/never",
        "Who can read through SQL without credentials: clients on this machine, all, or nobody",
    )
    sql_memory_bytes: int = _bytes(
        0, "Memory of all SQL queries together; 0 for a quarter of the machine's memory", ge=0
    )
    sql_max_queries: int = _count(
        4,
        "queries",
        "SQL queries that run at once; a quarter, at least one of two, is reserved for sql_user",
        le=1000,
    )
    sql_max_memory_bytes: int = _bytes(
        0, "Memory that one SQL query can use; 0 for sql_memory_bytes / sql_max_queries", ge=0
    )
    sql_max_threads: int = _count(1, "threads", "Threads that one SQL query can use", le=1024)
    sql_max_execution_ms: int = _ms(
        300_000,
        "An SQL query that takes longer is ended; sql_user can set a higher limit for a query",
        ge=1,
        le=_INT32_MAX,
    )
    sql_max_waiting: int = _setting(
        100, "queries", "SQL queries that wait for their turn; further ones are refused", ge=0
    )
    sql_wait_ms: int = _ms(
        10_000, "An SQL query waits this long for its turn, then it is refused", ge=0, le=3_600_000
    )
    sql_temporary_bytes: int = _bytes(
        4 * _GIB,
        "Disk space for temporary files of SQL queries, and as much for buffered results",
        ge=_MIB,
    )
    iceberg_warehouse: Path | None = _setting(
        None,
        "path",
        "Directory of Iceberg tables that SQL can read with icebergLocal; for a single broker",
    )
    http_max_connections: int = _count(
        200,
        "connections",
        "Largest number of open HTTP connections; further ones replace idle ones",
    )
    http_hosts: str = _setting(
        "",
        "names",
        "Names of this server that readers without credentials can use, separated by commas",
    )
    metrics_partitions_max: int = _setting(
        1000,
        "partitions",
        "Partitions in /metrics, and as many lags of groups (the largest); 0 for none",
        ge=0,
        le=100_000,
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "debug/info/warning/error", "Lowest severity of the log lines that are written"
    )
    log_format: Literal["console", "json"] = _setting(
        "console", "console/json", "Format of log lines: for people or for programs"
    )
    shutdown_timeout_ms: int = _ms(30_000, "A stop waits this long for requests in progress", ge=0)

    @model_validator(mode="after")
    def _check_sizes_against_each_other(self) -> Self:
        for smaller, larger in (
            ("message_max_bytes", "request_max_bytes"),
            ("request_max_bytes", "in_flight_max_bytes"),
            ("message_max_bytes", "decompressed_max_bytes"),
            ("group_min_session_timeout_ms", "group_max_session_timeout_ms"),
        ):
            if getattr(self, larger) < getattr(self, smaller):
                raise ValueError(
                    f"{larger} ({getattr(self, larger)}) is smaller than {smaller} "
                    f"({getattr(self, smaller)}): raise the first or lower the second"
                )
        _check_sql_memory(self)
        _check_schema_registry(self)
        _check_advertised(self)
        _check_sql_user(self)
        return self

    @property
    def listeners(self) -> tuple[NamedAddress, ...]:
        """`kafka` as names, hosts and ports. Brokers of a cluster connect to the first one."""
        return parse_listeners(self.kafka)

    @property
    def http_address(self) -> Address:
        """`http` as host and port."""
        return parse_address(self.http)

    @property
    def advertised_listeners(self) -> tuple[NamedAddress, ...]:
        """`advertised` as names, hosts and ports; clients of others connect as `kafka` says."""
        return () if self.advertised is None else parse_listeners(self.advertised)

    @property
    def decompression_budget_bytes(self) -> int:
        """`decompression_memory_bytes` on this machine: enough for one batch of the largest."""
        own = self.decompression_memory_bytes
        return max(own or memory_bytes() // 16, self.decompressed_max_bytes)

    @property
    def response_budget_bytes(self) -> int:
        """`response_memory_bytes` on this machine."""
        return self.response_memory_bytes or memory_bytes() // 8

    @property
    def sql(self) -> SqlSettings:
        """The settings `sql_*`, for the HTTP interface."""
        secret = self.sql_password
        return SqlSettings(
            data_dir=self.data_dir,
            limits=self.sql_limits,
            anonymous=self.sql_anonymous,
            user=self.sql_user,
            password=None if secret is None else secret.get_secret_value(),
            max_connections=self.http_max_connections,
            hosts=self.names_for_http,
        )

    @property
    def sql_limits(self) -> SqlLimits:
        """What people's SQL may use, worked out for this machine."""
        total = self.sql_memory_bytes or max(memory_bytes() // 4, _SQL_MEMORY_MIN)
        each = self.sql_max_memory_bytes or max(total // self.sql_max_queries, _SQL_MEMORY_MIN)
        each = min(each, total)
        at_once = min(self.sql_max_queries, total // each)
        return SqlLimits(
            max_queries=at_once,
            kept_for_writer=0 if self.sql_user is None or at_once == 1 else max(at_once // 4, 1),
            bounds=PeopleBounds(
                each,
                self.sql_max_execution_ms,
                self.sql_temporary_bytes,
                self.sql_max_threads,
                None if self.iceberg_warehouse is None else str(self.iceberg_warehouse),
            ),
            queue=SqlQueue(self.sql_max_waiting, self.sql_wait_ms),
        )

    @property
    def names_for_http(self) -> frozenset[str]:
        """Names of this server in a Host header: `http_hosts`, and the advertised ones."""
        names = {name.strip().lower() for name in self.http_hosts.split(",")} - {""}
        return frozenset(names | {one.host.lower() for one in self.advertised_listeners})


def _check_advertised(settings: Settings) -> None:
    known = [one.listener for one in settings.listeners]
    for one in settings.advertised_listeners:
        if one.listener not in known:
            raise ValueError(
                f"advertised has an address of the listener {one.listener}, but kafka has only"
                f" {', '.join(known)}: write NAME://HOST:PORT in both"
            )


def _check_sql_memory(settings: Settings) -> None:
    for name in ("sql_memory_bytes", "sql_max_memory_bytes"):
        if 0 < getattr(settings, name) < _SQL_MEMORY_MIN:
            raise ValueError(
                f"{name} ({getattr(settings, name)}) must be 0 or at least {_SQL_MEMORY_MIN}"
            )
    if 0 < settings.sql_memory_bytes < settings.sql_max_memory_bytes:
        raise ValueError(
            f"sql_memory_bytes ({settings.sql_memory_bytes}) is smaller than sql_max_memory_bytes"
            f" ({settings.sql_max_memory_bytes}): raise the first or lower the second"
        )


def _check_sql_user(settings: Settings) -> None:
    if (settings.sql_user is None) != (settings.sql_password is None):
        missing = "sql_user" if settings.sql_user is None else "sql_password"
        raise ValueError(f"sql_user and sql_password belong together: set {missing} too")


def limits_of_this_machine(settings: Settings) -> Mapping[str, int]:
    """Settings whose value is worked out from what the machine has."""
    sql = settings.sql_limits
    return {
        "decompression_memory_bytes": settings.decompression_budget_bytes,
        "response_memory_bytes": settings.response_budget_bytes,
        "sql_memory_bytes": sql.memory_bytes,
        "sql_max_memory_bytes": sql.bounds.max_memory_bytes,
        "sql_max_queries": sql.max_queries,
    }


def schema_registry_url(settings: Settings) -> str:
    """The schema registry, with its user and password; nothing if there is none."""
    secret = settings.schema_registry
    return "" if secret is None else secret.get_secret_value()


def _check_schema_registry(settings: Settings) -> None:
    parsed = urlsplit(schema_registry_url(settings))
    if settings.schema_registry is not None and (
        parsed.scheme not in ("http", "https") or not parsed.hostname
    ):
        raise ValueError("schema_registry must be a URL, for example http://127.0.0.1:8081")


def prepare_data_dir(settings: Settings) -> Path:
    """Create the data directory if needed. Raises ConfigError if it cannot be written to."""
    path = settings.data_dir.resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(
            f"data_dir {path} cannot be written ({error.strerror}): "
            "name a directory that this user may write to"
        ) from error
    return path


def enter_warehouse(settings: Settings) -> Settings:
    """Make `iceberg_warehouse` the working directory: the engine reads local Iceberg tables only
    below it. Returns the settings with absolute paths. Raises ConfigError.
    """
    if settings.iceberg_warehouse is None:
        return settings
    paths = {name: getattr(settings, name).resolve() for name in ("data_dir", "iceberg_warehouse")}
    if not _WAREHOUSE.fullmatch(str(paths["iceberg_warehouse"])):
        # The engine compares paths with rights as URIs, and not at all where there is a space.
        raise ConfigError(
            f"iceberg_warehouse {str(paths['iceberg_warehouse'])!a} may have only"
            " letters, digits and /._- in its path"
        )
    try:
        os.chdir(paths["iceberg_warehouse"])
    except OSError as error:
        raise ConfigError(
            f"iceberg_warehouse {paths['iceberg_warehouse']} cannot be read ({error.strerror}): "
            "name a directory that exists"
        ) from error
    return settings.model_copy(update=paths)


def as_text(value: object) -> str:
    """A value as the user would write it; empty where it is not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def unit(field: FieldInfo) -> str:
    """The unit of a setting's value."""
    assert isinstance(field.json_schema_extra, dict), "every setting is made by _setting"
    return str(field.json_schema_extra["unit"])
