-- view failed_views; cluster: rows of all shards
-- Materialized views on messages that were stopped because they could not be filled, and what they miss.
CREATE OR REPLACE VIEW ${failed_views} AS
SELECT v.database AS database, v.view AS view, error, failed_at, missed
FROM
(
    SELECT database, view, error, changed_at AS failed_at
    FROM ${failed_view_versions} FINAL
    WHERE state != 'ended'
) AS v
LEFT JOIN
(
    SELECT
        database, view,
        arraySort(groupArray((topic, partition, first_offset)::Tuple(topic String, partition Int32, first_offset Int64)))
            AS missed
    FROM ${failed_view_offsets} FINAL
    GROUP BY database, view
) AS o ON v.database = o.database AND v.view = o.view
ORDER BY database, view;
