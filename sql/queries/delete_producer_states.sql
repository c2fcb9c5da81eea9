-- Deletes the states of producers that have expired, or whose topic is deleted, and those that later ones replace.
-- Markers are kept beside batches: they tell the coordinator, however much was written since. A replica that lacks rows
-- deletes less, and the others then take its part.
--
-- Placeholders: expired (the condition), kept (of a producer in a partition), settings. Parameters: those of the
-- condition.
ALTER TABLE producer_states DELETE
WHERE ${expired}
    OR topic_id IN (SELECT topic_id FROM topic_versions FINAL WHERE state = 'deleted')
    OR (topic_id, partition, producer_id, producer_epoch, control, shift) NOT IN
    (
        SELECT topic_id, partition, producer_id, producer_epoch, control, shift
        FROM
        (
            SELECT
                topic_id, partition, producer_id, producer_epoch, control, shift, max(last_offset) AS last
            FROM producer_states
            GROUP BY topic_id, partition, producer_id, producer_epoch, control, shift
        )
        ORDER BY producer_epoch DESC, last DESC
        LIMIT ${kept} BY topic_id, partition, producer_id, control
    )
SETTINGS ${settings};
