-- view unended_transactions; cluster: nothing
-- The partitions of transactions that have not ended, as their coordinators know them.
CREATE OR REPLACE VIEW ${unended_transactions} AS
SELECT
    transactional_id,
    producer_id,
    state,
    start_time,
    arrayJoin(partitions) AS member,
    member.topic AS topic,
    member.topic_id AS topic_id,
    member.partition AS partition
FROM ${transaction_versions} FINAL
WHERE NOT removed AND state IN ('Ongoing', 'PrepareCommit', 'PrepareAbort');
