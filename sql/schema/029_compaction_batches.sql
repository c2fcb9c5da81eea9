-- view compaction_batches; cluster: rows of all shards
-- Every batch of compaction and what became of it.
CREATE OR REPLACE VIEW ${compaction_batches} AS
SELECT
    run_id, batch_id, topic, topic_id, partition, records, tombstones, bytes, log_end, created_at,
    multiIf(noted.applied_at = toDateTime64(0, 3, 'UTC'), 'pending', noted.refused = '', 'applied', 'refused') AS state,
    noted.removed AS removed, noted.refused AS refused, noted.applied_at AS applied_at
FROM
(
    SELECT run_id, batch_id, topic, topic_id, partition, records, tombstones, bytes, log_end, created_at
    FROM ${compaction_removals}
    WHERE notEmpty(ranges)
) AS decided
LEFT JOIN
(
    SELECT
        batch_id, argMax(compaction_applied.removed, compaction_applied.applied_at) AS removed,
        argMax(compaction_applied.refused, compaction_applied.applied_at) AS refused,
        max(compaction_applied.applied_at) AS applied_at
    FROM ${compaction_applied}
    GROUP BY batch_id
) AS noted USING (batch_id)
SETTINGS join_use_nulls = 0;
