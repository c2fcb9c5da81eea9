-- Topics by name, and what administrators set beside them (`config/`, `quota/`). Keys are changed by
-- compare-and-set, so that two brokers never make the same topic twice. Stored like `registry`.
CREATE TABLE IF NOT EXISTS brokerhouse_shard.topic_registry
(
    key   String,
    value String
)
ENGINE = KeeperMap('/brokerhouse/${cluster}/topic_registry')
PRIMARY KEY key;
