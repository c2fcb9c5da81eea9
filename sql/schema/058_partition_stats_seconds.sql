-- view partition_stats; cluster: own statement
-- Where each partition of each topic starts and ends, and what is in it: the counted minutes (partition_minutes), the
-- counted parts of the minute after them (partition_seconds), and the records since then, from the log itself. So the
-- result is exact at every moment. A minute that is counted while the query runs may come from several of the three;
-- `news` leaves out what partition_minutes has, and a window that ends after `tail_from` is read from the log.
--
-- Reads one row per partition (and part) of partition_minutes, by its projection, and of `messages` the records of the
-- last minute or two, at most some millions.
CREATE OR REPLACE VIEW ${partition_stats} AS
WITH
    (SELECT max(minute) + INTERVAL 1 MINUTE FROM ${partition_minutes}) AS counted_until,
    (SELECT max(until) FROM ${partition_seconds} WHERE minute = counted_until) AS seconds_until,
    greatest(counted_until, seconds_until) AS tail_from
SELECT
    topic, topic_id, partition, log_start_offset::Int64 AS log_start_offset, end_offset,
    least(appended, toUInt64(greatest(end_offset - log_start_offset, 0))) AS records,
    if(records = appended, appended_bytes, toUInt64(appended_bytes / appended * records)) AS bytes,
    first_time, last_time
FROM
(
    SELECT
        topic, topic_id, partition, log_start_offset,
        greatest(counted.next_offset, tail.next_offset, next_offset_floor) AS end_offset,
        arrayFilter(minute -> minute.start > counted.last_minute, tail.minutes) AS news,
        counted.records + arraySum(minute -> minute.records, news) AS appended,
        counted.bytes + arraySum(minute -> minute.bytes, news) AS appended_bytes,
        if(counted.records > 0, counted.first_time, tail.first_time) AS first_time,
        greatest(counted.last_time, tail.last_time) AS last_time
    FROM (SELECT name AS topic, topic_id, toInt32(arrayJoin(range(partitions))) AS partition FROM ${topics}) AS live
    LEFT JOIN
    (
        SELECT
            topic_id, partition, sum(records) AS records, sum(bytes) AS bytes, max(max_offset) + 1 AS next_offset,
            max(minute) AS last_minute, min(first_append_time) AS first_time, max(last_append_time) AS last_time
        FROM ${partition_minutes}
        GROUP BY topic_id, partition
    ) AS counted USING (topic_id, partition)
    LEFT JOIN
    (
        SELECT
            topic_id, partition,
            groupArray((start, records, bytes)::Tuple(start DateTime, records UInt64, bytes UInt64)) AS minutes,
            max(last_offset) + 1 AS next_offset, min(first) AS first_time, max(last) AS last_time
        FROM
        (
            SELECT
                topic_id, partition, minute AS start, max_offset AS last_offset, records, bytes,
                first_append_time AS first, last_append_time AS last
            FROM ${partition_seconds}
            WHERE minute = counted_until AND until <= tail_from
            UNION ALL
            SELECT
                topic_id, partition, toStartOfMinute(append_time)::DateTime('UTC') AS start, max(offset) AS last_offset,
                count() AS records, sum(${row_bytes}) AS bytes, min(append_time) AS first, max(append_time) AS last
            FROM ${messages}
            WHERE append_time >= tail_from
            GROUP BY topic_id, partition, start
        )
        GROUP BY topic_id, partition
    ) AS tail USING (topic_id, partition)
    LEFT JOIN
    (
        SELECT topic_id, partition, max(log_start_offset) AS log_start_offset, max(next_offset_floor) AS next_offset_floor
        FROM ${partition_checkpoints}
        GROUP BY topic_id, partition
    ) AS checkpoint USING (topic_id, partition)
)
ORDER BY topic, partition
SETTINGS join_use_nulls = 0;
