"""Finds the transactions of partitions again when their logs are opened.

The tables say what was open and what was aborted (transaction_tables.py). A broker may have ended
between two of its rows, so what is said to be open is looked up in the log, which decides: it may
have its marker, or no record at all. The rows that put the tables right are returned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from brokerhouse.broker.log.checkpoints import Key
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.broker.log.partition_transactions import (
    ABORTED_KEPT,
    AbortedTransaction,
    OpenTransaction,
)
from brokerhouse.broker.log.transaction_tables import ended_rows
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Engine, Parameter
from brokerhouse.storage.row_lane import TableRows

_PLACE = (
    "(topic = {{topic{n}:String}} AND topic_id = {{id{n}:UUID}}"
    " AND partition = {{partition{n}:Int32}} AND offset >= {{first{n}:Int64}}"
    " AND has({{starts{n}:Array(String)}}, toString(transaction_start)))"
)
_PLACES_AT_ONCE = 50


class _Name(NamedTuple):
    """Names a transaction in all partitions."""

    topic_id: UUID
    partition: int
    producer_id: int
    first_offset: int


@dataclass(slots=True)
class _Found:
    """What the log has of a transaction."""

    last_offset: int
    marker_offset: int = 0
    """0 if it has no marker: a marker comes after a record."""
    is_aborted: bool = False


async def recover_transactions(
    engines: Collection[Engine], logs: Collection[PartitionLog]
) -> Sequence[tuple[TableRows, TableRows]]:
    """Let these logs know what is open and what was aborted.

    `engines`: all that may have rows of the logs. Returns what has to be stored in each of them
    before the logs are used. Raises `EngineError`.
    """
    by_key: dict[Key, PartitionLog] = {(one.topic_id, one.partition): one for one in logs}
    for engine in engines:
        for topic_id, number, version in await engine.rows(query("versions_of_open_transactions")):
            log = by_key.get((UUID(topic_id), number))
            if log is not None:
                log.transactions.note_version(version)
    said = await _said_to_be_open(engines, by_key)
    found = await _in_the_log(engines, by_key, said)
    aborted = await _aborted(engines, by_key)
    repairs = []
    for name, epoch in said.items():
        log = by_key[name.topic_id, name.partition]
        ending = found.get(name)
        if ending is None or ending.last_offset < log.log_start_offset:
            repairs.append(ended_rows(log, name.producer_id, epoch, ()))
        elif not ending.marker_offset:
            log.transactions.open[name.producer_id] = OpenTransaction(name.first_offset, epoch)
        else:
            one = AbortedTransaction(name.producer_id, name.first_offset, ending.marker_offset)
            these = (one,) if ending.is_aborted else ()
            aborted.setdefault((name.topic_id, name.partition), set()).update(these)
            repairs.append(ended_rows(log, name.producer_id, epoch, these))
    for key, some in aborted.items():
        transactions = by_key[key].transactions
        if len(some) >= ABORTED_KEPT:  # there may be more
            transactions.listed_from = min(one.last_offset for one in some)
        for one in sorted(some, key=lambda one: one.last_offset):
            if one.last_offset >= by_key[key].log_start_offset:
                transactions.note_aborted(one)
    for log in logs:
        log.find_stable_offset()
    return repairs


async def _said_to_be_open(
    engines: Iterable[Engine], logs: Mapping[Key, PartitionLog]
) -> dict[_Name, int]:
    """What the tables say to be open, and the epoch of each producer there."""
    latest: dict[tuple[UUID, int, int], tuple[int, int, int]] = {}
    for engine in engines:
        rows = await engine.rows(query("transactions_not_ended"))
        for topic_id, number, producer_id, epoch, first, version in rows:
            producer = UUID(topic_id), number, producer_id
            if producer[:2] in logs:
                latest[producer] = max(latest.get(producer, (0, 0, 0)), (version, epoch, first))
    return {_Name(*producer, first): epoch for producer, (_, epoch, first) in latest.items()}


async def _in_the_log(
    engines: Iterable[Engine], logs: Mapping[Key, PartitionLog], names: Iterable[_Name]
) -> dict[_Name, _Found]:
    starts: dict[Key, list[int]] = {}
    for name in names:
        starts.setdefault((name.topic_id, name.partition), []).append(name.first_offset)
    keys = list(starts)
    found: dict[_Name, _Found] = {}
    for engine in engines:
        for at in range(0, len(keys), _PLACES_AT_ONCE):
            some = keys[at : at + _PLACES_AT_ONCE]
            parameters: dict[str, Parameter] = {}
            for n, key in enumerate(some):
                parameters |= {
                    f"topic{n}": logs[key].topic.name,
                    f"id{n}": str(key[0]),
                    f"partition{n}": key[1],
                    f"first{n}": min(starts[key]),
                    f"starts{n}": [str(start) for start in starts[key]],
                }
            places = " OR ".join(_PLACE.format(n=n) for n in range(len(some)))
            for row in await engine.rows(query("transactions_in_log", places=places), parameters):
                topic_id, number, producer_id, first, last, marker, is_aborted = row
                one = found.setdefault(
                    _Name(UUID(topic_id), number, producer_id, first), _Found(last)
                )
                one.last_offset = max(one.last_offset, last)
                if marker:
                    one.marker_offset, one.is_aborted = marker, is_aborted
    return found


async def _aborted(
    engines: Iterable[Engine], logs: Mapping[Key, PartitionLog]
) -> dict[Key, set[AbortedTransaction]]:
    found: dict[Key, set[AbortedTransaction]] = {}
    for engine in engines:
        rows = await engine.rows(query("last_aborted_transactions", kept=str(ABORTED_KEPT)))
        for topic_id, number, producer_id, first, last in rows:
            key = UUID(topic_id), number
            if key in logs:
                found.setdefault(key, set()).add(AbortedTransaction(producer_id, first, last))
    return found
