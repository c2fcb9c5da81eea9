-- A view of a topic's whole history: rows of an Iceberg table, and behind them those that are only in the log.
--
-- The seam is the next offset of each partition that the table has. ClickHouse chooses the snapshot of a table function
-- when it analyses the FROM, and finds a scalar subquery once for the whole query, when it is first used (measured,
-- 26.9). So the half of the log has to come first: then the seam is not newer than the snapshot of the other half, which
-- has all rows below it. Those above it, of a commit in between, are left out.
--
-- A partition is named by a hash, as in the view messages_committed.
--
-- Placeholders: view, table, log, topics, of_log and of_table (columns).
CREATE OR REPLACE VIEW ${view} AS
WITH
    (
        SELECT (arrayPushBack(groupArray(place), 0), arrayPushBack(groupArray(next_offset), 0))
        FROM
        (
            SELECT
                cityHash64(assumeNotNull(_topic), assumeNotNull(_partition)) AS place,
                assumeNotNull(max(_offset)) + 1 AS next_offset
            FROM ${table}
            WHERE _offset IS NOT NULL
            GROUP BY place
        )
    ) AS seam
SELECT ${of_log}
FROM
(
    SELECT *, arrayJoin(if(JSONType(value) = 'Array', JSONExtractArrayRaw(value), [value])) AS row
    FROM
    (
        SELECT topic, partition, offset, timestamp, key, headers, assumeNotNull(value) AS value
        FROM ${log}
        WHERE topic IN (${topics})
            AND value IS NOT NULL
            AND isValidJSON(value)
            AND offset >= transform(cityHash64(toString(topic), partition), seam.1, seam.2, 0)
    )
)
WHERE JSONType(row) = 'Object'
UNION ALL
SELECT ${of_table}
FROM ${table}
WHERE _offset IS NULL
    OR _offset < transform(
        cityHash64(assumeNotNull(_topic), assumeNotNull(_partition)), seam.1, seam.2, 0
    );
