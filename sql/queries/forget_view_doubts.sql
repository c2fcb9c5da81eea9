-- Removes ranges of the log of which it is known now whether a view has them.
--
-- Placeholder: table. Parameters: database and view; ranges (topic id, partition and first offset of each).
ALTER TABLE ${table} DELETE
WHERE database = {database:String} AND view = {view:String}
    AND has({ranges:Array(String)}, concat(toString(topic_id), ' ', toString(partition), ' ', toString(first_offset)))
SETTINGS mutations_sync = 1;
