-- Stores records that name no table, or none that can be filled, as dead letters of the feed that looks for tables.
--
-- Placeholders: why (what is wrong with a record), lost (FROM and WHERE: these records). Parameters: feed, feed_id, and
-- those of the placeholders.
INSERT INTO dead_letter_versions
SELECT {feed:String}, {feed_id:UUID}, topic, topic_id, partition, offset, ${why}, now64(3, 'UTC'), false, 0
${lost};
