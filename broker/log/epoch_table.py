"""`leader_epochs`: where each leader epoch of a partition began, stored by the leader.

A leader stores where its epoch begins before it serves the log. The first epoch, which is that of a
single broker, begins with the log: nothing is stored of it. What must hold:

* The rows are in the engine that the leader writes to. After a slot was moved, the new engine gets
  what the earlier ones have.
* Rows of a partition with the same offset are merged, and the largest epoch stays: nothing was
  written in the others (broker/log/leader_epochs.py).
* A row is needed until a later epoch began at or below the log start: then sweep.py deletes it.

Why a row for every partition at each change of leader, and for every new one: they are one block
for all partitions of the slots that a broker takes over, or of the topics that one request creates
(measured on 2 busy cores: a takeover of 1,000 partitions lasts 110 ms and not 75, of 30,000 0.4 s
longer). A row before the first record of each partition instead would be an insert of its own for
most of them, just when all producers come to a new leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

from brokerhouse.broker.log.leader_epochs import known_epochs
from brokerhouse.broker.log.partition import PartitionLog
from brokerhouse.sql.queries import query
from brokerhouse.storage.blocks import INT32, INT64, UUIDS, Table
from brokerhouse.storage.engine import Engine, Parameter
from brokerhouse.storage.row_lane import TableRows
from brokerhouse.storage.slot_map import FIRST_EPOCH

LEADER_EPOCHS = Table(
    "leader_epochs",
    (
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("leader_epoch", INT32),
        ("start_offset", INT64),
    ),
)

_Starts = Mapping[UUID, Mapping[int, list[tuple[int, int]]]]
"""By topic and partition: epochs, and the offsets at which they began."""

_TOPICS_NAMED = 1_000
"""A query for more topics reads all rows: 1,000 ids are 40 kB of parameters."""
_RECORDS_READ = 20_000_000


async def begin_epochs(engines: Sequence[Engine], logs: Collection[PartitionLog]) -> TableRows:
    """Let these logs, which are being opened, know their epochs; the current ones begin now.

    `engines`: all that may have rows of the logs; the leader writes to the last one. Returns what
    has to be stored there before the logs are served. Raises `EngineError`.
    """
    logs = [one for one in logs if one.leader_epoch != FIRST_EPOCH]
    if not logs:
        return TableRows(LEADER_EPOCHS, [])
    topic_ids = {one.topic_id for one in logs}
    stored = [await _by_partition(engine, "stored_epochs", topic_ids) for engine in engines]
    older = {one.topic_id for one in logs if one.high_watermark and not _starts(stored, one)}
    sources = [*stored, *[await _of_records(engine, older) for engine in engines if older]]
    rows: list[tuple[UUID, int, int, int]] = []
    for log in logs:
        began = (log.leader_epoch, log.high_watermark)
        known = known_epochs([*_starts(sources, log), began])
        there = _starts(stored[-1:], log)
        rows += [
            (log.topic_id, log.partition, *start) for start in known.starts if start not in there
        ]
        log.epochs = known.since(log.log_start_offset)
    return TableRows(LEADER_EPOCHS, rows)


def first_epochs(logs: Iterable[PartitionLog]) -> TableRows:
    """The epochs of logs that were just created, to be stored before they are served."""
    return TableRows(
        LEADER_EPOCHS,
        [(one.topic_id, one.partition, *start) for one in logs for start in one.epochs.starts],
    )


def _starts(sources: Iterable[_Starts], log: PartitionLog) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for source in sources:
        found += source.get(log.topic_id, {}).get(log.partition, ())
    return found


async def _of_records(engine: Engine, topic_ids: Collection[UUID]) -> _Starts:
    """The epochs of records, for logs that were last opened before `leader_epochs` existed.

    Reads the whole log, so only up to 20 million records (1 s). Of a larger one nothing is known:
    its epochs end where the first stored one begins.
    """
    if (await engine.rows(query("rows_in_parts", table="messages")))[0][0] > _RECORDS_READ:
        return {}
    return await _by_partition(engine, "epochs_of_records", topic_ids)


async def _by_partition(engine: Engine, name: str, topic_ids: Collection[UUID]) -> _Starts:
    """The query of this name, once for all partitions; it may return other topics, too."""
    which, params = "1", dict[str, Parameter]()
    if len(topic_ids) <= _TOPICS_NAMED:
        which = "has({topics:Array(UUID)}, topic_id)"
        params["topics"] = sorted(str(topic_id) for topic_id in topic_ids)
    found: dict[UUID, dict[int, list[tuple[int, int]]]] = {}
    for topic_id, *columns in await engine.rows(query(name, which=which), params):
        starts = found[UUID(topic_id)] = {}
        for partition, epoch, offset in zip(*columns, strict=True):
            starts.setdefault(partition, []).append((epoch, offset))
    return found
