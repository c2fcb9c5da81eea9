-- What a server has: the tables of the whole cluster, those of its shard, the shard's name, and by
-- how many seconds its replica of the log is behind.
-- Parameters: whole and shard, the names of the two databases.
SELECT
    (SELECT toInt64(count()) FROM system.tables
        WHERE database = {whole:String} AND name = 'messages') AS has_whole,
    (SELECT toInt64(count()) FROM system.tables
        WHERE database = {shard:String} AND name = 'messages') AS has_shard,
    (SELECT any(substitution) FROM system.macros WHERE macro = 'shard') AS shard_name,
    (SELECT toInt64(max(absolute_delay)) FROM system.replicas
        WHERE database = {shard:String} AND table = 'messages') AS delay_s;
