-- What all brokers agree on, changed by compare-and-set: sessions, who owns which slot, the version of the
-- tables. It is stored in Keeper and the same on every server. DROP TABLE on the last server that has the table
-- deletes the rows too.
CREATE TABLE IF NOT EXISTS brokerhouse_shard.registry
(
    key   String,
    value String
)
ENGINE = KeeperMap('/brokerhouse/${cluster}/registry')
PRIMARY KEY key;
