-- Makes the registry of the feeds that Spark fills, where ClickHouse has Keeper.
--
-- Placeholders: database, table.
CREATE TABLE IF NOT EXISTS ${table} (key String, value String)
ENGINE = KeeperMap('/${database}/${table}')
PRIMARY KEY key;
