-- Marks a topic of this shard as deleted that the registry does not have any more.
-- Not where a single broker's topics wait for their cluster (broker/cluster/adoption.py).
-- {topic_id:UUID}, {version:UInt64}: the topic, and its version on this shard.
INSERT INTO topic_versions (topic_id, version, name, partitions, configs, state)
SELECT topic_id, version + 1, name, partitions, configs, 'deleted'
FROM topic_versions
WHERE topic_id = {topic_id:UUID} AND version = {version:UInt64}
    AND (SELECT count() FROM cluster_state WHERE key = 'cluster_id') = 0
LIMIT 1;
