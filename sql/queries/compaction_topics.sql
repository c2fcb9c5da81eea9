-- Topics with the configs that compaction depends on; a config that is not set is empty.
-- Parameters: topics, a regular expression.
SELECT name, toString(topic_id), partitions, configs['cleanup.policy'],
    configs['min.cleanable.dirty.ratio'], configs['min.compaction.lag.ms'],
    configs['max.compaction.lag.ms'], configs['delete.retention.ms']
FROM topics
WHERE match(name, {topics:String})
ORDER BY name;
