-- What the rows of one partition tell about one idempotent producer: its newest batches and markers, newest first.
-- Neighbouring batches come as one range, because their rows do not say where one ended; the markers of an epoch come
-- as one range, with the highest epoch of their coordinators. `shift` tells the sequences of a range.
--
-- Parameters: topic, topic_id, partition; producer_id; kept: how many ranges are wanted, and how many of markers.
SELECT
    producer_epoch, control, shift, min(first_offset), max(last_offset) AS last, max(coordinator_epoch),
    max(append_ms)
FROM
(
    SELECT
        producer_epoch, control, toInt32(positiveModulo(offset - sequence, 2147483648)) AS shift,
        min(offset) AS first_offset, max(offset) AS last_offset, toInt32(-1) AS coordinator_epoch,
        toUnixTimestamp64Milli(max(append_time)) AS append_ms
    FROM messages
    WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
        AND producer_id = {producer_id:Int64} AND NOT control
    GROUP BY producer_epoch, control, shift
    UNION ALL
    SELECT
        producer_epoch, control, toInt32(0), min(offset), max(offset),
        max(reinterpretAsInt32(reverse(substring(assumeNotNull(value), 3, 4)))), toUnixTimestamp64Milli(max(append_time))
    FROM messages
    WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
        AND producer_id = {producer_id:Int64} AND control
    GROUP BY producer_epoch, control
)
GROUP BY producer_epoch, control, shift
ORDER BY producer_epoch DESC, last DESC
LIMIT {kept:UInt8} BY control;
