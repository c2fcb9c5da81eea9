-- What the decision needs to know of each record of a slice: `RECORDS` in compaction.py.
-- A key of more than 64 bytes is represented by its SHA-256. A marker is 0 for an abort, 1 for a
-- commit, -1 for another control record, and null for data.
-- Parameters: topic, topic_id, partition, start and slice_end (offsets), bound, last (the last
-- offset of the log), recent_ms (milliseconds since 1970), number (of the partition in this run).
SELECT toInt32({number:Int32}) AS target, offset, short_key AS key, tombstone, size, stays,
    producer_id AS producer, transactional, toInt32(kind) AS marker
FROM
(
    SELECT offset, producer_id, transactional, value IS NULL AS tombstone,
        if(length(key) > 64, concat('#', SHA256(assumeNotNull(key))), concat('=', key))
            AS short_key,
        toInt64(ifNull(length(key), 0) + ifNull(length(value), 0)) AS size,
        multiIf(NOT control, NULL, length(key) != 4, -1,
            substring(key, 3, 2) = '\0\0', 0, substring(key, 3, 2) = '\0\x01', 1, -1) AS kind,
        offset = {last:Int64}
            OR (producer_id >= 0 AND toUnixTimestamp64Milli(append_time) > {recent_ms:Int64})
            AS stays
    FROM messages
    WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
        AND offset >= {start:Int64} AND offset < {slice_end:Int64}
        AND (offset < {bound:Int64} OR control)
);
