-- Stores the next version of a feed, in which one column differs from the version before.
--
-- Placeholders: stores and database (that a feed's versions are written to, and read from), change (EXPRESSION AS
-- COLUMN). Parameter: n (the feed's name).
INSERT INTO ${stores}.table_feed_versions
SELECT * REPLACE (
    greatest(version + 1, toUnixTimestamp64Milli(now64(3))) AS version, now64(3) AS changed_at, ${change}
)
FROM ${database}.table_feed_versions FINAL
WHERE name = {n:String}
ORDER BY version DESC
LIMIT 1;
