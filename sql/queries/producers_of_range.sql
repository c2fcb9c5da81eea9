-- What a range of a partition tells about each of its producers, as rows of `producer_states` without their
-- partition, by producer. Only rows that were appended since `since_ms`.
--
-- Parameters: topic, topic_id, partition; first and end (offsets); since_ms (milliseconds since 1970); producer_id:
-- the lowest that is wanted; kept: how many ranges of a producer; rows: how many rows.
SELECT producer_id, producer_epoch, control, shift, first_offset, last, coordinator_epoch, append_ms
FROM
(
    SELECT
        producer_id, producer_epoch, control, toInt32(positiveModulo(offset - sequence, 2147483648)) AS shift,
        min(offset) AS first_offset, max(offset) AS last, toInt32(-1) AS coordinator_epoch,
        toUnixTimestamp64Milli(max(append_time)) AS append_ms
    FROM messages
    WHERE ${is_in_range} AND producer_id >= {producer_id:Int64} AND NOT control
        AND append_time >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
    GROUP BY producer_id, producer_epoch, control, shift
    UNION ALL
    SELECT
        producer_id, producer_epoch, control, toInt32(0), min(offset), max(offset),
        max(reinterpretAsInt32(reverse(substring(assumeNotNull(value), 3, 4)))), toUnixTimestamp64Milli(max(append_time))
    FROM messages
    WHERE ${is_in_range} AND producer_id >= {producer_id:Int64} AND control
        AND append_time >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')
    GROUP BY producer_id, producer_epoch, control
)
ORDER BY producer_id, producer_epoch DESC, last DESC
LIMIT {kept:UInt8} BY producer_id, control
LIMIT {rows:UInt32};
