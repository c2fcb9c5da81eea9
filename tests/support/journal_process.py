"""A process that appends to a journal and ends without warning at a given step.

`python -m tests.support.journal_process DIRECTORY FIRST COUNT STEP MODE AGE_MS` opens the journal.
Three producers append `COUNT` blocks of one row of the log (offsets from `FIRST` on), each with one
of a small table, and print each number when it is acknowledged. A round begins when it has 7 rows,
or when a block is `AGE_MS` old.

`MODE` is `small`, `packed` (half of the blocks of the log are packed), `fsync` (every block is
flushed, and written by the thread) or `large` (so are some blocks, and the thread writes them).
`STEP` is `NAME:WHEN:NUMBER`, for example `end_round:before:3`: the process ends before or after
this call of a method of the files, or of an insert into the engine (`insert_log`: into `messages`);
`none`: it goes on to the end.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokerhouse.protocol.columns import COLUMN_LIST
from brokerhouse.storage.blocks import block
from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.journal import JournalLimits, open_journal
from brokerhouse.storage.journal_drain import DrainLimits
from brokerhouse.storage.journal_files import STREAMS, JournalWriter
from tests.support.journal_rows import LOG_ROWS, OFFSET_ROWS, log_row, offset_row, packed_row

PRODUCERS = 3
LARGE_BYTES = 300_000
SMALL_SEGMENT = 4096


def _die() -> None:
    os._exit(9)


def _dies(name: str, when: str, number: int) -> None:
    """The process ends at this call of `name`."""
    calls = 0

    def counted() -> bool:
        nonlocal calls
        calls += 1
        return calls == number

    if name in ("insert_blocks", "insert_log"):
        inner = EmbeddedEngine.insert_blocks

        async def insert_blocks(self: EmbeddedEngine, *arguments: Any) -> None:
            dies = (name == "insert_blocks" or arguments[1] == "messages") and counted()
            if dies and when == "before":
                _die()
            await inner(self, *arguments)
            if dies:
                _die()

        EmbeddedEngine.insert_blocks = insert_blocks  # type: ignore[method-assign,assignment]
        return
    method: Callable[..., Any] = getattr(JournalWriter, name)

    def wrapped(self: JournalWriter, *arguments: Any) -> Any:
        dies = counted()
        if dies and when == "before":
            _die()
        result = method(self, *arguments)
        if dies:
            _die()
        return result

    setattr(JournalWriter, name, wrapped)


async def _append(directory: Path, first: int, count: int, mode: str, age_ms: int) -> None:
    fsync = mode == "fsync"
    engine = EmbeddedEngine(directory, STREAMS, fsync=fsync)
    limits = JournalLimits(1 << 22, DrainLimits(1 << 20, 7, age_ms))
    journal = await open_journal(engine, limits, fsync=fsync, segment_bytes=SMALL_SEGMENT)

    async def produce(offsets: range) -> None:
        for offset in offsets:
            topic, *rest = log_row(offset)
            if mode == "large" and offset % 4 == 1:
                topic = "x" * LARGE_BYTES
            columns, rows = LOG_ROWS.column_list, block(LOG_ROWS, [(topic, *rest)])
            if mode == "packed" and offset % 2:
                columns, rows = COLUMN_LIST, packed_row(offset)
            commits = block(OFFSET_ROWS, [offset_row(offset)])
            await asyncio.gather(
                journal.insert_block(0, "messages", columns, rows, f"l{offset}"),
                journal.insert_block(
                    0, "consumer_offsets", OFFSET_ROWS.column_list, commits, f"o{offset}"
                ),
            )
            print(offset, flush=True)
            await asyncio.sleep(0.005)

    starts = range(first, first + PRODUCERS)
    await asyncio.gather(*(produce(range(n, first + count, PRODUCERS)) for n in starts))
    await journal.close()


def main() -> None:
    directory, first, count, step, mode, age_ms = sys.argv[1:]
    if step != "none":
        name, when, number = step.split(":")
        _dies(name, when, int(number))
    asyncio.run(_append(Path(directory), int(first), int(count), mode, int(age_ms)))


if __name__ == "__main__":
    main()
