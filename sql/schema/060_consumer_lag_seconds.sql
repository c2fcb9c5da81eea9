-- view consumer_lag; cluster: same view, all shards
-- How far each group is behind, per partition that it has committed: in records, and in seconds since the oldest
-- record that it has not committed was appended. The seconds are 0 when no record is left to read; records that
-- were deleted unread count as lag in records, as they do for Kafka's tools. member_id, client_id and
-- client_host are those of the member that reads the partition now (`assigned`), or where none does, of the
-- member that committed.
--
-- The time of that oldest record is exact if it is not counted yet, which is so for some seconds to two minutes.
-- Otherwise it is estimated from its place among the records of its minute (partition_minutes), or of a part of the
-- minute (partition_seconds). Looking up every such record in the log would be exact, and would read half of the log
-- where groups are behind in many places (measured: 10,000 offsets in 10^8 records, 51 million rows).
--
-- `counted` has rows of one window each: where its offsets end, and when they were appended. What is not counted yet
-- is there too, a window for each append_time.
--
-- Reads the latest row of consumer_offsets per group and partition (twice: to look up windows and to answer),
-- partition_minutes, partition_seconds, and of `messages` the records since then, at most some millions. In the whole
-- cluster each shard counts its own minutes: the log is read from where it is counted on the shard that is furthest
-- behind.
CREATE OR REPLACE VIEW ${consumer_lag} AS
${on_shard}WITH
${on_shard}    (SELECT max(minute) + INTERVAL 1 MINUTE FROM ${partition_minutes}) AS counted_until,
${on_shard}    (SELECT max(until) FROM ${partition_seconds} WHERE minute = counted_until) AS seconds_until,
${on_shard}    greatest(counted_until, seconds_until) AS tail_from
${in_cluster}WITH
${in_cluster}    (SELECT min(until) FROM (SELECT max(minute) + INTERVAL 1 MINUTE AS until FROM ${partition_minutes} GROUP BY _shard_num)) AS counted_until,
${in_cluster}    (
${in_cluster}        SELECT min(shard_until)
${in_cluster}        FROM
${in_cluster}        (
${in_cluster}            SELECT shard, max(until) AS shard_until
${in_cluster}            FROM
${in_cluster}            (
${in_cluster}                SELECT _shard_num AS shard, (max(minute) + INTERVAL 1 MINUTE)::DateTime64(3, 'UTC') AS until FROM ${partition_minutes} GROUP BY _shard_num
${in_cluster}                UNION ALL
${in_cluster}                SELECT _shard_num AS shard, max(until) AS until FROM ${partition_seconds} GROUP BY _shard_num
${in_cluster}            )
${in_cluster}            GROUP BY shard
${in_cluster}        )
${in_cluster}    ) AS tail_from
SELECT
    position.group_id AS group_id,
    position.topic AS topic,
    position.topic_id AS topic_id,
    position.partition AS partition,
    committed_offset,
    end_offset,
    lag,
    multiIf(
        nothing_left, 0,
        oldest_time > now64(3, 'UTC'), 0,
        date_diff('millisecond', oldest_time, now64(3, 'UTC')) / 1000) AS lag_seconds,
    commit_time,
    if(assigned, reader.member_id, position.member_id) AS member_id,
    if(assigned, reader.client_id, position.client_id) AS client_id,
    if(assigned, reader.client_host, position.client_host) AS client_host,
    (reader.member_id != '')::Bool AS assigned
FROM
(
    SELECT
        positions.group_id AS group_id, positions.topic AS topic, positions.topic_id AS topic_id,
        positions.partition AS partition, committed_offset, end_offset, lag, nothing_left, commit_time, member_id, client_id, client_host,
        multiIf(
            counted.max_offset < next_offset OR counted.first_append_time = 0, last_time,
            counted.first_append_time + toIntervalMillisecond(
                date_diff('millisecond', counted.first_append_time, counted.last_append_time)
                * (greatest(next_offset, counted.min_offset) - counted.min_offset)
                / greatest(counted.max_offset - counted.min_offset, 1))) AS oldest_time
    FROM
    (
        SELECT
            group_id, partition_stats.topic AS topic, topic_id, partition, offset AS committed_offset, end_offset,
            greatest(offset, log_start_offset) AS next_offset, greatest(end_offset - greatest(offset, 0), 0) AS lag, last_time,
            next_offset >= end_offset AS nothing_left, commit_time, member_id, client_id, client_host
        FROM ${current_offsets}
        ${global}INNER JOIN ${partition_stats} USING (topic_id, partition)
    ) AS positions
    ${global}ASOF LEFT JOIN
    (
        SELECT topic_id, partition, min_offset, max_offset, first_append_time, last_append_time
        FROM ${partition_minutes}
        ${global}INNER JOIN
        (
            SELECT topic_id, partition, min(offset) AS wanted_from FROM ${current_offsets} GROUP BY topic_id, partition
        ) AS wanted USING (topic_id, partition)
        WHERE max_offset >= wanted_from AND topic ${global}IN
        (
            SELECT DISTINCT topic
            FROM (SELECT topic, max(version) FROM ${consumer_offsets} GROUP BY group_id, topic, partition)
        )
        UNION ALL
        SELECT topic_id, partition, min_offset, max_offset, first_append_time, last_append_time
        FROM ${partition_seconds}
        WHERE minute >= counted_until
        UNION ALL
        SELECT
            topic_id, partition, min(offset) AS min_offset, max(offset) AS max_offset,
            append_time AS first_append_time, append_time AS last_append_time
        FROM ${messages}
        WHERE append_time >= tail_from
        GROUP BY topic_id, partition, append_time
    ) AS counted
        ON counted.topic_id = positions.topic_id AND counted.partition = positions.partition AND counted.max_offset >= positions.next_offset
) AS position
${global}LEFT JOIN ${group_assignments} AS reader
    ON reader.group_id = position.group_id AND reader.topic = position.topic AND reader.partition = position.partition
ORDER BY group_id, topic, partition
SETTINGS join_use_nulls = 0;
