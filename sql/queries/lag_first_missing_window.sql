-- The begin of the first window for which lag_history may lack rows (seconds since 1970).
-- A group and partition is complete if it has every window from its first commit on, up to `until`,
-- when its offset was deleted. One that had no offset for a while and then committed again is never
-- complete, and makes the job look further back than it must.
-- Parameters: groups and topics, regular expressions; seconds of a window; first and end, where the
-- first window begins and the last one ends; history, how far back commits are read.
SELECT min(if(wanted < until, wanted, {end:Int64})) AS needed
FROM
(
    SELECT until, multiIf(
        have.windows = 0, since,
        have.newest - have.oldest = (have.windows - 1) * {seconds:Int64} AND have.oldest <= since,
        have.newest + {seconds:Int64},
        since) AS wanted
    FROM
    (
        SELECT
            group_id, topic_id, partition,
            greatest({first:Int64}, intDiv(toUnixTimestamp(minIf(commit_time, NOT deleted)),
                {seconds:Int64}) * {seconds:Int64}) AS since,
            if(argMax(deleted, version),
                intDiv(toUnixTimestamp(argMax(commit_time, version)), {seconds:Int64})
                    * {seconds:Int64},
                {end:Int64}) AS until
        FROM consumer_offsets
        WHERE match(group_id, {groups:String}) AND match(topic, {topics:String})
            AND topic_id GLOBAL IN (SELECT topic_id FROM topics)
            AND toUnixTimestamp(stored_at) >= {history:Int64}
            AND toUnixTimestamp(commit_time) < {end:Int64}
        GROUP BY group_id, topic_id, partition
        HAVING countIf(NOT deleted) > 0
    ) AS keys
    GLOBAL LEFT JOIN
    (
        SELECT
            group_id, topic_id, partition, uniqExact(window_start) AS windows,
            toInt64(toUnixTimestamp(min(window_start))) AS oldest,
            toInt64(toUnixTimestamp(max(window_start))) AS newest
        FROM lag_history
        WHERE window_seconds = {seconds:UInt32}
            AND toUnixTimestamp(window_start) >= {first:Int64}
        GROUP BY group_id, topic_id, partition
    ) AS have USING (group_id, topic_id, partition)
)
SETTINGS join_use_nulls = 0;
