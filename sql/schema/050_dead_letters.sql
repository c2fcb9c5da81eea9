-- view dead_letters; cluster: rows of all shards
-- Records that a feed could not put into its table, and why. The record itself is in `messages`.
CREATE OR REPLACE VIEW ${dead_letters} AS
SELECT feed, topic, partition, offset, error, time, topic_id, feed_id
FROM ${dead_letter_versions} FINAL
WHERE NOT replayed
ORDER BY feed, topic, partition, offset;
