-- The first offset of open transactions, and how many records they have.
-- A transaction marker ends what its producer wrote before it: the third and fourth bytes of its
-- key are 0 0 for an abort and 0 1 for a commit.
-- Parameters: topic, topic_id, partition, start and end (offsets).
SELECT toInt64(min(offset)), toInt64(count())
FROM
(
    SELECT offset, transactional AND NOT control AS data,
        max(if(
            control AND length(key) = 4 AND substring(key, 3, 2) IN ('\0\0', '\0\x01'), offset, -1
        )) OVER (PARTITION BY producer_id) AS ended
    FROM messages
    WHERE topic = {topic:String} AND topic_id = {topic_id:UUID} AND partition = {partition:Int32}
        AND offset >= {start:Int64} AND offset < {end:Int64} AND (transactional OR control)
)
WHERE data AND offset > ended;
