-- The definitions of feeds, the newest of each name that is stored here, of dropped ones, too.
-- Parameter: topics, a regular expression.
SELECT
    name, toInt64(version) AS version, toString(feed_id) AS feed_id, database, table, status,
    arrayExists(topic -> match(topic, {topics:String}), topics) AS is_selected
FROM table_feed_versions
ORDER BY version DESC
LIMIT 1 BY name;
