-- The first and the last offset of each partition that has a row, and how many rows it has. Rows
-- below the start of the log may still be stored.
-- Parameters: topics, a regular expression.
SELECT toString(topic_id), partition, min(offset) AS first, max(offset) AS last,
    toInt64(count()) AS rows
FROM messages
WHERE match(topic, {topics:String}) AND topic != ''
GROUP BY topic_id, partition;
