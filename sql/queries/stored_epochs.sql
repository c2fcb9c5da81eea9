-- The epochs of partitions and the offsets at which they began. A row for each topic: rows are what costs the event
-- loop time.
--
-- Placeholder: which (the condition: of topics). Parameters: those of the condition.
SELECT topic_id, groupArray(partition), groupArray(leader_epoch), groupArray(start_offset)
FROM leader_epochs
WHERE ${which}
GROUP BY topic_id;
