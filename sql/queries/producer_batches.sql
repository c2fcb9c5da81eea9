-- The newest batches of one idempotent producer in one partition, newest first. Neighbouring
-- batches come as one range, because their rows do not say where one ended.
--
-- Transaction markers come as ranges of their own: they may have raised the epoch. The last column is the highest
-- epoch of their coordinators, the same in every row.
--
-- Parameters: topic, topic_id, partition; producer_id; kept: how many ranges are wanted.
SELECT
    producer_epoch,
    min(offset),
    max(offset) AS last,
    argMax(sequence, offset),
    toUnixTimestamp64Milli(max(append_time)),
    control,
    max(max(if(control, reinterpretAsInt32(reverse(substring(assumeNotNull(value), 3, 4))), -1))) OVER ()
FROM messages
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
    AND producer_id = {producer_id:Int64}
GROUP BY producer_epoch, control, if(control, 0, positiveModulo(offset - sequence, 2147483648))
ORDER BY producer_epoch DESC, last DESC
LIMIT {kept:UInt8};
