-- view messages_committed; cluster: rows of all shards
-- The log as a read_committed consumer sees it, with transactions. 054 replaces it by a faster one, and says how.
CREATE OR REPLACE VIEW ${messages_committed} AS
WITH
    (
        SELECT (
            arrayPushBack(groupArray(log), 0),
            arrayPushBack(groupArray(stable_offset), 0),
            now64(3, 'UTC') - INTERVAL 10 SECOND
        )
        FROM
        (
            SELECT cityHash64(topic_id, partition) AS log, min(transaction_start) AS stable_offset
            FROM ${open_transactions}
            GROUP BY log
        )
    ) AS unstable
SELECT *, timestamp
FROM ${messages}
WHERE NOT control
    AND (
        NOT transactional
        OR if(
            append_time < unstable.3,
            (cityHash64(topic_id, partition), transaction_start) NOT IN (
                SELECT cityHash64(topic_id, partition), transaction_start FROM ${aborted_transactions}
            ),
            (cityHash64(topic_id, partition), transaction_start) IN (
                SELECT cityHash64(topic_id, partition), transaction_start
                FROM ${messages}
                WHERE control AND key = '\0\0\0\x01' AND append_time >= now64(3, 'UTC') - INTERVAL 1 MINUTE
            )
        )
    )
    AND (
        length(unstable.1) = 1
        OR offset < transform(cityHash64(topic_id, partition), unstable.1, unstable.2, 9223372036854775807)
    );
