"""Commits the files of all workers to their tables: one worker does it beside its own work.

A table's snapshot says up to where the control topic is in it. Before a commit that is read, and
what the table has already is left out; and a commit beside another one is refused by the catalog.
So a coordinator that was paused, and does not know of the next one, cannot add files twice.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable

from confluent_kafka import Producer
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException

from brokerhouse.spark_jobs.iceberg import tables
from brokerhouse.spark_jobs.iceberg.commit_buffer import CommitBuffer
from brokerhouse.spark_jobs.iceberg.control_topic import (
    ANSWER_LIMIT_S,
    ControlReader,
    client_options,
)
from brokerhouse.spark_jobs.iceberg.events import CommitComplete, Event, TableCommitted, encoded
from brokerhouse.spark_jobs.iceberg.settings import SinkSettings

COMMIT_ID = "brokerhouse.commit-id"
VALID_THROUGH = "brokerhouse.valid-through-ts"
OFFSETS = "brokerhouse.control-offsets"
_ATTEMPTS = 10


def offsets_property(settings: SinkSettings) -> str:
    """Its value is JSON: the next offset of each partition of the control topic. The topic's id is
    in the name, because one that is made again begins again with offset 0."""
    return f"{OFFSETS}.{settings.group}.{settings.topics[settings.control_topic]}"


class Coordinator:
    def __init__(
        self,
        settings: SinkSettings,
        catalog: Catalog,
        partitions: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`partitions`: of all topics. Raises KafkaException."""
        self._settings = settings
        self._catalog = catalog
        self._clock = clock
        self._buffer = CommitBuffer(
            partitions, settings.interval_ms / 1000, settings.timeout_ms / 1000
        )
        self._reader = ControlReader(
            settings.kafka, settings.control_topic, settings.group, settings.coordinator_group
        )
        self._producer = Producer(client_options(settings.kafka, enable_idempotence=True))
        self._buffer.next_offsets.update(self._reader.begin_at_stored())
        self._buffer.begin_at(clock())

    def step(self) -> None:
        """What is to be done now. Raises KafkaException."""
        for place, event in self._reader.events():
            self._buffer.add(place, event)
        now = self._clock()
        if self._buffer.is_due(now):
            self._send(self._buffer.begin(uuid.uuid4().hex, now))
        if self._buffer.is_ready(now):
            self._commit()

    def close(self) -> None:
        self._reader.close()

    def _commit(self) -> None:
        commit_id = self._buffer.commit_id
        assert commit_id is not None
        valid_through = self._buffer.valid_through()
        failed = False
        for table in self._buffer.tables():
            try:
                snapshot_id = self._commit_table(table, commit_id, valid_through)
            except Exception as error:  # of any catalog and storage
                print(f"the commit {commit_id} of {table} failed: {error}", file=sys.stderr)
                failed = True
                continue
            if snapshot_id is not None:
                self._send(TableCommitted(commit_id, table, snapshot_id, valid_through))
        if failed:
            # All files stay for the next commit. Tables that have theirs say so by their offsets.
            self._buffer.give_up(self._clock())
            return
        self._reader.store(self._buffer.next_offsets)
        self._buffer.end(self._clock())
        self._send(CommitComplete(commit_id, valid_through))

    def _commit_table(self, name: str, commit_id: str, valid_through: int | None) -> int | None:
        """The snapshot's id, or None if the table has all of the files, or was dropped since they
        were written. Raises anything."""
        offsets = offsets_property(self._settings)
        properties = {COMMIT_ID: commit_id, offsets: json.dumps(self._buffer.next_offsets)}
        if valid_through is not None:
            properties[VALID_THROUGH] = str(valid_through)
        for _ in range(_ATTEMPTS):
            table = tables.existing(self._catalog, name)
            if table is None:
                print(f"{name} was dropped: its last files are left out", file=sys.stderr)
                return None
            stored = tables.stored_offsets(table, offsets)
            snapshots = self._buffer.snapshots(name, stored, str(table.metadata.table_uuid))
            if not snapshots:
                return None
            try:
                return tables.commit(table, snapshots, properties)
            except CommitFailedException:
                continue  # somebody has changed the table, perhaps with these files
        raise CommitFailedException(f"{name} was changed by others {_ATTEMPTS} times")

    def _send(self, event: Event) -> None:
        value = encoded(self._settings.group, event)
        self._producer.produce(self._settings.control_topic, value, self._settings.group)
        self._producer.flush(ANSWER_LIMIT_S)
