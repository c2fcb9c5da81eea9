-- The topics that have rows in a table and are deleted.
--
-- Placeholder: table.
SELECT DISTINCT topic_id
FROM ${table}
WHERE topic_id IN (SELECT topic_id FROM topic_versions FINAL WHERE state = 'deleted');
