-- The views that have failed, with what they miss as lines of text, for `brokerhouse views list`.
SELECT
    concat(database, '.', view) AS name,
    toString(failed_at) AS since,
    error,
    arrayStringConcat(
        arrayMap(one -> concat(one.topic, '-', toString(one.partition), ' ', toString(one.first_offset)), missed),
        '\n') AS missed,
    arrayStringConcat(
        arrayMap(
            one -> concat(one.topic, '-', toString(one.partition), ' ', toString(one.first_offset), ' to ',
                toString(one.end_offset - 1)),
            in_doubt),
        '\n') AS in_doubt
FROM brokerhouse.failed_views
FORMAT JSONEachRow;
