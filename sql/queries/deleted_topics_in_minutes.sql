-- The topics that are counted and do not exist any more, once for each partition.
SELECT topic_id
FROM partition_minutes
WHERE topic != '' AND topic_id NOT IN (SELECT topic_id FROM topics)
GROUP BY topic, topic_id, partition;
