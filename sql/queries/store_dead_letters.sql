-- Stores the records of a block that do not fit into the table.
--
-- Placeholders: rows_table (the rows of the records), asked_at (when a replay was asked for: no dead letter of it is
-- older). Parameters: feed and feed_id; topic, topic_id and partition; that of `asked_at`.
INSERT INTO dead_letter_versions
SELECT
    {feed:String}, {feed_id:UUID}, {topic:String}, {topic_id:UUID}, {partition:Int32}, _offset, any(_feed_error),
    greatest(now64(3, 'UTC'), ${asked_at}), false, 0
FROM ${rows_table}
WHERE _feed_error != ''
GROUP BY _offset;
