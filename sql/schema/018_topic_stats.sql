-- view topic_stats; cluster: same view, all shards
-- Each topic: how much is in it, since when, and how fast it grows. Rates are those of the last five full
-- minutes and of the current one.
CREATE OR REPLACE VIEW ${topic_stats} AS
WITH
    toStartOfMinute(now('UTC')) - INTERVAL 5 MINUTE AS recent_since,
    date_diff('second', recent_since, now('UTC')) AS recent_seconds
SELECT
    topic,
    topic_id,
    partitions,
    total.records AS records,
    total.bytes AS bytes,
    round(recent.records / recent_seconds, 3) AS records_per_second,
    round(recent.bytes / recent_seconds, 3) AS bytes_per_second,
    if(total.records > 0, total.first_time, NULL) AS first_time,
    if(total.records > 0, total.last_time, NULL) AS last_time
FROM
(
    SELECT
        topic, topic_id, toInt32(count()) AS partitions, sum(records) AS records, sum(bytes) AS bytes,
        minIf(first_time, partition_stats.records > 0) AS first_time, max(last_time) AS last_time
    FROM ${partition_stats}
    GROUP BY topic, topic_id
) AS total
${global}LEFT JOIN
(
    SELECT topic_id, sum(records) AS records, sum(bytes) AS bytes
    FROM ${topic_minutes}
    WHERE minute >= recent_since
    GROUP BY topic_id
) AS recent USING (topic_id)
ORDER BY topic
SETTINGS join_use_nulls = 0;
