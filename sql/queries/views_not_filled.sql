-- The views that inserts could not fill since a moment, and why. A view's name may have back-quotes.
--
-- Parameter: since.
SELECT view_name, any(exception)
FROM system.query_views_log
WHERE event_time_microseconds >= {since:DateTime64(6, 'UTC')}
    AND event_date >= toDate({since:DateTime64(6, 'UTC')}) - 1
    AND startsWith(status::String, 'Exception')
GROUP BY view_name;
