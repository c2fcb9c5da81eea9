-- How many rows of a topic lie in each bucket of `width` offsets, per partition.
-- Parameters: topic, topic_id, partitions, start and until (offsets), width, and those of `filters`.
-- Placeholders: table is messages or messages_committed; filters are further conditions.
SELECT
    partition,
    intDiv(offset, {width:Int64}) * {width:Int64} AS first,
    toInt64(count()) AS rows
FROM ${table}
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}
    AND partition IN {partitions:Array(Int32)}
    AND offset >= {start:Int64} AND offset < {until:Int64}
    ${filters}
GROUP BY partition, first
ORDER BY partition, first;
