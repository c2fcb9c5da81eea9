-- view table_feed_progress; cluster: same view, all shards
-- How far each feed is in each partition, what its table has, and how fast it is. `rows` counts all rows that the feed
-- has stored, those of replayed dead letters as well; `dead_letters` counts the records that are dead letters now. `lag`
-- counts the offsets that are not in the table yet; the group feed-NAME in consumer_lag has its seconds, too.
CREATE OR REPLACE VIEW ${table_feed_progress} AS
SELECT
    states.feed AS feed, states.topic AS topic, states.partition AS partition, states.last_phase AS phase,
    states.next AS next_offset, greatest(ends.end_offset - states.next, 0) AS lag,
    states.all_rows + dead.replayed_rows AS rows, dead.letters AS dead_letters, states.rows_per_second AS rows_per_second,
    states.since AS since, states.topic_id AS topic_id, states.feed_id AS feed_id
FROM
(
    SELECT
        any(block.feed) AS feed, any(block.topic) AS topic, topic_id, partition, feed_id,
        argMax(block.phase, version) AS last_phase,
        argMax(if(block.phase = 'before', first_offset, end_offset), version) AS next,
        argMax(total_rows, version) AS all_rows,
        sumIf(block.rows, block.phase = 'after' AND time > now64(3, 'UTC') - INTERVAL 1 MINUTE) / 60 AS rows_per_second,
        max(time) AS since
    FROM ${table_feed_blocks} AS block
    GROUP BY feed_id, topic_id, partition
) AS states
${global}INNER JOIN ${table_feeds} AS existing ON existing.feed_id = states.feed_id
${global}LEFT JOIN ${partition_stats} AS ends ON ends.topic_id = states.topic_id AND ends.partition = states.partition
${global}LEFT JOIN
(
    SELECT feed_id, topic_id, partition, countIf(NOT is_replayed) AS letters, sumIf(last_rows, is_replayed) AS replayed_rows
    FROM
    (
        SELECT feed_id, topic_id, partition, offset, argMax(replayed, time) AS is_replayed, argMax(rows, time) AS last_rows
        FROM ${dead_letter_versions}
        GROUP BY feed_id, topic_id, partition, offset
    )
    GROUP BY feed_id, topic_id, partition
) AS dead ON dead.feed_id = states.feed_id AND dead.topic_id = states.topic_id AND dead.partition = states.partition
ORDER BY feed, topic, partition
SETTINGS join_use_nulls = 0;
