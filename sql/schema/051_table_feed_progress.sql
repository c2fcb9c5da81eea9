-- view table_feed_progress; cluster: same view, all shards
-- How far each feed is in each partition, what it has stored, and how fast it is. `lag` counts the offsets that
-- are not in the table yet; the group feed-NAME in consumer_lag has its seconds, too.
CREATE OR REPLACE VIEW ${table_feed_progress} AS
SELECT
    states.feed AS feed, states.topic AS topic, states.partition AS partition, states.last_phase AS phase,
    states.next AS next_offset, greatest(ends.end_offset - states.next, 0) AS lag,
    states.all_rows AS rows, states.all_dead_letters AS dead_letters, states.rows_per_second AS rows_per_second,
    states.since AS since, states.topic_id AS topic_id, states.feed_id AS feed_id
FROM
(
    SELECT
        any(block.feed) AS feed, any(block.topic) AS topic, topic_id, partition, feed_id,
        argMax(block.phase, version) AS last_phase,
        argMax(if(block.phase = 'before', first_offset, end_offset), version) AS next,
        argMax(total_rows, version) AS all_rows,
        argMax(total_dead_letters, version) AS all_dead_letters,
        sumIf(block.rows, block.phase = 'after' AND time > now64(3, 'UTC') - INTERVAL 1 MINUTE) / 60 AS rows_per_second,
        max(time) AS since
    FROM ${table_feed_blocks} AS block
    GROUP BY feed_id, topic_id, partition
) AS states
${global}INNER JOIN ${table_feeds} AS existing ON existing.feed_id = states.feed_id
${global}LEFT JOIN ${partition_stats} AS ends ON ends.topic_id = states.topic_id AND ends.partition = states.partition
ORDER BY feed, topic, partition;
