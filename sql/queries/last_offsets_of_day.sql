-- The last offset of each partition on a day. A fence row that was not removed is not a record.
--
-- Parameter: day (YYYYMMDD).
SELECT topic_id, partition, max(offset)
FROM messages
WHERE _partition_id = {day:String} AND topic != ''
GROUP BY topic_id, partition;
