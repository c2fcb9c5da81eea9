-- Makes a table in memory with columns of the log, for blocks of the journal.
--
-- Placeholders: table (to make), columns, log (the table of the log).
CREATE TABLE ${table} ENGINE = Memory AS SELECT ${columns} FROM ${log} LIMIT 0;
