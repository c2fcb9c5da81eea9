-- Marks dead letters as replayed whose records name a table that has a feed now.
--
-- Placeholders: time (of the new versions); dead and found (FROM and WHERE: the dead letters, and such records).
-- Parameters: those of the placeholders.
INSERT INTO dead_letter_versions
SELECT * REPLACE (${time} AS time, true AS replayed)
FROM (SELECT * ${dead} AND offset IN (SELECT offset ${found}));
