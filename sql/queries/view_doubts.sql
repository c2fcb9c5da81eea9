-- The ranges of the log of which nobody knows whether a view has them.
--
-- Placeholders: table, partition_key (of the log). Parameters: database and view.
SELECT topic, toString(topic_id), partition, ${partition_key}, first_offset, end_offset
FROM ${table} FINAL
WHERE database = {database:String} AND view = {view:String};
