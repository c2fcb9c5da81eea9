-- table table_feed_versions; cluster: rows of all shards
-- Feeds of typed tables, as versions: every change of one is a new row with a higher version, and the highest
-- wins. Written by `brokerhouse tables`; the broker looks for new versions every second.
CREATE TABLE IF NOT EXISTS ${table_feed_versions}
(
    name            String                 COMMENT 'of the feed: DATABASE.TABLE of its table',
    version         UInt64                 COMMENT 'milliseconds of the clock of who changed it, never less than before',
    feed_id         UUID                   COMMENT 'a feed made again with this name has another',
    database        String                 COMMENT 'where the table is',
    table           String                 COMMENT 'which gets the rows',
    topics          Array(String)          COMMENT 'whose records it gets',
    format          LowCardinality(String) COMMENT 'of the records: json, csv, raw, avro, protobuf or msgpack',
    paths           Map(String, String)    COMMENT 'JSON path of each column whose path is not its name',
    start           String                 COMMENT 'where a partition begins: earliest, latest, or milliseconds since 1970',
    interval_ms     UInt32                 COMMENT 'how long records wait for others of their block',
    stop_on_error   Bool                   COMMENT 'whether a dead letter pauses the feed',
    options         Map(String, String)    COMMENT 'route: how records name their table; route_value: of those that are taken; like: the table that new ones are made like; router: id of the feed that made this one; add_columns: 1',
    status          LowCardinality(String) COMMENT 'running, paused or dropped',
    replay_asked_at DateTime64(3, 'UTC')   COMMENT 'when dead letters of before were asked to be parsed again; 1970 if never',
    changed_at      DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written'
)
ENGINE = ${engine(ReplacingMergeTree(version))}
ORDER BY name
SETTINGS ${deduplication_window(1000)};
