-- Every feed that was not dropped, and how far it is, for `brokerhouse tables list`.
SELECT name, topics, format, status, rows, dead_letters, lag
FROM (SELECT name, topics, format, status FROM ${database}.table_feeds) AS feeds
LEFT JOIN
(
    SELECT feed, sum(rows) AS rows, sum(dead_letters) AS dead_letters, sum(lag) AS lag
    FROM ${database}.table_feed_progress
    GROUP BY feed
) AS progress ON progress.feed = feeds.name
ORDER BY name;
