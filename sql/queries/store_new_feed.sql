-- Stores the first version of a feed that `brokerhouse tables create` makes.
--
-- Parameters: name; d and t (database and table); topics, paths and options (JSON); kind (the format); start; interval
-- (ms); stop (whether an error stops it).
INSERT INTO ${database}.table_feed_versions
(
    name, version, feed_id, database, table, topics, format, paths, start, interval_ms, stop_on_error, options, status,
    replay_asked_at
)
SELECT
    {name:String}, toUnixTimestamp64Milli(now64(3)), generateUUIDv4(), {d:String}, {t:String},
    JSONExtract({topics:String}, 'Array(String)'), {kind:String}, JSONExtract({paths:String}, 'Map(String, String)'),
    {start:String}, {interval:UInt32}, {stop:Bool}, JSONExtract({options:String}, 'Map(String, String)'), 'running',
    fromUnixTimestamp64Milli(0);
