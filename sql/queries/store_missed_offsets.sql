-- Stores from which offset on a view lacks partitions.
--
-- Placeholder: database (of the table). Parameters: database and view; topics, ids, partitions, firsts (arrays of equal
-- length); replace: 1 replaces what is stored, 0 keeps it.
INSERT INTO ${database}.failed_view_offsets (database, view, topic, topic_id, partition, first_offset)
SELECT
    {database:String}, {view:String}, one.1, toUUID(one.2) AS id, toInt32(one.3) AS number, min(toInt64(one.4))
FROM
(
    SELECT arrayJoin(arrayZip(
        {topics:Array(String)}, {ids:Array(String)}, {partitions:Array(String)}, {firsts:Array(String)}
    )) AS one
)
WHERE {replace:UInt8} OR (id, number) NOT IN
(
    SELECT topic_id, partition
    FROM ${database}.failed_view_offsets FINAL
    WHERE database = {database:String} AND view = {view:String}
)
GROUP BY one.1, id, number;
