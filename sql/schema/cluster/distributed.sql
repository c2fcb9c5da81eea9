-- A table or view of every shard, its rows together. Read from one replica of each shard; brokers write to the
-- shards themselves.
CREATE OR REPLACE TABLE brokerhouse.${name} AS brokerhouse_shard.${table}
ENGINE = Distributed('${cluster}', 'brokerhouse_shard', '${table}');
