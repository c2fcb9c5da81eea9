"""The loggers of this process as configs of a BROKER_LOGGER resource (KIP-412).

A logger is named like the module that writes to it, without `brokerhouse.`: `broker.log.lane`. A
package such as `broker` sets the level for all of its modules. Levels have Kafka's names. As in
Kafka, a restart forgets them; the setting `log_level`, the level of `root`, is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from brokerhouse.common.logging import PACKAGE, shown_name
from brokerhouse.protocol.errors import InvalidConfig, InvalidRequest

ROOT = "root"
_LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "TRACE": 5,
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "FATAL": logging.CRITICAL,
    }
)


def levels() -> Iterator[tuple[str, str]]:
    """The level of every logger, `root` first."""
    yield ROOT, _name(logging.getLogger().level)
    for name in sorted(logging.root.manager.loggerDict, key=shown_name):
        yield shown_name(name), _name(logging.getLogger(name).getEffectiveLevel())


def check(name: str, level: str | None) -> None:
    """Raises `InvalidConfig` or `InvalidRequest` unless `set_level` can do it."""
    if name != ROOT and _whole_name(name) is None:
        raise InvalidConfig(f"The logger {name!r} does not exist.")
    if level is None:
        if name == ROOT:
            raise InvalidRequest("The level of the root logger cannot be removed.")
    elif level not in _LEVELS:
        raise InvalidConfig(
            f"{level!r} is not a level of the logger {name}: write one of {', '.join(_LEVELS)}."
        )


def set_level(name: str, level: str | None) -> None:
    """None: the level of the packages that the logger is in counts again."""
    logger = logging.getLogger() if name == ROOT else logging.getLogger(_whole_name(name) or name)
    logger.setLevel(logging.NOTSET if level is None else _LEVELS[level])


def _whole_name(name: str) -> str | None:
    """The name of the logger that `levels` calls so; None if there is none."""
    loggers = logging.root.manager.loggerDict
    return next((whole for whole in (f"{PACKAGE}{name}", name) if whole in loggers), None)


def _name(level: int) -> str:
    reached = [name for name, least in _LEVELS.items() if level >= least]
    return reached[-1] if reached else "TRACE"
