-- Marks dead letters as replayed whose records fit now: all rows of such a record are to be in the table.
--
-- Placeholders: time (of the new versions), rows (what each counts), dead (FROM and WHERE: the dead letters), misfits
-- and understood (the records that do not fit, and those that do), rows_table (the rows of the records). Parameters:
-- those of the placeholders.
INSERT INTO dead_letter_versions
SELECT dead.* REPLACE (${time} AS time, true AS replayed, ${rows} AS rows)
FROM (SELECT * ${dead} AND offset NOT IN ${misfits} AND offset IN ${understood}) AS dead
LEFT JOIN (SELECT _offset, count() AS rows FROM ${rows_table} GROUP BY _offset) AS made ON made._offset = dead.offset;
