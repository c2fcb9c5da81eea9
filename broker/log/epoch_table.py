"""`leader_epochs`: where each leader epoch of a partition began, stored by the leader.

A leader stores where its epoch begins before it serves the log; a broker that is alone has one
epoch and stores nothing. What must hold:

* The rows are in the engine that the leader writes to. After a slot was moved, the new engine gets
  what the earlier ones have.
* Rows of a partition with the same offset are merged, and the largest epoch stays: nothing was
  written in the others (broker/log/leader_epochs.py).
* A row is needed until a later epoch began at or below the log start: then sweep.py deletes it.

Why a row for every partition at each change of leader, and for every new one: they are one block
for all partitions of the slots that a broker takes over (measured: 8 ms for 1,000, 60 ms for
30,000), or of the topics that one request creates. A row before the first record of each partition
instead would be an insert of its own for most of them, just when all producers come to a new
leader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from uuid import UUID

from broker.log.checkpoints import Key
from broker.log.leader_epochs import EpochStart, known_epochs
from broker.log.partition import PartitionLog
from storage.blocks import INT32, INT64, UUIDS, Table
from storage.engine import Engine, Parameter, Row
from storage.row_lane import TableRows

LEADER_EPOCHS = Table(
    "leader_epochs",
    (
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("leader_epoch", INT32),
        ("start_offset", INT64),
    ),
)

_Starts = Mapping[Key, set[EpochStart]]

_TOPICS_NAMED = 1_000
"""A query for more topics reads all rows: 1,000 ids are 40 kB of parameters."""
_RECORDS_READ = 20_000_000
_ROWS = "SELECT topic_id, partition, leader_epoch, start_offset FROM leader_epochs"
_IN_LOG = "SELECT topic_id, partition, leader_epoch, min(offset) FROM messages"
_RECORDS = (
    "SELECT sum(rows) FROM system.parts"
    " WHERE database = currentDatabase() AND table = 'messages' AND active"
)


async def begin_epochs(engines: Sequence[Engine], logs: Collection[PartitionLog]) -> TableRows:
    """Let these logs, which are being opened, know their epochs; the current ones begin now.

    `engines`: all that may have rows of the logs; the leader writes to the last one. Returns what
    has to be stored there before the logs are served. Raises `EngineError`.
    """
    topic_ids = {one.topic_id for one in logs}
    stored = [await _stored(engine, topic_ids) for engine in engines]
    sources = list(stored)
    older = {one.topic_id for one in logs if one.high_watermark and not _has(stored, _key(one))}
    if older:
        sources += [await _of_records(engine, older) for engine in engines]
    rows: list[tuple[UUID, int, int, int]] = []
    for log in logs:
        key = _key(log)
        known = known_epochs(chain.from_iterable(source.get(key, ()) for source in sources))
        known = known.began(log.leader_epoch, log.high_watermark)
        there = stored[-1].get(key, ())
        rows += ((*key, *start) for start in known.starts if start not in there)
        log.epochs = known.since(log.log_start_offset)
    return TableRows(LEADER_EPOCHS, rows)


def first_epochs(logs: Iterable[PartitionLog]) -> TableRows:
    """The epochs of logs that were just created, to be stored before they are served."""
    return TableRows(
        LEADER_EPOCHS, [(*_key(log), *start) for log in logs for start in log.epochs.starts]
    )


def _key(log: PartitionLog) -> Key:
    return log.topic_id, log.partition


def _has(sources: Iterable[_Starts], key: Key) -> bool:
    return any(key in source for source in sources)


async def _stored(engine: Engine, topic_ids: Collection[UUID]) -> _Starts:
    """One query, whatever the number of partitions; it may return other topics, too."""
    which, params = _of_topics(topic_ids)
    return _by_partition(await engine.rows(f"{_ROWS}{which}", params))


async def _of_records(engine: Engine, topic_ids: Collection[UUID]) -> _Starts:
    """The epochs of records, for logs that were last opened before `leader_epochs` existed.

    Reads the whole log, so only up to 20 million records (1 s). Of a larger one nothing is known:
    its epochs end where the first stored one begins.
    """
    if (await engine.rows(_RECORDS))[0][0] > _RECORDS_READ:
        return {}
    which, params = _of_topics(topic_ids)
    groups = " GROUP BY topic_id, partition, leader_epoch"
    return _by_partition(await engine.rows(f"{_IN_LOG}{which}{groups}", params))


def _of_topics(topic_ids: Collection[UUID]) -> tuple[str, dict[str, Parameter]]:
    if len(topic_ids) > _TOPICS_NAMED:
        return "", {}
    ids = sorted(str(topic_id) for topic_id in topic_ids)
    return " WHERE has({topics:Array(UUID)}, topic_id)", {"topics": ids}


def _by_partition(rows: Iterable[Row]) -> _Starts:
    found: defaultdict[Key, set[EpochStart]] = defaultdict(set)
    for topic_id, partition, epoch, offset in rows:
        found[UUID(topic_id), partition].add(EpochStart(epoch, offset))
    return found
