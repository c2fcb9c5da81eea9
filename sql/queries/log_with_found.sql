-- The rows of the log and those of a table in memory, each once: a subquery, in place of the log.
--
-- Placeholders: columns; log and found (the tables); key (what tells whether a row is in the log).
(
    SELECT ${columns} FROM ${log}
    UNION ALL
    SELECT ${columns} FROM ${found}
    WHERE (${key}) NOT IN
    (
        SELECT ${key} FROM ${log} WHERE append_time >= (SELECT min(append_time) FROM ${found})
    )
);
