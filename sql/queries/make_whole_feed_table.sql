-- Makes the table that has the rows of all shards of the table of a feed.
--
-- Placeholders: whole (the table to make) and target (that of each shard), both with their database; cluster (the name
-- in ClickHouse); database and table (of each shard).
CREATE TABLE IF NOT EXISTS ${whole} AS ${target}
ENGINE = Distributed('${cluster}', ${database}, ${table});
