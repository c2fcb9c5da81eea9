-- table topic_versions; cluster: nothing
-- Topics, as versions: every change of a topic is a new row with a higher version, and the highest wins.
-- A deleted topic keeps a row with state 'deleting' until its records are deleted, then one with 'deleted'.
CREATE TABLE IF NOT EXISTS ${topic_versions}
(
    topic_id   UUID,
    version    UInt64,
    name       String,
    partitions Int32,
    configs    Map(String, String) COMMENT 'only what was set on the topic itself',
    state      Enum8('live' = 0, 'deleting' = 1, 'deleted' = 2),
    changed_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ${engine(ReplacingMergeTree(version))}
ORDER BY topic_id;
