"""The word count of `streams/src/WordCount.java`, as a process that a test may kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import tools
from tests.support.server_process import ServerProcess

WORDS, COUNTS = "words", "counts"
"""The topics that it reads and writes."""
_READY = "ready"


class StreamsApp(ServerProcess):
    """One instance, with a state directory of its own; all have the same application id.

    `settings`: those of Kafka Streams, which go before the ones that are here.
    """

    clean_exit_codes = (0, 143)  # the latter: a Java process that was told to end

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = "app",
    ) -> None:
        super().__init__(directory / f"{name}.log")
        self._properties = directory / f"{name}.properties"
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
        lines = [f"{key}={value}\n" for key, value in every_setting.items()]
        self._properties.write_text("".join(lines))

    def command(self) -> Sequence[str]:
        return [*tools.word_count_command(), str(self._properties)]

    def is_ready(self) -> bool:
        """Whether it has its first partitions, and their state."""
        return _READY in self.printed().splitlines()
