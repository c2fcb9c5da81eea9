"""New parts of the log are quick to write: not compressed, and with ZSTD once merged.

At full speed compression is the largest part of an insert, and what it writes is soon merged and
written again: without it an insert takes 12% less CPU with random letters and 25% less with JSON.
With `fsync` everything must reach the disk at once, so new parts have LZ4 then, which is smaller.
ClickHouse chooses the codec `Default` by the size of a part: `compression` in engine_config.xml has
ZSTD(1) for all that have one, which an insert has not
(https://clickhouse.com/docs/operations/server-configuration-parameters/settings#compression).

This is for the engine of a single broker, whose configuration brokerhouse writes. On other servers
`Default` is what their owner chose, so the tables of a cluster keep ZSTD(1).

Tables of people have the setting `default_compression_codec` from engine_config.xml, which is
ClickHouse's own default, LZ4, for all their parts.
"""

from __future__ import annotations

from typing import Final

from brokerhouse.storage.disk_reserve import LOW_BYTES
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.journal_statements import LOG_TABLE

# Columns that hardly change from row to row are as small with LZ4, and are read faster.
_CODECS: Final = {
    "topic": "LZ4",
    "topic_id": "LZ4",
    "partition": "LZ4",
    "timestamp_type": "LZ4",
    "key": "Default",
    "value": "Default",
    "headers": "Default",
    "producer_epoch": "LZ4",
    "transactional": "LZ4",
    "control": "LZ4",
    "leader_epoch": "LZ4",
}
_SETTING: Final = "default_compression_codec = ''"


async def set_part_codecs(engine: EmbeddedEngine) -> None:
    """Give the log these codecs, unless it has them. Parts that are there keep theirs until merged.

    On a disk that is low the definition of the table is not written (definition_guard.py): the next
    start does it. Raises `EngineError`.
    """
    place = {"database": engine.database, "table": LOG_TABLE}
    of_table = "WHERE database = {database:String} AND table = {table:String}"
    columns = f"SELECT name, compression_codec FROM system.columns {of_table}"
    codecs = [(name, codec) for name, codec in await engine.rows(columns, place)]
    changes = [
        f"MODIFY COLUMN {name} CODEC({codec})"
        for name, codec in _CODECS.items()
        if (name, f"CODEC({codec})") not in codecs
    ]
    ((definition,),) = await engine.rows(
        f"SELECT create_table_query FROM system.tables {of_table}", place
    )
    if _SETTING not in definition:
        changes.append(f"MODIFY SETTING {_SETTING}")
    if changes and engine.reserve.free_bytes() >= LOW_BYTES:
        await engine.execute(f"ALTER TABLE {engine.database}.{LOG_TABLE} {', '.join(changes)}")
