-- What Spark's jobs have of dead letters now, as a broker's view `dead_letters`.
--
-- Placeholder: database.
CREATE OR REPLACE VIEW dead_letters AS
SELECT feed, topic, partition, offset, error, time, topic_id, feed_id
FROM ${database}.dead_letter_versions FINAL
WHERE NOT replayed
ORDER BY feed, topic, partition, offset;
