-- The rows of a round of the journal that the log does not have.
--
-- Placeholders: columns; log and some (the tables: `some` has the rows of the round); same_time (the rows of the log
-- that may be among them); key (what tells whether a row is).
SELECT ${columns}
FROM ${some}
WHERE (${key}) NOT IN (SELECT ${key} FROM ${log} WHERE ${same_time});
