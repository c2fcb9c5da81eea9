-- The tables of feeds. Parameter: topics, a regular expression.
SELECT toString(feed_id) AS feed_id, database, table
FROM table_feeds
WHERE arrayExists(topic -> match(topic, {topics:String}), topics);
