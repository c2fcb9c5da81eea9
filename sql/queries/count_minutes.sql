-- Counts the rows of a window into partition_minutes, a row for each partition and minute, and
-- stores, in a row of its own (topic ''), up to which time the log is counted now.
--
-- Parameters: start_ms, end_ms: the window, without its end; from_ms: what is older is counted in
-- partition_seconds, which has that of the first minute alone. Placeholders: ${token}: the
-- deduplication token of the window; ${row_bytes}: of key and value (storage/schema_files.py). The
-- settings make it one block, however many rows it has.
INSERT INTO partition_minutes
    (topic, topic_id, partition, minute, records, bytes, min_offset, max_offset,
     first_append_time, last_append_time)
WITH
    fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC') AS start_time,
    fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC') AS end_time,
    fromUnixTimestamp64Milli({from_ms:Int64}, 'UTC') AS from_time
SELECT
    topic, topic_id, partition, minute, sum(records), sum(bytes), min(first_offset), max(last_offset),
    min(first_time), max(last_time)
FROM
(
    SELECT
        topic, topic_id, partition, minute, records, bytes, min_offset AS first_offset, max_offset AS last_offset,
        first_append_time AS first_time, last_append_time AS last_time
    FROM partition_seconds
    WHERE minute = toDateTime(start_time, 'UTC') AND until <= from_time AND topic != ''
    UNION ALL
    SELECT
        topic, topic_id, partition, toStartOfMinute(append_time)::DateTime('UTC') AS minute,
        count() AS records, sum(${row_bytes}) AS bytes, min(offset) AS first_offset, max(offset) AS last_offset,
        min(append_time) AS first_time, max(append_time) AS last_time
    FROM messages
    WHERE append_time >= from_time AND append_time < end_time
    GROUP BY topic, topic_id, partition, minute
)
WHERE topic_id IN (SELECT topic_id FROM topics)
GROUP BY topic, topic_id, partition, minute
UNION ALL
SELECT
    '', toUUID('00000000-0000-0000-0000-000000000000'), -1,
    toDateTime(end_time - INTERVAL 1 MINUTE, 'UTC'), 0, 0, 0, -1, end_time, end_time
SETTINGS max_threads = 1, max_insert_threads = 1, min_insert_block_size_bytes = 0,
    min_insert_block_size_rows = 1000000000, insert_deduplication_token = '${token}';
