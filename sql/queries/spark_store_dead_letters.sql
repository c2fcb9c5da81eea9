-- Stores which records of a block, or of a replay, are dead letters, and which are so no more: by one insert, which
-- fails if another run of the feed has taken over. Each row is newer than what is known of its record, and not older
-- than the replay, also if the clock of the server was set back. The columns are named because tables of earlier
-- versions do not have `rows`.
--
-- Placeholders: table, errors (a query for the rows of the records, with `_offset` and `error`), is_partition and fence
-- (conditions), settings. Parameters: feed, feed_id, topic, topic_id, partition; first and end (offsets); asked_ms (when
-- the replay was asked for: milliseconds since 1970); those of the fence.
INSERT INTO ${table}
    (feed, feed_id, topic, topic_id, partition, offset, error, time, replayed)
SELECT
    {feed:String}, {feed_id:UUID}, {topic:String}, {topic_id:UUID}, {partition:Int32}, _offset,
    if(now.error != '', now.error, known.error),
    greatest(
        now64(3, 'UTC'), addMilliseconds(known.time, 1), fromUnixTimestamp64Milli({asked_ms:Int64}, 'UTC')
    ),
    now.error = ''
FROM (SELECT _offset, max(error) AS error FROM (${errors}) GROUP BY _offset) AS now
LEFT JOIN
(
    SELECT offset, error, time
    FROM ${table} FINAL
    WHERE ${is_partition} AND NOT replayed AND offset >= {first:Int64} AND offset < {end:Int64}
) AS known ON known.offset = now._offset
WHERE (now.error != '' OR known.error != '') AND ${fence}
${settings};
