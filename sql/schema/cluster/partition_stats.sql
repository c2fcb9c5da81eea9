-- Where each partition of each topic starts and ends, and what is in it. shard_partition_stats has the rows of
-- every shard's view partition_stats: each shard counts its own rows, exactly, and has a row for every partition
-- of every topic. A partition has rows on two shards once its slot has moved.
CREATE OR REPLACE VIEW brokerhouse.partition_stats AS
SELECT
    topic, topic_id, partition, log_start_offset, end_offset,
    least(appended, toUInt64(greatest(end_offset - log_start_offset, 0))) AS records,
    if(records = appended, appended_bytes, toUInt64(appended_bytes / appended * records)) AS bytes,
    first_time, last_time
FROM
(
    SELECT
        topic, topic_id, partition,
        max(stats.log_start_offset) AS log_start_offset, max(stats.end_offset) AS end_offset,
        sum(stats.records) AS appended, sum(stats.bytes) AS appended_bytes,
        minIf(stats.first_time, stats.records > 0) AS first_time, max(stats.last_time) AS last_time
    FROM brokerhouse.shard_partition_stats AS stats
    GROUP BY topic, topic_id, partition
)
ORDER BY topic, partition;
