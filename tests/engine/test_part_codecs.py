"""The codecs of new and of merged parts of the log, and of people's tables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from brokerhouse.storage.disk_reserve import LOW_BYTES
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.part_codecs import set_part_codecs
from brokerhouse.storage.schema import migrate

# Letters that only an entropy coder makes smaller.
ROWS = "SELECT number AS offset, hex(sipHash128(number)) AS key, hex(sipHash128(-number)) AS value"


async def parts(engine: EmbeddedEngine, table: str) -> list[tuple[str, int]]:
    """The codec `Default` of each part, and its bytes."""
    rows = await engine.rows(
        "SELECT default_compression_codec, bytes_on_disk FROM system.parts"
        " WHERE database = currentDatabase() AND table = {table:String} AND active ORDER BY name",
        {"table": table},
    )
    return [(codec, int(size)) for codec, size in rows]


async def two_parts_then_one(engine: EmbeddedEngine, table: str) -> list[tuple[str, int]]:
    """Insert twice the same, look at the parts, and at the one that they become."""
    await engine.execute(f"SYSTEM STOP MERGES {table}")
    for block in range(2):
        await engine.execute(
            f"INSERT INTO {table} (offset, key, value) {ROWS} FROM numbers({block * 20_000}, 20000)"
        )
    found = await parts(engine, table)
    await engine.execute(f"SYSTEM START MERGES {table}")
    await engine.execute(f"OPTIMIZE TABLE {table} FINAL")
    return found + await parts(engine, table)


@pytest.mark.parametrize(("fsync", "codec"), [(False, "NONE"), (True, "LZ4")])
async def test_parts_of_the_log_are_compressed_when_they_are_merged(
    data_dir: Path, fsync: bool, codec: str
) -> None:
    engine = EmbeddedEngine(data_dir, 1, fsync=fsync)
    try:
        await migrate(engine)
        await set_part_codecs(engine)
        found = await two_parts_then_one(engine, "messages")
    finally:
        await engine.close()
    (first, new), (second, also_new), (merged, together) = found
    assert (first, second, merged) == (codec, codec, "ZSTD(1)")
    assert together < 0.7 * (new + also_new)


async def test_a_table_of_a_user_has_the_default_codec_of_clickhouse(
    engine: EmbeddedEngine,
) -> None:
    columns = "offset UInt64, key String, value String"
    await engine.execute(f"CREATE TABLE own ({columns}) ORDER BY offset")
    (first, new), (second, also_new), (merged, together) = await two_parts_then_one(engine, "own")
    assert (first, second, merged) == ("LZ4", "LZ4", "LZ4")
    assert together > 0.9 * (new + also_new)


async def test_the_log_of_a_cluster_keeps_its_codecs(engine: EmbeddedEngine) -> None:
    (_, new), (_, also_new), (_, together) = await two_parts_then_one(engine, "messages")
    assert together > 0.9 * (new + also_new), "these are new parts with ZSTD"


async def test_small_tables_are_compressed(engine: EmbeddedEngine) -> None:
    await engine.execute(
        "INSERT INTO topic_versions (topic_id) SELECT generateUUIDv4() FROM numbers(100)"
    )
    assert [codec for codec, _ in await parts(engine, "topic_versions")] == ["LZ4"]


async def test_changing_the_codecs_keeps_the_rows_of_the_log(engine: EmbeddedEngine) -> None:
    await engine.execute(f"INSERT INTO messages (offset, key, value) {ROWS} FROM numbers(1000)")
    read = "SELECT count(), sum(cityHash64(offset, key, value)) FROM messages"
    before = await engine.rows(read)
    await set_part_codecs(engine)
    assert await engine.rows(read) == before
    await engine.execute("OPTIMIZE TABLE messages FINAL")
    assert await engine.rows(read) == before


async def test_the_codecs_of_the_log_are_changed_once(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_part_codecs(engine)

    async def refuse(sql: str) -> None:
        raise AssertionError(sql)

    monkeypatch.setattr(engine, "execute", refuse)
    await set_part_codecs(engine)
    monkeypatch.undo()
    assert await migrate(engine) == []


async def test_on_a_low_disk_the_codecs_are_changed_at_the_next_start(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = "SELECT create_table_query FROM system.tables WHERE name = 'messages'"
    before = await engine.rows(definition)
    low = SimpleNamespace(free_bytes=lambda: LOW_BYTES - 1)
    monkeypatch.setattr(engine, "reserve", low)
    await set_part_codecs(engine)
    assert await engine.rows(definition) == before
    monkeypatch.undo()
    await set_part_codecs(engine)
    assert await engine.rows(definition) != before


async def test_a_column_whose_codec_was_changed_gets_the_default_codec_again(
    engine: EmbeddedEngine,
) -> None:
    await set_part_codecs(engine)
    await engine.execute("ALTER TABLE messages MODIFY COLUMN value CODEC(ZSTD(1))")
    await set_part_codecs(engine)
    rows = await engine.rows(
        "SELECT compression_codec FROM system.columns WHERE database = currentDatabase()"
        " AND table = 'messages' AND name = 'value'"
    )
    assert rows == [["CODEC(Default)"]]


async def test_the_engine_keeps_free_memory_longer_than_by_default(data_dir: Path) -> None:
    """What jemalloc itself says, in this process."""
    engine = EmbeddedEngine(data_dir, 1, fsync=False)
    rows = await engine.rows("SELECT * FROM system.jemalloc_stats")
    await engine.close()
    assert "opt.dirty_decay_ms: 30000" in str(rows)


async def test_parts_are_written_in_compressed_blocks_of_256_kib(engine: EmbeddedEngine) -> None:
    rows = await engine.rows(
        "SELECT value FROM system.merge_tree_settings WHERE name = 'max_compress_block_size'"
    )
    assert rows == [["262144"]]
