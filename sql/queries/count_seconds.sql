-- Counts the rows of a window within one minute into partition_seconds, a row for each partition,
-- and stores, in a row of its own (topic ''), where the window ends.
--
-- Parameters: minute_ms: the minute; start_ms, end_ms: the window, without its end. Placeholders as
-- in count_minutes.sql.
INSERT INTO partition_seconds
    (topic, topic_id, partition, minute, until, records, bytes, min_offset, max_offset,
     first_append_time, last_append_time)
WITH
    toDateTime(fromUnixTimestamp64Milli({minute_ms:Int64}, 'UTC'), 'UTC') AS minute_start,
    fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC') AS start_time,
    fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC') AS end_time
SELECT
    topic, topic_id, partition, minute_start, end_time, count(),
    sum(${row_bytes}), min(offset), max(offset),
    min(append_time), max(append_time)
FROM messages
WHERE append_time >= start_time AND append_time < end_time
    AND topic_id IN (SELECT topic_id FROM topics)
GROUP BY topic, topic_id, partition
UNION ALL
SELECT
    '', toUUID('00000000-0000-0000-0000-000000000000'), -1,
    minute_start, end_time, 0, 0, 0, -1, end_time, end_time
SETTINGS max_threads = 1, max_insert_threads = 1, min_insert_block_size_bytes = 0,
    min_insert_block_size_rows = 1000000000, insert_deduplication_token = '${token}';
