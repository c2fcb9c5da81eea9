-- The largest leader epoch, up to `epoch`, that has records in a range of offsets, and the offset
-- behind its last record.
-- topic String, topic_id UUID, partition Int32, first Int64 (included), end Int64 (excluded),
-- epoch Int32
SELECT leader_epoch, max(offset) + 1
FROM messages
WHERE topic = {topic:String}
    AND topic_id = {topic_id:UUID}
    AND partition = {partition:Int32}
    AND offset >= {first:Int64}
    AND offset < {end:Int64}
    AND leader_epoch <= {epoch:Int32}
GROUP BY leader_epoch
ORDER BY leader_epoch DESC
LIMIT 1;
