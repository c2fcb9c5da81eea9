-- Whether a server has the tables of the whole log, and those of a shard of a cluster.
-- Parameters: whole and shard, the names of the two databases.
SELECT
    (SELECT toInt64(count()) FROM system.tables
        WHERE database = {whole:String} AND name = 'messages') AS has_whole,
    (SELECT toInt64(count()) FROM system.tables
        WHERE database = {shard:String} AND name = 'messages') AS has_shard;
