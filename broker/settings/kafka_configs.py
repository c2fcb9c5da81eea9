"""Kafka's broker configs. kafka_configs.tsv lists those of Apache Kafka 4.3.1, one per line, and
the throttles that its tools set and remove.

Most of them have no effect in this broker. But tools set them and read them back, so the configs
that Kafka can change while it runs are checked, stored and described. If an administrator would
rely on the effect of a config (security, listeners, limits, defaults of topics), the broker refuses
it with a reason. Configs that are settings of this broker are in
broker/settings/dynamic_settings.py, which overrides this file.

Columns of the file: name; type; default (\\N: none); the allowed values if the config can be
changed in this broker (`1..9`, `0..`, `a|b`); for whom it can change while Kafka runs (`all`: for
all brokers or one, `each`: for one broker only); why this broker refuses it, a key of `_REASONS`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from brokerhouse.storage.config_definitions import (
    ConfigDefinition,
    ConfigType,
    Rule,
    Value,
    anything,
    at_least,
    between,
    config,
    one_of,
)
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS

_FILE = Path(__file__).with_name("kafka_configs.tsv")
_NONE = r"\N"
_REASONS = {
    "tls": "this broker has no TLS",
    "sasl": "this broker does not authenticate Kafka clients",
    "listeners": "where this broker listens is read at the start, from `kafka` and `advertised`",
    "class": "this broker loads no Java classes",
    "directory": "this broker has one data directory",
    "limit": "this broker does not have this limit",
    "topic": "this broker has no such default for topics, set it for each topic",
}


@dataclass(frozen=True, slots=True)
class KafkaConfig:
    """A config of Kafka's brokers. `refused`: why this broker does not change it; else empty."""

    name: str
    type: ConfigType
    default: str | None
    rule: Rule
    changes: str
    refused: str

    @property
    def is_stored(self) -> bool:
        """Whether it can be changed here: then it is stored, and has no effect."""
        return bool(self.changes) and not self.refused

    @property
    def definition(self) -> ConfigDefinition:
        doc = _TOPIC_DOCS.get(self.name, "A config of Kafka's brokers.")
        return config(self.name, self.type, self.default or "", self.rule, doc)

    @property
    def documentation(self) -> str:
        if self.is_stored:
            return self.definition.documentation
        return "A config of Kafka's brokers. It has no effect in this broker."


_TOPIC_DOCS = {one.broker_name: one.doc for one in TOPIC_CONFIGS.values()}


def _read() -> Iterator[KafkaConfig]:
    with _FILE.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE, restval=""):
            yield KafkaConfig(
                row["name"],
                ConfigType[row["type"].upper()],
                None if row["default"] == _NONE else row["default"],
                _rule(row["rule"]),
                row["changes"],
                _REASONS[row["refused"]] if row["refused"] else "",
            )


def _rule(text: str) -> Rule:
    if not text:
        return anything
    found = re.fullmatch(r"(-?[\d.]+?)\.\.(-?[\d.]+)?( or -1)?", text)
    if found is None:
        return one_of(*text.split("|"))
    smallest, largest, or_default = found.groups()
    inside = at_least(int(smallest)) if largest is None else between(int(smallest), int(largest))

    def rule(value: Value) -> str | None:
        return None if or_default and value == -1 else inside(value)

    return rule


KAFKA_CONFIGS: Mapping[str, KafkaConfig] = MappingProxyType({one.name: one for one in _read()})
"""By name."""
