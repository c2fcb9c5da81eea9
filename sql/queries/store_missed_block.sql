-- Stores the first offset of each partition of a block that a view did not get, if it lacks no earlier one.
--
-- Placeholder: database (of the table). Parameters: database and view; path (the file of the block).
INSERT INTO ${database}.failed_view_offsets (database, view, topic, topic_id, partition, first_offset)
SELECT {database:String}, {view:String}, topic, topic_id, partition, min(offset)
FROM file({path:String}, 'Native', 'topic String, topic_id UUID, partition Int32, offset Int64')
WHERE (topic_id, partition) NOT IN
(
    SELECT topic_id, partition
    FROM ${database}.failed_view_offsets FINAL
    WHERE database = {database:String} AND view = {view:String}
)
GROUP BY topic, topic_id, partition
SETTINGS input_format_skip_unknown_fields = 1;
