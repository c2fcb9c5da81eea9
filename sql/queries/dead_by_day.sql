-- How many rows of a topic are below the log starts of their partitions, by day and partition.
--
-- Placeholder: which (the condition for these rows). Parameters: topic, topic_id.
SELECT toString(toYYYYMMDD(append_time)), partition, count()
FROM messages
WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND (${which})
GROUP BY 1, 2;
