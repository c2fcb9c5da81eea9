-- The runs of a slice of a partition: consecutive offsets of one block, each stored as often.
-- A block is the rows with one append_time and leader epoch. arraySplit cuts before an offset that
-- does not follow the one before it, or is stored more or less often.
-- Parameters: topic, topic_id, partition, from and to (offsets).
SELECT
    topic, toString(topic_id) AS topic_id, partition, append_ms, epoch,
    run[1].1 AS first, run[-1].1 AS last, run[1].2 AS times
FROM
(
    SELECT
        topic, topic_id, partition, append_ms, epoch,
        arraySort(groupArray((offset, times))) AS offsets,
        arraySplit(
            (one, step, more) -> step > 1 OR more != 0,
            offsets, arrayDifference(offsets.1), arrayDifference(offsets.2)) AS runs
    FROM
    (
        SELECT
            topic, topic_id, partition, toUnixTimestamp64Milli(append_time) AS append_ms,
            leader_epoch AS epoch, offset, toInt64(count()) AS times
        FROM messages
        WHERE topic = {topic:String} AND topic_id = {topic_id:UUID}
            AND partition = {partition:Int32}
            AND offset >= {from:Int64} AND offset < {to:Int64}
        GROUP BY topic, topic_id, partition, append_ms, epoch, offset
    )
    GROUP BY topic, topic_id, partition, append_ms, epoch
)
ARRAY JOIN runs AS run;
