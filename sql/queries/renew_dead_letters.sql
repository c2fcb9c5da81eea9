-- Stores dead letters again as they are, as newer versions: the end of a replay.
--
-- Placeholders: time (of the new versions), dead (FROM and WHERE: the dead letters). Parameters: those of the
-- placeholders.
INSERT INTO dead_letter_versions
SELECT * REPLACE (${time} AS time)
FROM (SELECT * ${dead});
