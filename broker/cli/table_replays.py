"""Waits for a replay that `brokerhouse tables replay` has asked for.

A replay gives each dead letter that it has looked at a new version, which is not older than the
request. So it is over when no dead letter of the feed is older.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import click

from brokerhouse.broker.cli.ctrl_c import CtrlC
from brokerhouse.sql.queries import query

ASKED_NOW = "greatest(now64(3), addMilliseconds(replay_asked_at, 1)) AS replay_asked_at"
"""The change of a definition that asks for it: later than the request before."""
_POLL_S = 0.1


class FeedSql(Protocol):
    """What `database` has of feeds."""

    @property
    def database(self) -> str: ...

    def rows(self, statement: str, **params: str) -> list[dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a replay is. `waiting`: dead letters that it has not looked at yet."""

    waiting: int
    dead_letters: int
    records: int
    rows: int

    @property
    def rows_text(self) -> str:
        return _several(self.rows, "row")

    @property
    def routed_text(self) -> str:
        """Of a router, which has no rows."""
        return f"{_several(self.records, 'record')} with a table now"

    @property
    def left_text(self) -> str:
        return f"{_several(self.dead_letters, 'dead letter')} left"


def _several(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class AskedReplay:
    """`topic_ids`: of topics that exist; of a deleted one nobody looks at its dead letters."""

    server: FeedSql
    name: str
    feed_id: str
    asked_ms: int
    topic_ids: Sequence[str]

    def wait(self, timeout_s: int, pressed: CtrlC) -> Replayed | None:
        """None after Ctrl-C. Raises `click.ClickException` if nobody does it.

        `timeout_s`: while no dead letter is parsed.
        """
        waiting, deadline = None, time.monotonic() + timeout_s
        while (found := self._state()).waiting:
            self._check_status()
            if found.waiting != waiting:
                waiting, deadline = found.waiting, time.monotonic() + timeout_s
            elif time.monotonic() > deadline:
                raise click.ClickException(
                    f"no broker has parsed dead letters of {self.name} for {timeout_s} s"
                    f" ({waiting:,} waiting): read the log of the broker that feeds the table, and"
                    " check that its setting feeds is true. It parses them as soon as it can"
                )
            if pressed.wait(_POLL_S):
                return None
        return found

    def _state(self) -> Replayed:
        [row] = self.server.rows(
            query("replay_progress", database=self.server.database),
            f=self.feed_id,
            asked=str(self.asked_ms),
            topics=json.dumps(self.topic_ids),
        )
        return Replayed(**row)

    def _check_status(self) -> None:
        """Raises `click.ClickException` if the feed does not run."""
        rows = self.server.rows(
            f"SELECT status FROM {self.server.database}.table_feeds WHERE feed_id = {{f:UUID}}",
            f=self.feed_id,
        )
        if not rows:
            raise click.ClickException(f"{self.name} was dropped: its dead letters stay")
        if rows[0]["status"] == "paused":
            raise click.ClickException(
                f"{self.name} is paused: its dead letters are parsed again when you run"
                f" `brokerhouse tables resume {self.name}`"
            )


def asked_replay(server: FeedSql, feed: Mapping[str, Any]) -> AskedReplay:
    """The last replay that was asked for. `feed`: a row of `table_feeds`."""
    [newest] = server.rows(
        "SELECT max(toUnixTimestamp64Milli(replay_asked_at)) AS asked_ms"
        f" FROM {server.database}.table_feed_versions WHERE feed_id = {{f:UUID}}",
        f=feed["feed_id"],
    )
    topics = server.rows(
        f"SELECT toString(topic_id) AS id FROM {server.database}.topics"
        " WHERE has(JSONExtract({topics:String}, 'Array(String)'), name)",
        topics=json.dumps(feed["topics"]),
    )
    ids = [one["id"] for one in topics]
    return AskedReplay(server, feed["name"], feed["feed_id"], newest["asked_ms"], ids)
