-- How far a replay of dead letters is: those it has not looked at, those that are left, and the records and rows that it
-- stored.
--
-- Parameters: f (the feed's id); asked (when it was asked for, milliseconds since 1970); topics (JSON: ids of topics that
-- exist; nobody looks at dead letters of others).
SELECT
    countIf(NOT replayed AND toUnixTimestamp64Milli(time) < {asked:Int64}
        AND has(JSONExtract({topics:String}, 'Array(String)'), toString(topic_id))) AS waiting,
    countIf(NOT replayed) AS dead_letters,
    countIf(is_new) AS records,
    sumIf(rows, is_new) AS rows
FROM
(
    SELECT *, replayed AND toUnixTimestamp64Milli(time) >= {asked:Int64} AS is_new
    FROM ${database}.dead_letter_versions FINAL
    WHERE feed_id = {f:UUID}
);
