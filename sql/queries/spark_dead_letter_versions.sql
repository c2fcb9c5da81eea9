-- Records that Spark's jobs could not put into a table, with the columns of a broker's `dead_letter_versions`, but for
-- `rows`.
CREATE TABLE IF NOT EXISTS dead_letter_versions
(
    feed String,
    feed_id UUID,
    topic LowCardinality(String),
    topic_id UUID,
    partition Int32,
    offset Int64,
    error String,
    time DateTime64(3, 'UTC'),
    replayed Bool
)
ENGINE = ReplacingMergeTree(time)
ORDER BY (feed_id, topic_id, partition, offset);
