-- Views on the log whose inserts failed lately, by the server's log of views: how often, since when, the last error.
--
-- Parameters: database (of the log); seconds (how long ago counts).
SELECT
    replaceAll(view_name, '`', '') AS name,
    count(),
    toString(min(event_time_microseconds), 'UTC'),
    argMax(exception, event_time_microseconds)
FROM system.query_views_log
WHERE event_date >= toDate(now() - {seconds:UInt32}) - 1
    AND event_time >= now() - {seconds:UInt32}
    AND startsWith(status::String, 'Exception')
    AND name IN
    (
        SELECT arrayJoin(arrayMap((d, t) -> concat(d, '.', t), dependencies_database, dependencies_table))
        FROM system.tables
        WHERE database = {database:String} AND name = 'messages'
    )
GROUP BY name
ORDER BY name;
