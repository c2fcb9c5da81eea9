-- The history of the feeds that Spark fills, with the columns of a broker's `table_feed_blocks`.
CREATE TABLE IF NOT EXISTS table_feed_blocks
(
    feed String,
    feed_id UUID,
    topic LowCardinality(String),
    topic_id UUID,
    partition Int32,
    version UInt64,
    epoch UInt64,
    feeder String,
    phase LowCardinality(String),
    first_offset Int64,
    end_offset Int64,
    attempt UInt32,
    rows UInt64,
    dead_letters UInt64,
    reference_offset Int64,
    total_rows UInt64,
    total_dead_letters UInt64,
    time DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(time)
PARTITION BY toMonday(time)
ORDER BY (feed_id, topic_id, partition, version)
TTL toDateTime(time) + INTERVAL 90 DAY;
