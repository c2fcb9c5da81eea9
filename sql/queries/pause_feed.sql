-- Stores a version of a feed that is paused, where the version before it is stored.
--
-- Parameters: feed_id; version (the one before).
INSERT INTO table_feed_versions
SELECT * REPLACE (version + 1 AS version, 'paused' AS status, now64(3) AS changed_at)
FROM
(
    SELECT *
    FROM table_feed_versions FINAL
    WHERE feed_id = {feed_id:UUID} AND version = {version:UInt64}
);
