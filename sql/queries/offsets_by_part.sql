-- The last and the first offset of each partition in each part of the log.
SELECT _part, topic, topic_id, partition, max(offset), min(offset)
FROM messages
GROUP BY _part, topic, topic_id, partition;
