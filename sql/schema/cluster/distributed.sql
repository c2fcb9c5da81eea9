-- The rows of a table or view of all shards. Read from one replica of each shard; brokers do not write here but
-- to the shards.
CREATE OR REPLACE TABLE brokerhouse.${name} AS brokerhouse_shard.${table}
ENGINE = Distributed('${cluster}', 'brokerhouse_shard', '${table}');
