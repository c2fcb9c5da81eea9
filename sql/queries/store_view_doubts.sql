-- Stores ranges of the log of which nobody knows whether a view has them.
--
-- Placeholder: table. Parameters: database and view; topics, ids, partitions, firsts, ends (of each range).
INSERT INTO ${table} (database, view, topic, topic_id, partition, first_offset, end_offset)
SELECT
    {database:String}, {view:String}, one.1, toUUID(one.2), toInt32(one.3), toInt64(one.4), toInt64(one.5)
FROM
(
    SELECT arrayJoin(arrayZip({topics:Array(String)}, {ids:Array(String)}, {partitions:Array(String)},
        {firsts:Array(String)}, {ends:Array(String)})) AS one
);
