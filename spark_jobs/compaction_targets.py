"""Which partitions a compaction run is about, and whether each is worth compacting now."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from brokerhouse.spark_jobs.sql_client import SqlServers
from brokerhouse.sql.queries import query
from brokerhouse.storage.engine import Parameter
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS

SLICE_RECORDS = 250_000
"""What a worker reads at once: about 120 bytes each, whatever the size of keys and values."""
_PARALLEL = 4
_NEVER_MS = 2**62

_LOG_START = (
    "SELECT toInt64(max(log_start_offset)) FROM partition_checkpoints"
    " WHERE topic_id = {topic_id:UUID} AND partition = {partition:Int32}"
)


@dataclass(frozen=True, slots=True)
class CompactionConfigs:
    """The configs of a topic that matter here. Times in ms."""

    dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int


@dataclass(frozen=True, slots=True)
class CompactionTarget:
    """One partition of a compacted topic, as it was when the run looked at it.

    `start` <= offsets that the run looks at < `bound` <= `end`. An earlier run has looked at those
    below `clean_end`. Tombstones below `alone_end` have no older record of their key; those below
    `due_end` have had none for delete.retention.ms. `reason`: why to compact the partition now, or
    empty. `dirty`: the share of its bytes that no run has seen. `below_bound`: how many records the
    run looks at. `transactional`: some records were written in transactions.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int = 0
    bound: int = 0
    records: int = 0
    below_bound: int = 0
    transactional: bool = False
    clean_end: int = 0
    alone_end: int = 0
    due_end: int = 0
    dirty: float = 0.0
    reason: str = ""

    @property
    def width(self) -> int:
        """Offsets of a slice, so that it has about SLICE_RECORDS stored records."""
        slices = max(-(-self.records // SLICE_RECORDS), 1)
        return max(-(-(self.end - self.start) // slices), 1)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The parameters of queries about the partition, from the start of its log on."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition": self.partition,
            "start": self.start,
        }


def find_targets(
    servers: SqlServers, topics: str, now_ms: int, min_ratio: float | None, force: bool
) -> list[CompactionTarget]:
    """Every partition of the compacted topics whose names match. Raises SqlFailure.

    `min_ratio` replaces the topics' min.cleanable.dirty.ratio; `force`: there is always a reason.
    """
    asked: list[tuple[CompactionTarget, CompactionConfigs]] = []
    rows = servers.rows(query("compaction_topics"), {"topics": topics})
    for name, topic_id, partitions, policy, ratio, min_lag, max_lag, retention in rows:
        if "compact" not in _config("cleanup.policy", policy):
            continue
        configs = CompactionConfigs(
            float(_config("min.cleanable.dirty.ratio", ratio)) if min_ratio is None else min_ratio,
            int(_config("min.compaction.lag.ms", min_lag)),
            int(_config("max.compaction.lag.ms", max_lag)),
            int(_config("delete.retention.ms", retention)),
        )
        asked += [(CompactionTarget(name, topic_id, n, 0), configs) for n in range(partitions)]
    with ThreadPoolExecutor(_PARALLEL) as threads:
        return list(
            threads.map(lambda one: _look_at(servers, one[0], one[1], now_ms, force), asked)
        )


def _config(name: str, text: str) -> Any:
    config = TOPIC_CONFIGS[name]
    return config.parse(text or config.default)


def _look_at(
    servers: SqlServers,
    target: CompactionTarget,
    configs: CompactionConfigs,
    now_ms: int,
    force: bool,
) -> CompactionTarget:
    ((start,),) = servers.rows(_LOG_START, target.parameters)
    target = replace(target, start=start)
    of_log = target.parameters
    young_ms = now_ms - configs.min_lag_ms if configs.min_lag_ms else _NEVER_MS
    ((records, end, young, transactional),) = servers.rows(
        query("compaction_bounds"), {**of_log, "young_ms": young_ms}
    )
    if not records:
        return replace(target, end=start, bound=start)
    bound = end if young is None else min(end, young)
    if transactional:
        ((first, count),) = servers.rows(
            query("compaction_open_transactions"), {**of_log, "end": end}
        )
        bound = min(bound, first) if count else bound
    due_ms = now_ms - configs.delete_retention_ms
    ((clean_end, alone_end, due_end),) = servers.rows(
        query("compaction_progress"), {**of_log, "due_ms": due_ms}
    )
    limits = {
        "clean_end": clean_end,
        "due_end": min(due_end, end - 1),  # the last record stays
        "bound": bound,
    }
    ((below_bound, clean, dirty, oldest_ms, due),) = servers.rows(
        query("compaction_new_bytes"), {**of_log, **limits}
    )
    ratio = dirty / (clean + dirty) if dirty else 0.0
    reason = ""
    if dirty and (ratio > configs.dirty_ratio or force):
        reason = "--force" if force else f"{ratio:.0%} is new"
    elif dirty and oldest_ms < now_ms - configs.max_lag_ms:
        reason = "max.compaction.lag.ms"
    elif due or (force and bound > start):
        reason = "tombstones are due" if due else "--force"
    return replace(
        target,
        end=end,
        bound=bound,
        records=records,
        below_bound=below_bound,
        transactional=transactional > 0,
        clean_end=clean_end,
        alone_end=alone_end,
        due_end=due_end,
        dirty=ratio,
        reason=reason,
    )
