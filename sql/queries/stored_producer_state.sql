-- What `producer_states` tells about one producer of one partition, as producer_ranges.sql: newest first.
--
-- Parameters: topic_id, partition; producer_id; kept: how many ranges are wanted, and how many of markers.
SELECT
    producer_id, producer_epoch, control, shift, min(first_offset), max(last_offset) AS last, max(coordinator_epoch),
    toUnixTimestamp64Milli(max(append_time))
FROM producer_states
WHERE topic_id = {topic_id:UUID} AND partition = {partition:Int32} AND producer_id = {producer_id:Int64}
GROUP BY producer_id, producer_epoch, control, shift
ORDER BY producer_epoch DESC, last DESC
LIMIT {kept:UInt8} BY control;
