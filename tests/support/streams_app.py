"""The word count of `streams/src/WordCount.java`, as a process that a test may kill."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support import tools
from tests.support.java_app import JavaApp

WORDS, COUNTS = "words", "counts"
"""The topics that it reads and writes."""
_READY = "ready"


class StreamsApp(JavaApp):
    """One instance, with a state directory of its own; all have the same application id.

    `settings`: those of Kafka Streams, which go before the ones that are here.
    """

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = "app",
    ) -> None:
        every_setting = {
            "bootstrap.servers": bootstrap,
            "application.id": "word-count",
            "processing.guarantee": "exactly_once_v2",
            "state.dir": str(directory / name),
            "auto.offset.reset": "earliest",
            "statestore.cache.max.bytes": "0",  # each count is written
            # Short time-outs make tests short: an instance that was killed leaves its group.
            "session.timeout.ms": "1500",
            "heartbeat.interval.ms": "300",
            "transaction.timeout.ms": "10000",
            **(settings or {}),
        }
        super().__init__(directory, name, tools.word_count_command(), every_setting)

    def is_ready(self) -> bool:
        """Whether it has its first partitions, and their state."""
        return _READY in self.printed().splitlines()
