-- view topics; cluster: same view, one shard
-- The topics that exist now.
CREATE OR REPLACE VIEW ${topics} AS
SELECT name, topic_id, partitions, configs, changed_at
FROM ${topic_versions} FINAL
WHERE state = 'live'
ORDER BY name;
