"""Stores rows of windows in `lag_history`, each once; runs in Spark's workers.

Windows that begin in the same quarter of an hour (a span) are written together. What must hold,
however many runs and tasks write a span at the same time, and wherever one of them is killed:
* Only rows that the table lacks are sent, and a task is done when the table lacks none of its rows.
* The token of an insert says which rows of the span the table had just before. So of all inserts
  that were made from the same state the engine stores one. A writer whose insert was dropped sees
  rows that it had not seen, and goes on from there: no row is stored twice.
* A token alone does not mean that rows are stored. A table that is not replicated notes the token
  of an insert before it adds the rows (see `TokenUsed` in storage/engine.py). Once it has answered,
  the rows are visible or will never be. If nothing has changed then, the token is used up, and
  every writer goes on with the next number.
* A replicated table notes both in one step, but a replica may show the rows later. There the writer
  waits until they are visible, with the same token.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from brokerhouse.common.tasks import Backoff
from brokerhouse.spark_jobs.sql_client import BLOCK_ROWS, SqlServers, SqlUnavailable
from brokerhouse.sql.queries import query
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.engine import DATABASE

SPAN_S = 900
"""All runs must agree on it. A worker holds the rows of one span in memory, so it is not longer."""
MAX_TRIES = 20
"""Inserts in a row after which the table was unchanged: about a minute if it is replicated."""
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_IDENTITY = ["group_id", "topic_id", "partition", "window_start"]
_ORDER = [(name, "ascending") for name in ("window_start", "group_id", "topic_id", "partition")]
_NOT_REPLICATED = (
    "SELECT toInt64(count()) FROM system.tables WHERE name = 'lag_history'"
    f" AND database IN ('{DATABASE}', '{SHARD_DATABASE}') AND engine = 'ReplacingMergeTree'"
)


@dataclass(frozen=True, slots=True)
class LagWriter:
    """`seconds`: of a window. `replicated`: whether rows of an insert may become visible later."""

    servers: SqlServers
    seconds: int
    replicated: bool

    @classmethod
    def of(cls, servers: SqlServers, seconds: int) -> LagWriter:
        """Raises SqlFailure."""
        ((not_replicated,),) = servers.rows(_NOT_REPLICATED)
        return cls(servers, seconds, not not_replicated)

    def store(self, rows: pa.Table) -> None:
        """Returns when lag_history has all these rows, which belong to one span.

        `window_start` is in seconds since 1970. Raises SqlFailure.
        """
        start = rows["window_start"][0].as_py() // SPAN_S * SPAN_S
        ordered = rows.sort_by(_ORDER)
        pauses = Backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        before, tries = "", 0
        for missing, state in self._missing(ordered, start):
            tries = tries + 1 if state == before else 0
            if tries == MAX_TRIES:
                raise SqlUnavailable(
                    f"rows of lag_history that were inserted are not there: {missing.num_rows:,}"
                    f" of windows from {start} on (seconds since 1970)"
                )
            if tries and self.replicated:
                time.sleep(pauses.advance())
            before = state
            number = 0 if self.replicated else tries
            token = f"lag-{self.seconds}-{start}-{state}-{number}"
            self.servers.insert("lag_history", _as_stored(missing.slice(0, BLOCK_ROWS)), token)

    def _missing(self, rows: pa.Table, start: int) -> Iterator[tuple[pa.Table, str]]:
        """The rows that the table lacks and a name for what it has, until it lacks none."""
        parameters = {"seconds": self.seconds, "from": start, "until": start + SPAN_S}
        while True:
            stored = self.servers.table(query("lag_stored_rows"), parameters)
            hashes = stored["hash"].to_numpy()
            keys = stored.select(_IDENTITY).cast(rows.select(_IDENTITY).schema)
            missing = rows.join(keys, _IDENTITY, join_type="left anti").sort_by(_ORDER)
            if not missing.num_rows:
                return
            yield missing, f"{len(hashes)}-{np.bitwise_xor.reduce(hashes):016x}"


def _as_stored(rows: pa.Table) -> pa.Table:
    place = rows.schema.get_field_index("window_start")
    moments = rows["window_start"].cast(pa.timestamp("s", "UTC"))
    return rows.set_column(place, "window_start", moments)
