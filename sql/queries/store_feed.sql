-- Stores a version of a feed.
--
-- Parameters: those of its columns; replay_asked_ms (milliseconds since 1970).
INSERT INTO table_feed_versions
(
    name, version, feed_id, database, table, topics, format, paths, start, interval_ms, stop_on_error, options, status,
    replay_asked_at
)
SELECT
    {name:String}, {version:UInt64}, {feed_id:UUID}, {database:String}, {table:String}, {topics:Array(String)},
    {format:String}, {paths:Map(String, String)}, {start:String}, {interval_ms:UInt32}, {stop_on_error:Bool},
    {options:Map(String, String)}, {status:String}, fromUnixTimestamp64Milli({replay_asked_ms:Int64});
