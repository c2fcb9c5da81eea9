-- How many commits are stored of each week, which is a ClickHouse partition of consumer_offsets.
-- Those of deleted topics are left out.
-- Parameters: groups and topics, regular expressions.
SELECT toString(toMonday(stored_at)) AS week, toInt64(count()) AS commits
FROM consumer_offsets
WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})
    AND topic_id GLOBAL IN (SELECT topic_id FROM topics)
GROUP BY week;
