-- The ranges of offsets that both the log and a round of the journal have, without the gaps between them.
--
-- Placeholders: partition_key (of the log); log and some (the tables: `some` has the rows of the round); same_time (the
-- rows of the log that may be among them); key (what tells whether a row is).
SELECT any(topic), toString(topic_id), partition, ${partition_key}, min(offset), max(offset) + 1
FROM
(
    SELECT topic, topic_id, partition, offset,
        offset - row_number() OVER (PARTITION BY topic_id, partition ORDER BY offset) AS gaps
    FROM ${log}
    WHERE ${same_time} AND (${key}) IN (SELECT ${key} FROM ${some})
)
GROUP BY topic_id, partition, gaps
ORDER BY ALL;
