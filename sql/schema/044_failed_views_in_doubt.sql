-- view failed_views; cluster: rows of all shards
-- Materialized views on messages that were stopped because they could not be filled, and what they miss; and those that
-- have or lack some records since the process was killed (in_doubt), which go on.
CREATE OR REPLACE VIEW ${failed_views} AS
SELECT
    database, view,
    arrayStringConcat(groupArray(why), '\n') AS error,
    min(since) AS failed_at,
    groupArrayArray(lacks) AS missed,
    groupArrayArray(doubts) AS in_doubt
FROM
(
    SELECT
        v.database AS database, v.view AS view, v.error AS why, v.changed_at AS since, o.lacks AS lacks,
        []::Array(Tuple(topic String, partition Int32, first_offset Int64, end_offset Int64)) AS doubts
    FROM (SELECT database, view, error, changed_at FROM ${failed_view_versions} FINAL WHERE state != 'ended') AS v
    LEFT JOIN
    (
        SELECT
            database, view,
            arraySort(groupArray((topic, partition, first_offset)::Tuple(topic String, partition Int32, first_offset Int64)))
                AS lacks
        FROM ${failed_view_offsets} FINAL
        GROUP BY database, view
    ) AS o ON v.database = o.database AND v.view = o.view
    UNION ALL
    SELECT
        database, view,
        'killed while records were written: it has those in doubt, or lacks them' AS why,
        min(changed_at) AS since,
        []::Array(Tuple(topic String, partition Int32, first_offset Int64)) AS lacks,
        arraySort(groupArray((topic, partition, first_offset, end_offset)
            ::Tuple(topic String, partition Int32, first_offset Int64, end_offset Int64))) AS doubts
    FROM ${view_doubts} FINAL
    GROUP BY database, view
)
GROUP BY database, view
ORDER BY database, view;
