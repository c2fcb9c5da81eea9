-- Hides the rows of a fence.
--
-- Placeholder: day (YYYY-MM-DD). Parameters: topic_id (of the session), partition.
DELETE FROM messages IN PARTITION '${day}'
WHERE topic = '' AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
SETTINGS lightweight_deletes_sync = 0;
