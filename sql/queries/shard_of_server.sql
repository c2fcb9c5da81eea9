-- The name of a server's shard, and by how many seconds its replica of the log is behind.
-- Parameters: shard, the name of the database.
SELECT
    (SELECT any(substitution) FROM system.macros WHERE macro = 'shard') AS shard_name,
    (SELECT toInt64(max(absolute_delay)) FROM system.replicas
        WHERE database = {shard:String} AND table = 'messages') AS delay_s;
