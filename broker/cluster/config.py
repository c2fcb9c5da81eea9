"""The cluster that a broker stores in: table `[cluster]` of the TOML file with the settings.

Shards, their replicas and how to log in to them. `load_cluster` reads the table, checks it as a
whole and raises `ConfigError` with one sentence that names the key as it stands in the file. What
can only be seen on the servers is reported by `brokerhouse check`.

The slot ranges of the shards are used once, when a cluster's slot map is created; from then on the
map in the registry counts, so a shard that is added later has no `slots`.
"""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from brokerhouse.broker.settings.config import ConfigError
from brokerhouse.broker.settings.config_sources import CLICKHOUSE_PASSWORD_ENV, advice, read_toml
from brokerhouse.storage.slot_map import SlotMap

MAX_SLOTS = 4096
MAX_PASSWORD_FILE_BYTES = 65_536

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}", re.ASCII)
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


def _name(text: str) -> str:
    # It becomes part of SQL and of paths in Keeper.
    if not _NAME.fullmatch(text):
        raise ValueError("write letters, digits, _ and - only, 63 at most")
    return text


def parse_slots(text: object) -> tuple[range, ...]:
    """`0-15,20` as ranges. Raises ValueError."""
    ranges = []
    for each in str(text).split(",") if text != "" else ():
        match = _RANGE.fullmatch(each.strip())
        if match is None:
            raise ValueError('write slots like "0-31" or "0-15,40"')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"the range {each.strip()} ends before it starts")
        ranges.append(range(first, last + 1))
    return tuple(ranges)


def _url(text: str) -> str:
    example = "write a URL like http://ch-1:8123"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{example}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{example} or https://ch-1:8443")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "remove user and password from the URL: [cluster] has its own keys for them"
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"{example}, with nothing after the port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (8123 if parts.scheme == 'http' else 8443)}"


Name = Annotated[str, AfterValidator(_name)]
Url = Annotated[str, AfterValidator(_url)]
SlotRanges = Annotated[tuple[range, ...], BeforeValidator(parse_slots)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class ShardConfig(_Table):
    """One shard: ClickHouse servers that hold the same rows."""

    name: Name = Field(description="Its name in the slot map; never changes")
    slots: SlotRanges = Field((), description="Its slots when the cluster is created")
    replicas: tuple[Url, ...] = Field(
        min_length=1, description="Its servers, the preferred one first"
    )


class ClusterConfig(_Table):
    """Everything that `[cluster]` says, with defaults worked out. Immutable."""

    name: Name = Field(description="Name of the cluster in remote_servers of every server")
    slots: int = Field(
        64, ge=1, le=MAX_SLOTS, description="Number of slots; fixed when the cluster is created"
    )
    replicated: bool = Field(True, description="Tables are replicated by ClickHouse")
    distributed: bool = Field(True, description="Database brokerhouse shows the whole cluster")
    quorum: int = Field(
        0, ge=0, description="Replicas that must store an insert; 0: two, if shards have two"
    )
    quorum_min: int = Field(
        1, ge=1, description="How far the quorum may shrink while replicas are away"
    )
    user: str = Field("default", min_length=1, description="User that brokers log in as")
    password: SecretStr = Field(
        SecretStr(""), description="Its password; or set one of the next two"
    )
    password_file: Path | None = Field(None, description="File that holds the password")
    password_env: str | None = Field(
        None, min_length=1, description="Environment variable that holds the password"
    )
    tls_ca: Path | None = Field(
        None, description="CA certificates that https servers are checked against"
    )
    connect_timeout_ms: int = Field(
        2_000,
        ge=1,
        le=600_000,
        description="A server that accepts no connection is away after this",
    )
    request_timeout_ms: int = Field(
        10_000, ge=1, le=3_600_000, description="A server that does not answer is away after this"
    )
    shards: tuple[ShardConfig, ...] = Field(min_length=1, description="At least one")

    @model_validator(mode="after")
    def _check_as_a_whole(self) -> Self:
        _check_different("the shard name", [shard.name for shard in self.shards])
        _check_different("the replica", [url for shard in self.shards for url in shard.replicas])
        owners = _owners(self)
        if missing := [str(slot) for slot in range(self.slots) if slot not in owners]:
            some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise ValueError(f"no shard has the slots {some} of 0-{self.slots - 1}")
        fewest = min(self.shards, key=lambda shard: len(shard.replicas))
        replicas = len(fewest.replicas) if self.replicated else 1
        if self.quorum == 0:
            # The model is frozen, but still being built here.
            object.__setattr__(self, "quorum", min(2, replicas))
        if self.quorum > replicas:
            raise ValueError(
                f"quorum is {self.quorum}, but nothing is replicated (replicated = false)"
                if not self.replicated
                else f"quorum is {self.quorum}, but shard {fewest.name} has {replicas} "
                f"replica{'' if replicas == 1 else 's'}"
            )
        if self.quorum_min > self.quorum:
            raise ValueError(
                f"quorum_min ({self.quorum_min}) is larger than quorum ({self.quorum})"
            )
        if self.tls_ca is not None and not self.tls_ca.is_file():
            raise ValueError(f"tls_ca {self.tls_ca} is not a file")
        return self

    def first_map(self) -> SlotMap:
        """The slot map of a new cluster."""
        ranges = ((shard.name, slots) for shard in self.shards for slots in shard.slots)
        return SlotMap.first(ranges, self.slots)

    def shard(self, name: str) -> ShardConfig | None:
        """The shard of that name."""
        return next((shard for shard in self.shards if shard.name == name), None)


def load_cluster(path: Path, environ: Mapping[str, str] | None = None) -> ClusterConfig | None:
    """The cluster that a file describes; None where it has no `[cluster]`. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    table = read_toml(path).get("cluster")
    if table is None:
        return None
    if not isinstance(table, dict):
        raise ConfigError(f"cluster in {path} is not a table: write [cluster] and its keys below")
    values = dict(table)
    for key in ("password_file", "tls_ca"):
        if isinstance(values.get(key), str):
            values[key] = path.parent / values[key]
    try:
        config = ClusterConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error, path)) from None
    password = _password(config, path, environ)
    return config.model_copy(update={"password": SecretStr(password)})


def _password(config: ClusterConfig, path: Path, environ: Mapping[str, str]) -> str:
    ways = "password", "password_file", "password_env"
    given = [key for key in ways if key in config.model_fields_set]
    if len(given) > 1:
        raise ConfigError(f"{path} has both cluster.{given[0]} and cluster.{given[1]}: remove one")
    if config.password_file is not None:
        return _first_line(config.password_file)
    if config.password_env is not None:
        if config.password_env not in environ:
            raise ConfigError(
                f"cluster.password_env ({path}) names {config.password_env}, "
                "which is not set in the environment"
            )
        return environ[config.password_env]
    return config.password.get_secret_value() if given else environ.get(CLICKHOUSE_PASSWORD_ENV, "")


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_PASSWORD_FILE_BYTES)
    except UnicodeDecodeError as error:
        raise ConfigError(f"password_file {path} is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"password_file {path} cannot be read: {error.strerror}") from error
    return text.partition("\n")[0].removesuffix("\r")


def _owners(config: ClusterConfig) -> dict[int, str]:
    """Shard names by slot. Raises ValueError for a slot of two shards, or one beyond the last."""
    owners: dict[int, str] = {}
    for shard in config.shards:
        for slots in shard.slots:
            if slots[-1] >= config.slots:
                raise ValueError(
                    f"shard {shard.name} has the slot {slots[-1]}, but there are {config.slots}: "
                    f"the last one is {config.slots - 1}"
                )
            for slot in slots:
                if slot in owners:
                    raise ValueError(f"slot {slot} belongs to {owners[slot]} and {shard.name}")
                owners[slot] = shard.name
    return owners


def _check_different(what: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"{what} {name} occurs twice")


def _sentence(error: ValidationError, path: Path) -> str:
    """The first error: where it is, and how to correct it."""
    errors = error.errors(include_url=False)
    # A misspelt key explains one that is missing.
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    location = first["loc"]
    where = _key(location)
    match first["type"]:
        case "extra_forbidden":
            return f"{path} has the unknown key {where}: {_suggestion(location)}"
        case "missing":
            return f"{path} has no key {where}: {_meaning(location)}"
        case "value_error" if not location:
            return f"[cluster] in {path} cannot be used: {advice(first)}"
        case "string_type":
            right = "it must be text in quotes"
        case "tuple_type" | "model_type" | "model_attributes_type" if len(location) < 3:
            right = "write each shard as a table [[cluster.shards]]"
        case "tuple_type" | "model_type" | "model_attributes_type":
            right = "it must be a list"
        case "too_short":
            right = "it must not be empty"
        case _:
            right = advice(first)
    secret = location[-1] == "password" or "password" in right  # the latter: one in a URL
    shown = "" if secret else f" = {first['input']!r}"
    return f"{where}{shown} ({path}) cannot be used: {right}"


def _key(location: tuple[int | str, ...]) -> str:
    """Such as `cluster.shards[1].name`, counted from 1 as people do."""
    return "cluster" + "".join(
        f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in location
    )


def _fields(location: tuple[int | str, ...]) -> type[_Table]:
    return ShardConfig if location[0] == "shards" and len(location) > 1 else ClusterConfig


def _suggestion(location: tuple[int | str, ...]) -> str:
    known = list(_fields(location).model_fields)
    nearest = difflib.get_close_matches(str(location[-1]).lower(), known, n=1)
    return f"did you mean {nearest[0]}?" if nearest else f"the keys are {', '.join(known)}"


def _meaning(location: tuple[int | str, ...]) -> str:
    about = _fields(location).model_fields[str(location[-1])].description or ""
    return about[:1].lower() + about[1:]
