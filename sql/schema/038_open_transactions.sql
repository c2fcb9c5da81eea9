-- view open_transactions; cluster: rows of all shards
-- The transactions that hold up read_committed consumers, by partition, and where they began. One that is being
-- aborted is open until it is among the aborted ones.
--
-- Only the rows since the oldest of these transactions are searched for their first records.
CREATE OR REPLACE VIEW ${open_transactions} AS
SELECT topic, topic_id, partition, producer_id, last_start AS transaction_start
FROM
(
    SELECT
        topic,
        topic_id,
        partition,
        producer_id,
        max(transaction_start) AS last_start,
        max(if(control, transaction_start, -1)) AS last_ended
    FROM ${messages}
    WHERE transactional
        AND append_time >= (
            SELECT ifNull(minOrNull(start_time) - INTERVAL 1 MINUTE, toDateTime64('2100-01-01 00:00:00', 3, 'UTC'))
            FROM ${unended_transactions}
        )
        AND (topic, topic_id, partition, producer_id) IN (
            SELECT topic, topic_id, partition, producer_id FROM ${unended_transactions}
        )
    GROUP BY topic, topic_id, partition, producer_id
)
WHERE last_start > last_ended
    OR (topic_id, partition, producer_id) IN (
        SELECT topic_id, partition, producer_id FROM ${unended_transactions} WHERE state = 'PrepareAbort'
    );
