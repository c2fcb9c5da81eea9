"""The writer of a feed `DATABASE.*`: makes a feed for each table that records name.

A block of it has no rows. Before it is complete, each table that its records name has a feed, which
begins where the router began; so nothing depends on when a table was first named. Records that name
no table, or none that can be made, are dead letters of the router.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID, uuid5

from brokerhouse.common.clock import wall_ms
from brokerhouse.feeds.blocks import BlockCounts, Offsets
from brokerhouse.feeds.definition import FeedDefinition, FeedOptions, FeedStatus, Format
from brokerhouse.feeds.inference import InferredColumn, field_columns, parse_sample
from brokerhouse.feeds.routing import TABLE_NAME
from brokerhouse.feeds.server_tables import FeedTables
from brokerhouse.feeds.statements import DEAD, SOURCE, WITH_VALUE
from brokerhouse.feeds.stored_definitions import StoredDefinitions
from brokerhouse.feeds.writer import (
    MARKED_AT,
    MAX_OFFSET,
    FeedSession,
    FeedSource,
    PartitionWriter,
)
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Parameter

TABLES_MAX = 1000
"""A router makes feeds for so many tables: records may name anything."""
_SAMPLE_RECORDS = 1000
_CAN_BE_NAMED = f"match(named, '^{TABLE_NAME.pattern}$')"


class RouteWriter(PartitionWriter):
    def __init__(
        self, session: FeedSession, tables: FeedTables, definitions: StoredDefinitions
    ) -> None:
        super().__init__(session)
        self._tables = tables
        self._definitions = definitions

    async def write(
        self, feed: FeedDefinition, source: FeedSource, offsets: Offsets, token: str, *, again: bool
    ) -> BlockCounts:
        await self._session.readable()
        params = source.range(offsets)
        params |= await self._open_all(feed, SOURCE, params)
        lost = f"FROM ({_named(feed, SOURCE)}) WHERE {_LOST}"
        [[dead_letters]] = await self._session.rows(f"SELECT count() {lost}", params)
        if dead_letters:
            await self._session.execute(
                query("store_lost_records", why=_WHY, lost=lost),
                {**params, "feed": feed.name, "feed_id": feed.feed_id},
            )
        return BlockCounts(0, dead_letters)

    async def take_away(
        self, feed: FeedDefinition, token: str, *, with_later: bool = False
    ) -> None:
        """There are no rows."""

    async def replay(self, feed: FeedDefinition, source: FeedSource) -> BlockCounts:
        await self._session.readable()
        params: dict[str, Parameter] = {
            **source.range(Offsets(0, MAX_OFFSET)),
            "feed_id": feed.feed_id,
            "asked_ms": feed.replay_asked_ms,
        }
        dead = f"{SOURCE} AND offset IN (SELECT offset {DEAD})"
        params |= await self._open_all(feed, dead, params)
        found = f"FROM ({_named(feed, dead)}) WHERE NOT {_LOST}"
        [[before]] = await self._session.rows(f"SELECT count() {DEAD}", params)
        [[taken]] = await self._session.rows(f"SELECT count() {found}", params)
        if taken:
            await self._session.execute(
                query("mark_routed_records", time=MARKED_AT, dead=DEAD, found=found), params
            )
        await self._renew_dead_letters(params)
        return BlockCounts(0, before - taken)

    async def _open_all(
        self, feed: FeedDefinition, records: str, params: Mapping[str, Parameter]
    ) -> dict[str, Parameter]:
        """Make the feeds that are missing. Returns the parameters of `_LOST` and `_WHY`."""
        feeds = await self._definitions.all_by_name()
        own = {
            one.options.route_value for one in feeds.values() if one.options.router == feed.feed_id
        }
        named = await self._session.rows(
            query(
                "tables_without_feed",
                records=_named(feed, records),
                can_be_named=_CAN_BE_NAMED,
                limit=str(TABLES_MAX),
            ),
            {**params, "own": sorted(own)},
        )
        others, unknown = [], []
        for (table,) in named:
            other = feeds.get(f"{feed.database}.{table}")
            if other is not None and other.status is not FeedStatus.DROPPED:
                others.append(table)
            elif len(own) < TABLES_MAX:
                child = routed(feed, table)
                if await self._make(feed, child, records, params):
                    own.add(table)
                else:
                    unknown.append(table)
        return {"own": sorted(own), "others": others, "unknown": unknown}

    async def _make(
        self,
        feed: FeedDefinition,
        child: FeedDefinition,
        records: str,
        params: Mapping[str, Parameter],
    ) -> bool:
        """The table, if there is none, and its feed. False if its columns cannot be known."""
        if not await self._tables.exists(child):
            if feed.options.like:
                await self._tables.make_like(child, feed.options.like)
            elif columns := await self._columns(child, records, params):
                await self._tables.make(child, columns)
            else:
                return False
        await self._definitions.add(child)
        return True

    async def _columns(
        self, child: FeedDefinition, records: str, params: Mapping[str, Parameter]
    ) -> Sequence[InferredColumn]:
        """For the fields of some records that are for the table."""
        if child.format is not Format.JSON:
            return []
        sample = await self._session.rows(
            query(
                "sample_values",
                records=records,
                with_value=WITH_VALUE,
                condition=child.condition,
                limit=str(_SAMPLE_RECORDS),
            ),
            params,
        )
        return field_columns(parse_sample(base64.b64decode(text) for (text,) in sample))


def routed(feed: FeedDefinition, table: str) -> FeedDefinition:
    """The feed that a router makes for a table. The same one, whoever makes it."""
    options = FeedOptions(
        route=feed.options.route,
        route_value=table,
        router=feed.feed_id,
        add_columns=feed.options.add_columns,
        units=feed.options.units,
    )
    return replace(
        feed,
        name=f"{feed.database}.{table}",
        feed_id=str(uuid5(UUID(feed.feed_id), table)),
        version=wall_ms(),
        table=table,
        status=FeedStatus.RUNNING,
        replay_asked_ms=0,
        options=options,
    )


def _named(feed: FeedDefinition, records: str) -> str:
    """Records, and what they name as their table."""
    assert feed.options.route is not None, "a router has a route"
    table = feed.options.route.expression
    return query("records_with_table", table=table, records=records, with_value=WITH_VALUE)


_LOST = "named NOT IN {own:Array(String)}"
_WHY = (
    "multiIf(named = '', 'it does not say which table it is for',"
    f" NOT {_CAN_BE_NAMED}, concat(substringUTF8(named, 1, 100), ' cannot be a table'),"
    " named IN {others:Array(String)}, concat(named, ' is filled by another feed'),"
    " named IN {unknown:Array(String)},"
    " concat('there is no table ', named, ', and this record does not tell its columns'),"
    f" concat('there are {TABLES_MAX} tables already; ', named, ' would be one more'))"
)
