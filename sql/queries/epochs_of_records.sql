-- The epochs of partitions and their first offsets, as the records have them. Reads the whole log.
--
-- Placeholder: which (the condition: of topics). Parameters: those of the condition.
SELECT topic_id, groupArray(partition), groupArray(leader_epoch), groupArray(first)
FROM
(
    SELECT topic_id, partition, leader_epoch, min(offset) AS first
    FROM messages
    WHERE ${which}
    GROUP BY topic_id, partition, leader_epoch
)
GROUP BY topic_id;
