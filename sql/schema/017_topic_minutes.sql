-- view topic_minutes; cluster: rows of all shards
-- How many records each minute brought to each partition, up to now: partition_minutes, and since then the log
-- itself. For rates over time. A query that names a range of `minute` reads only that range.
CREATE OR REPLACE VIEW ${topic_minutes} AS
WITH (SELECT max(minute) + INTERVAL 1 MINUTE FROM ${partition_minutes}) AS counted_until
SELECT topic, topic_id, partition, minute, records, bytes, max_offset + 1 AS end_offset
FROM ${partition_minutes}
WHERE minute < counted_until AND topic_id IN (SELECT topic_id FROM ${topics})
UNION ALL
SELECT
    topic, topic_id, partition, toStartOfMinute(append_time)::DateTime('UTC') AS minute, count() AS records,
    sum(ifNull(length(key), 0) + ifNull(length(value), 0)) AS bytes, max(offset) + 1 AS end_offset
FROM ${messages}
WHERE append_time >= counted_until AND topic_id IN (SELECT topic_id FROM ${topics})
GROUP BY topic, topic_id, partition, minute;
