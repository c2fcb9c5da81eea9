-- The largest leader epoch, up to `epoch`, that has records in a range of offsets, and the offset
-- behind its last record.
-- topic String, topic_id UUID, partition Int32, first Int64 (included), end Int64 (excluded),
-- epoch Int32
SELECT leader_epoch, max(offset) + 1
FROM messages
WHERE ${is_in_range}
    AND leader_epoch <= {epoch:Int32}
GROUP BY leader_epoch
ORDER BY leader_epoch DESC
LIMIT 1;
