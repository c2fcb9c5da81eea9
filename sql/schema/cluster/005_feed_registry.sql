-- How far each feed of a typed table is in each partition, changed by compare-and-set, so that of two brokers that
-- both believe to lead the partition one is fenced. Stored like `registry`, but apart: brokers read all of that
-- several times a second.
CREATE TABLE IF NOT EXISTS brokerhouse_shard.feed_registry
(
    key   String,
    value String
)
ENGINE = KeeperMap('/brokerhouse/${cluster}/feed_registry')
PRIMARY KEY key;
