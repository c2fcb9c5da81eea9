-- The last record of each producer that the broker still knows: one that wrote after known_ms.
-- Parameters: topic, topic_id, partition, start and end (offsets), known_ms (milliseconds since
-- 1970), number (of the partition in this run).
SELECT toInt32({number:Int32}) AS target, last AS offset
FROM
(
    SELECT max(offset) AS last, max(toUnixTimestamp64Milli(append_time)) AS at
    FROM messages
    WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
        AND offset >= {start:Int64} AND offset < {end:Int64} AND producer_id >= 0 AND NOT control
    GROUP BY producer_id
)
WHERE at > {known_ms:Int64};
