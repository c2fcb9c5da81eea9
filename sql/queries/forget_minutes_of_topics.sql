-- Deletes what was counted of topics.
--
-- Parameter: gone (ids of the topics).
ALTER TABLE partition_minutes DELETE WHERE has({gone:Array(UUID)}, topic_id) SETTINGS mutations_sync = 1;
