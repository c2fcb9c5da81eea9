-- view topic_minutes; cluster: rows of all shards
-- How many records each minute brought to each partition, up to now: partition_minutes, for the minute after it the
-- parts that are counted (partition_seconds), and since then the log itself. For rates over time. A query that names a
-- range of `minute` reads only that range.
CREATE OR REPLACE VIEW ${topic_minutes} AS
WITH
    (SELECT max(minute) + INTERVAL 1 MINUTE FROM ${partition_minutes}) AS counted_until,
    (SELECT max(until) FROM ${partition_seconds} WHERE minute = counted_until) AS seconds_until,
    greatest(counted_until, seconds_until) AS tail_from
SELECT topic, topic_id, partition, minute, records, bytes, max_offset + 1 AS end_offset
FROM ${partition_minutes}
WHERE minute < counted_until AND topic_id IN (SELECT topic_id FROM ${topics})
UNION ALL
SELECT
    topic, topic_id, partition, minute, sum(records) AS records, sum(bytes) AS bytes, max(last_offset) + 1 AS end_offset
FROM
(
    SELECT topic, topic_id, partition, minute, records, bytes, max_offset AS last_offset
    FROM ${partition_seconds}
    WHERE minute = counted_until AND until <= tail_from AND topic_id IN (SELECT topic_id FROM ${topics})
    UNION ALL
    SELECT
        topic, topic_id, partition, toStartOfMinute(append_time)::DateTime('UTC') AS minute, count() AS records,
        sum(${row_bytes}) AS bytes, max(offset) AS last_offset
    FROM ${messages}
    WHERE append_time >= tail_from AND topic_id IN (SELECT topic_id FROM ${topics})
    GROUP BY topic, topic_id, partition, minute
)
GROUP BY topic, topic_id, partition, minute;
