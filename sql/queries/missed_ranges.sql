-- What the log has now and a view does not, by partition: from the first offset that it missed to the log's end.
--
-- Placeholders: database (of the tables), partition_key (of the log). Parameters: database and view.
SELECT m.topic, toString(topic_id), partition, ${partition_key} AS key, any(first_offset), max(m.offset) + 1
FROM ${database}.messages AS m
INNER JOIN
(
    SELECT topic_id, partition, first_offset
    FROM ${database}.failed_view_offsets FINAL
    WHERE database = {database:String} AND view = {view:String}
) AS f USING (topic_id, partition)
WHERE m.offset >= first_offset
GROUP BY m.topic, topic_id, partition;
