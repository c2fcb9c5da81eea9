-- The ranges of offsets that compaction decided to remove.
-- Parameters: topics, a regular expression.
SELECT
    topic, toString(topic_id) AS topic_id, partition, range.1 AS first, range.2 AS last
FROM compaction_removals
ARRAY JOIN ranges AS range
WHERE match(topic, {topics:String});
