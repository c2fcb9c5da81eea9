"""What a config is: name, type, default, allowed values, what it does; and how a value is parsed.

Topic configs (storage/topic_configs.py) and those of other resources
(broker/settings/resource_configs.py) are tables of `ConfigDefinition`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from brokerhouse.protocol.errors import InvalidConfig

Value = bool | int | float | str | tuple[str, ...]

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1


class ConfigType(IntEnum):
    """The type of a config's value, by its number in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


Rule = Callable[[Value], str | None]
"""Takes a parsed value. Returns the end of "it must ..." if the value is not allowed, else None."""


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """One config.

    `default` is text, `broker_name` the broker config that gives a topic its default, `has_effect`
    whether this broker's behaviour depends on the value.
    """

    name: str
    type: ConfigType
    default: str
    rule: Rule
    has_effect: bool
    broker_name: str | None
    doc: str

    @property
    def documentation(self) -> str:
        if self.has_effect:
            return self.doc
        return f"{self.doc} The value is checked and stored; it has no effect in this broker."

    def parse(self, text: str) -> Value:
        """The typed value of `text`. Raises `InvalidConfig`, which says what is allowed."""
        value = _parse(self.type, text.strip())
        problem = _EXPECTED[self.type] if value is None else self.rule(value)
        if value is None or problem is not None:
            raise InvalidConfig(f"{self.name} = {text!r} cannot be used: it must {problem}.")
        return value


def _parse(kind: ConfigType, text: str) -> Value | None:
    """Parses text as Kafka's ConfigDef does; None if `text` is not a value of this type."""
    match kind:
        case ConfigType.BOOLEAN:
            return {"true": True, "false": False}.get(text.lower())
        case ConfigType.INT:
            return _whole_number(text, _INT32)
        case ConfigType.LONG:
            return _whole_number(text, _INT64)
        case ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                return None
        case ConfigType.LIST:
            return tuple(dict.fromkeys(re.split(r"\s*,\s*", text))) if text else ()
        case _:
            return text


def _whole_number(text: str, largest: int) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        return None
    number = int(text)
    return number if -largest - 1 <= number <= largest else None


_EXPECTED = {
    ConfigType.BOOLEAN: "be true or false",
    ConfigType.INT: "be a whole number of at most 32 bits",
    ConfigType.LONG: "be a whole number of at most 64 bits",
    ConfigType.DOUBLE: "be a number",
}


def anything(_: Value) -> str | None:
    return None


def between(smallest: float, largest: float) -> Rule:
    def rule(value: Value) -> str | None:
        assert isinstance(value, int | float)
        ok = smallest <= value <= largest
        return None if ok else f"be from {smallest} to {largest}"

    return rule


def at_least(smallest: int) -> Rule:
    def rule(value: Value) -> str | None:
        assert isinstance(value, int)
        return None if value >= smallest else f"be at least {smallest}"

    return rule


def one_of(*names: str) -> Rule:
    def rule(value: Value) -> str | None:
        return None if value in names else f"be one of {', '.join(names)}"

    return rule


def each_one_of(*names: str) -> Rule:
    def rule(value: Value) -> str | None:
        assert isinstance(value, tuple)
        ok = all(item in names for item in value)
        return None if ok else f"be a comma-separated list of {', '.join(names)}"

    return rule


def config(
    name: str,
    kind: ConfigType,
    default: str | int | float | bool,
    rule: Rule,
    doc: str,
    broker_name: str | None = None,
    has_effect: bool = False,
) -> ConfigDefinition:
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return ConfigDefinition(name, kind, text, rule, has_effect, broker_name, doc)
