-- table cluster_state; cluster: nothing
-- Small facts that the broker changes by compare-and-set: the cluster id, the next producer id.
CREATE TABLE IF NOT EXISTS ${cluster_state}
(
    key     String,
    version UInt64,
    value   String
)
ENGINE = ${engine(ReplacingMergeTree(version))}
ORDER BY key;
