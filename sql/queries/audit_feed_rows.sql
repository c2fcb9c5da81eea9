-- How many rows a table has of each block of a feed. Rows of replayed dead letters belong to no block.
-- Parameters: feed_id, database, table.
SELECT
    feed_id, parts[2] AS topic_id, toInt32(parts[3]) AS partition,
    toInt64(splitByChar('-', parts[4])[1]) AS first, toInt64(count()) AS stored
FROM (SELECT {feed_id:String} AS feed_id, splitByChar('/', _block) AS parts
      FROM {database:Identifier}.{table:Identifier} WHERE startsWith(_block, {feed_id:String}))
WHERE parts[4] NOT LIKE 'replay-%'
GROUP BY feed_id, topic_id, partition, first;
