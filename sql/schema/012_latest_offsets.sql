-- view latest_offsets; cluster: rows of all shards
-- The last row of each (group_id, topic, partition) of consumer_offsets, deletions included, read from its
-- projection. Weeks that may have begun to expire are left out.
CREATE OR REPLACE VIEW ${latest_offsets} AS
SELECT
    group_id, topic, partition,
    tupleElement(latest, 1) AS topic_id,
    tupleElement(latest, 2) AS offset,
    tupleElement(latest, 3) AS leader_epoch,
    tupleElement(latest, 4) AS metadata,
    tupleElement(latest, 5) AS member_id,
    tupleElement(latest, 6) AS client_id,
    tupleElement(latest, 7) AS client_host,
    tupleElement(latest, 8) AS generation,
    tupleElement(latest, 9) AS commit_time,
    tupleElement(latest, 10) AS expire_time,
    tupleElement(latest, 11) AS deleted,
    tupleElement(latest, 12) AS coordinator,
    latest_version AS version,
    latest_stored_at AS stored_at
FROM
(
    SELECT
        group_id, topic, partition,
        argMax(tuple(topic_id, offset, leader_epoch, metadata, member_id, client_id, client_host, generation, commit_time, expire_time, deleted, coordinator), version) AS latest,
        max(version) AS latest_version,
        max(stored_at) AS latest_stored_at
    FROM ${consumer_offsets}
    GROUP BY group_id, topic, partition
)
WHERE toMonday(latest_stored_at) >= toMonday(now('UTC') - INTERVAL 8 WEEK);
