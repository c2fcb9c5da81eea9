-- The tables and views of a new data directory, as ClickHouse stores their definitions.
-- Written by `make definitions` from sql/schema/, where they are explained;
-- storage/new_directory.py says what for.

-- aborted_transactions
ATTACH TABLE _ UUID '${uuid}'
(
    `topic` String COMMENT 'topic name',
    `topic_id` UUID COMMENT 'id of the topic',
    `partition` Int32 COMMENT 'Kafka partition',
    `producer_id` Int64 COMMENT 'of its records',
    `transaction_start` Int64 COMMENT 'where it began in this partition, as in messages',
    `last_offset` Int64 COMMENT 'of its marker'
)
ENGINE = ReplacingMergeTree
ORDER BY (topic, topic_id, partition, transaction_start)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 8192
-- cluster_state
ATTACH TABLE _ UUID '${uuid}'
(
    `key` String,
    `version` UInt64,
    `value` String
)
ENGINE = ReplacingMergeTree(version)
ORDER BY key
SETTINGS index_granularity = 8192
-- compaction_applied
ATTACH TABLE _ UUID '${uuid}'
(
    `batch_id` UUID COMMENT 'as in compaction_removals',
    `run_id` UUID COMMENT 'as in compaction_removals',
    `topic_id` UUID COMMENT 'as in compaction_removals',
    `partition` Int32 COMMENT 'as in compaction_removals',
    `removed` UInt64 COMMENT 'rows that were there and were removed',
    `refused` String COMMENT 'why nothing was removed; empty when the batch was applied',
    `applied_at` DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when the rows were gone'
)
ENGINE = ReplacingMergeTree(applied_at)
ORDER BY batch_id
SETTINGS index_granularity = 8192
-- compaction_batches
ATTACH VIEW _ UUID '${uuid}'
(
    `run_id` UUID,
    `batch_id` UUID,
    `topic` LowCardinality(String),
    `topic_id` UUID,
    `partition` Int32,
    `records` UInt64,
    `tombstones` UInt64,
    `bytes` UInt64,
    `log_end` Int64,
    `created_at` DateTime64(3, 'UTC'),
    `state` String,
    `removed` UInt64,
    `refused` String,
    `applied_at` DateTime64(3, 'UTC')
)
AS SELECT
    run_id,
    batch_id,
    topic,
    topic_id,
    partition,
    records,
    tombstones,
    bytes,
    log_end,
    created_at,
    multiIf(noted.applied_at = toDateTime64(0, 3, 'UTC'), 'pending', noted.refused = '', 'applied', 'refused') AS state,
    noted.removed AS removed,
    noted.refused AS refused,
    noted.applied_at AS applied_at
FROM
(
    SELECT
        run_id,
        batch_id,
        topic,
        topic_id,
        partition,
        records,
        tombstones,
        bytes,
        log_end,
        created_at
    FROM brokerhouse.compaction_removals
    WHERE notEmpty(ranges)
) AS decided
LEFT JOIN
(
    SELECT
        batch_id,
        argMax(compaction_applied.removed, compaction_applied.applied_at) AS removed,
        argMax(compaction_applied.refused, compaction_applied.applied_at) AS refused,
        max(compaction_applied.applied_at) AS applied_at
    FROM brokerhouse.compaction_applied
    GROUP BY batch_id
) AS noted USING (batch_id)
SETTINGS join_use_nulls = 0
-- compaction_removals
ATTACH TABLE _ UUID '${uuid}'
(
    `run_id` UUID COMMENT 'the run of the job that decided this',
    `batch_id` UUID COMMENT 'unique to the batch',
    `topic` LowCardinality(String) COMMENT 'topic name',
    `topic_id` UUID COMMENT 'a topic made again has another',
    `partition` Int32 COMMENT 'Kafka partition',
    `ranges` Array(Tuple(first Int64, last Int64)) COMMENT 'offsets to remove, both ends included; empty: how far a run came' CODEC(ZSTD(1)),
    `records` UInt64 COMMENT 'rows in these ranges',
    `tombstones` UInt64 COMMENT 'of them, those without a value',
    `bytes` UInt64 COMMENT 'of their keys and values, before compression',
    `log_end` Int64 COMMENT 'rows from here on were not looked at',
    `tombstones_end` Int64 COMMENT 'tombstones below this had no older record of their key',
    `created_at` DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written' CODEC(Delta(8), ZSTD(1))
)
ENGINE = MergeTree
ORDER BY (created_at, topic_id, partition)
SETTINGS non_replicated_deduplication_window = 10000, index_granularity = 8192
-- consumer_group_versions
ATTACH TABLE _ UUID '${uuid}'
(
    `group_id` String COMMENT 'as the clients call it',
    `version` UInt64 COMMENT 'microseconds of the coordinator\'s clock, never less than before',
    `state` LowCardinality(String) COMMENT 'Empty, PreparingRebalance, CompletingRebalance, Stable or Dead',
    `state_time` DateTime64(3, 'UTC') COMMENT 'since when it is in this state',
    `generation` Int32 COMMENT 'grows with every rebalance',
    `protocol_type` String COMMENT '"consumer" for consumers; kept when the last member is gone',
    `protocol_name` String COMMENT 'the assignor that the members agreed on; empty without members',
    `leader` String COMMENT 'member id of the one that assigns; empty without members',
    `members` UInt32 COMMENT 'how many there are',
    `removed` Bool COMMENT 'the group is Dead',
    `coordinator` Int32 COMMENT 'node id of the broker that wrote this',
    `changed_at` DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written',
    INDEX by_coordinator coordinator TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(version, removed)
ORDER BY group_id
SETTINGS non_replicated_deduplication_window = 1000, allow_experimental_replacing_merge_with_cleanup = 1, index_granularity = 8192
-- consumer_groups
ATTACH VIEW _ UUID '${uuid}'
(
    `group_id` String,
    `state` LowCardinality(String),
    `state_time` DateTime64(3, 'UTC'),
    `generation` Int32,
    `protocol_type` String,
    `protocol_name` String,
    `leader` String,
    `members` UInt32,
    `coordinator` Int32,
    `changed_at` DateTime64(3, 'UTC')
)
AS SELECT
    group_id,
    state,
    state_time,
    generation,
    protocol_type,
    protocol_name,
    leader,
    members,
    coordinator,
    changed_at
FROM brokerhouse.consumer_group_versions
FINAL
WHERE NOT removed
ORDER BY group_id ASC
-- consumer_lag
ATTACH VIEW _ UUID '${uuid}'
(
    `group_id` String,
    `topic` String,
    `topic_id` UUID,
    `partition` Int32,
    `committed_offset` Int64,
    `end_offset` Int64,
    `lag` Int64,
    `lag_seconds` Float64,
    `commit_time` DateTime64(3, 'UTC'),
    `member_id` String,
    `client_id` String,
    `client_host` String,
    `assigned` Bool
)
AS WITH
    (
        SELECT max(minute) + toIntervalMinute(1)
        FROM brokerhouse.partition_minutes
    ) AS counted_until,
    (
        SELECT max(until)
        FROM brokerhouse.partition_seconds
        WHERE minute = counted_until
    ) AS seconds_until,
    greatest(counted_until, seconds_until) AS tail_from
SELECT
    position.group_id AS group_id,
    position.topic AS topic,
    position.topic_id AS topic_id,
    position.partition AS partition,
    committed_offset,
    end_offset,
    lag,
    multiIf(nothing_left, 0, oldest_time > now64(3, 'UTC'), 0, dateDiff('millisecond', oldest_time, now64(3, 'UTC')) / 1000) AS lag_seconds,
    commit_time,
    if(assigned, reader.member_id, position.member_id) AS member_id,
    if(assigned, reader.client_id, position.client_id) AS client_id,
    if(assigned, reader.client_host, position.client_host) AS client_host,
    CAST((reader.member_id != ''), 'Bool') AS assigned
FROM
(
    SELECT
        positions.group_id AS group_id,
        positions.topic AS topic,
        positions.topic_id AS topic_id,
        positions.partition AS partition,
        committed_offset,
        end_offset,
        lag,
        nothing_left,
        commit_time,
        member_id,
        client_id,
        client_host,
        multiIf((counted.max_offset < next_offset) OR (counted.first_append_time = 0), last_time, counted.first_append_time + toIntervalMillisecond((dateDiff('millisecond', counted.first_append_time, counted.last_append_time) * (greatest(next_offset, counted.min_offset) - counted.min_offset)) / greatest(counted.max_offset - counted.min_offset, 1))) AS oldest_time
    FROM
    (
        SELECT
            group_id,
            partition_stats.topic AS topic,
            topic_id,
            partition,
            offset AS committed_offset,
            end_offset,
            greatest(offset, log_start_offset) AS next_offset,
            greatest(end_offset - greatest(offset, 0), 0) AS lag,
            last_time,
            next_offset >= end_offset AS nothing_left,
            commit_time,
            member_id,
            client_id,
            client_host
        FROM brokerhouse.current_offsets
        INNER JOIN brokerhouse.partition_stats USING (topic_id, partition)
    ) AS positions
    ASOF LEFT JOIN
    (
        SELECT
            topic_id,
            partition,
            min_offset,
            max_offset,
            first_append_time,
            last_append_time
        FROM brokerhouse.partition_minutes
        INNER JOIN
        (
            SELECT
                topic_id,
                partition,
                min(offset) AS wanted_from
            FROM brokerhouse.current_offsets
            GROUP BY
                topic_id,
                partition
        ) AS wanted USING (topic_id, partition)
        WHERE (max_offset >= wanted_from) AND (topic IN (
            SELECT DISTINCT topic
            FROM
            (
                SELECT
                    topic,
                    max(version)
                FROM brokerhouse.consumer_offsets
                GROUP BY
                    group_id,
                    topic,
                    partition
            )
        ))
        UNION ALL
        SELECT
            topic_id,
            partition,
            min_offset,
            max_offset,
            first_append_time,
            last_append_time
        FROM brokerhouse.partition_seconds
        WHERE minute >= counted_until
        UNION ALL
        SELECT
            topic_id,
            partition,
            min(offset) AS min_offset,
            max(offset) AS max_offset,
            append_time AS first_append_time,
            append_time AS last_append_time
        FROM brokerhouse.messages
        WHERE append_time >= tail_from
        GROUP BY
            topic_id,
            partition,
            append_time
    ) AS counted ON (counted.topic_id = positions.topic_id) AND (counted.partition = positions.partition) AND (counted.max_offset >= positions.next_offset)
) AS position
LEFT JOIN brokerhouse.group_assignments AS reader ON (reader.group_id = position.group_id) AND (reader.topic = position.topic) AND (reader.partition = position.partition)
ORDER BY
    group_id ASC,
    topic ASC,
    partition ASC
SETTINGS join_use_nulls = 0
-- consumer_offsets
ATTACH TABLE _ UUID '${uuid}'
(
    `group_id` String COMMENT 'the consumer group',
    `topic` String COMMENT 'topic name',
    `topic_id` UUID COMMENT 'id of the topic when this was committed; a topic made again has another',
    `partition` Int32 COMMENT 'Kafka partition',
    `offset` Int64 COMMENT 'the next offset that the group wants' CODEC(Delta(8), ZSTD(1)),
    `leader_epoch` Int32 COMMENT 'of the last record read; -1: not known',
    `metadata` String COMMENT 'what the consumer noted with it' CODEC(ZSTD(1)),
    `member_id` String COMMENT 'who committed; empty for a consumer without a group' CODEC(ZSTD(1)),
    `client_id` String COMMENT 'as the client calls itself' CODEC(ZSTD(1)),
    `client_host` String COMMENT 'its address' CODEC(ZSTD(1)),
    `generation` Int32 COMMENT 'of the group; -1 for a consumer without a group',
    `commit_time` DateTime64(3, 'UTC') COMMENT 'when it was committed' CODEC(Delta(8), ZSTD(1)),
    `expire_time` Nullable(DateTime64(3, 'UTC')) COMMENT 'when it ends, where the client said so (OffsetCommit before v5)',
    `deleted` Bool COMMENT 'the offset was deleted, has expired, or its topic is gone',
    `version` UInt64 COMMENT 'order of commits: microseconds of the coordinator\'s clock, never less than before' CODEC(Delta(8), ZSTD(1)),
    `coordinator` Int32 COMMENT 'node id of the broker that wrote this',
    `stored_at` DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this row was written' CODEC(Delta(8), ZSTD(1)),
    PROJECTION latest
    (
        SELECT
            group_id,
            topic,
            partition,
            argMax(tuple(topic_id, offset, leader_epoch, metadata, member_id, client_id, client_host, generation, commit_time, expire_time, deleted, coordinator), version),
            max(version),
            max(stored_at)
        GROUP BY
            group_id,
            topic,
            partition
    )
)
ENGINE = MergeTree
PARTITION BY (toMonday(stored_at), coordinator)
ORDER BY (group_id, topic, partition, version)
TTL toMonday(stored_at) + toIntervalDay(64)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, index_granularity = 8192
-- current_offsets
ATTACH VIEW _ UUID '${uuid}'
(
    `group_id` String,
    `topic` String,
    `topic_id` UUID,
    `partition` Int32,
    `offset` Int64,
    `leader_epoch` Int32,
    `metadata` String,
    `member_id` String,
    `client_id` String,
    `client_host` String,
    `generation` Int32,
    `commit_time` DateTime64(3, 'UTC'),
    `expire_time` Nullable(DateTime64(3, 'UTC'))
)
AS SELECT
    group_id,
    topic,
    topic_id,
    partition,
    offset,
    leader_epoch,
    metadata,
    member_id,
    client_id,
    client_host,
    generation,
    commit_time,
    expire_time
FROM brokerhouse.latest_offsets
WHERE (NOT deleted) AND (topic_id IN (
    SELECT topic_id
    FROM brokerhouse.topics
))
ORDER BY
    group_id ASC,
    topic ASC,
    partition ASC
-- dead_letter_versions
ATTACH TABLE _ UUID '${uuid}'
(
    `feed` String COMMENT 'name of the feed',
    `feed_id` UUID COMMENT 'a feed made again with this name has another',
    `topic` LowCardinality(String) COMMENT 'topic name',
    `topic_id` UUID COMMENT 'a topic made again has another',
    `partition` Int32 COMMENT 'Kafka partition',
    `offset` Int64 COMMENT 'of the record',
    `error` String COMMENT 'what is wrong with it',
    `time` DateTime64(3, 'UTC') COMMENT 'when it was found',
    `replayed` Bool COMMENT 'it has been parsed since, and is in the table',
    `rows` UInt32 DEFAULT toUInt32(replayed) COMMENT 'that a replay has made of it; 0 if it is dead, or if the rows are counted with its block'
)
ENGINE = ReplacingMergeTree(time)
ORDER BY (feed_id, topic_id, partition, offset)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 8192
-- dead_letters
ATTACH VIEW _ UUID '${uuid}'
(
    `feed` String,
    `topic` LowCardinality(String),
    `partition` Int32,
    `offset` Int64,
    `error` String,
    `time` DateTime64(3, 'UTC'),
    `topic_id` UUID,
    `feed_id` UUID
)
AS SELECT
    feed,
    topic,
    partition,
    offset,
    error,
    time,
    topic_id,
    feed_id
FROM brokerhouse.dead_letter_versions
FINAL
WHERE NOT replayed
ORDER BY
    feed ASC,
    topic ASC,
    partition ASC,
    offset ASC
-- failed_view_offsets
ATTACH TABLE _ UUID '${uuid}'
(
    `database` String COMMENT 'of the view',
    `view` String COMMENT 'its name',
    `topic` String COMMENT 'topic name',
    `topic_id` UUID COMMENT 'id of the topic',
    `partition` Int32 COMMENT 'Kafka partition',
    `first_offset` Int64 COMMENT 'from here on the view has nothing',
    `changed_at` DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'when this was written'
)
ENGINE = ReplacingMergeTree(changed_at)
ORDER BY (database, view, topic, topic_id, partition)
SETTINGS index_granularity = 8192
-- failed_view_versions
ATTACH TABLE _ UUID '${uuid}'
(
    `database` String COMMENT 'of the view',
    `view` String COMMENT 'its name',
    `definition` String COMMENT 'the statement that made it',
    `query` String COMMENT 'its SELECT',
    `target` String COMMENT 'name of its own table, if it does not write to another one',
    `state` Enum8('stopping' = 0, 'stopped' = 1, 'ended' = 2) COMMENT 'see above',
    `error` String COMMENT 'why it could not be filled',
    `changed_at` DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'when this was written'
)
ENGINE = ReplacingMergeTree(changed_at)
ORDER BY (database, view)
SETTINGS index_granularity = 8192
-- failed_views
ATTACH VIEW _ UUID '${uuid}'
(
    `database` String,
    `view` String,
    `error` String,
    `failed_at` DateTime64(6, 'UTC'),
    `missed` Array(Tuple(topic String, partition Int32, first_offset Int64)),
    `in_doubt` Array(Tuple(topic String, partition Int32, first_offset Int64, end_offset Int64))
)
AS SELECT
    database,
    view,
    arrayStringConcat(groupArray(why), '\n') AS error,
    min(since) AS failed_at,
    groupArrayArray(lacks) AS missed,
    groupArrayArray(doubts) AS in_doubt
FROM
(
    SELECT
        v.database AS database,
        v.view AS view,
        v.error AS why,
        v.changed_at AS since,
        o.lacks AS lacks,
        CAST('[]', 'Array(Tuple(topic String, partition Int32, first_offset Int64, end_offset Int64))') AS doubts
    FROM
    (
        SELECT
            database,
            view,
            error,
            changed_at
        FROM brokerhouse.failed_view_versions
        FINAL
        WHERE state != 'ended'
    ) AS v
    LEFT JOIN
    (
        SELECT
            database,
            view,
            arraySort(groupArray(CAST((topic, partition, first_offset), 'Tuple(topic String, partition Int32, first_offset Int64)'))) AS lacks
        FROM brokerhouse.failed_view_offsets
        FINAL
        GROUP BY
            database,
            view
    ) AS o ON (v.database = o.database) AND (v.view = o.view)
    UNION ALL
    SELECT
        database,
        view,
        'killed while records were written: it has those in doubt, or lacks them' AS why,
        min(changed_at) AS since,
        CAST('[]', 'Array(Tuple(topic String, partition Int32, first_offset Int64))') AS lacks,
        arraySort(groupArray(CAST((topic, partition, first_offset, end_offset), 'Tuple(topic String, partition Int32, first_offset Int64, end_offset Int64)'))) AS doubts
    FROM brokerhouse.view_doubts
    FINAL
    GROUP BY
        database,
        view
)
GROUP BY
    database,
    view
ORDER BY
    database ASC,
    view ASC
-- group_assignments
ATTACH VIEW _ UUID '${uuid}'
(
    `group_id` String,
    `topic` String,
    `partition` Int32,
    `member_id` String,
    `group_instance_id` Nullable(String),
    `client_id` String,
    `client_host` String
)
AS SELECT
    group_id,
    topic,
    partition,
    member_id,
    group_instance_id,
    client_id,
    client_host
FROM
(
    SELECT
        group_id,
        member_id,
        group_instance_id,
        client_id,
        client_host,
        topic,
        mapKeys(owners) AS partitions
    FROM brokerhouse.group_member_versions
    FINAL
    ARRAY JOIN
        mapKeys(assignment) AS topic,
        mapValues(assignment) AS owners
    WHERE NOT removed
)
ARRAY JOIN partitions AS partition
ORDER BY
    group_id ASC,
    topic ASC,
    partition ASC
-- group_heartbeats
ATTACH TABLE _ UUID '${uuid}'
(
    `group_id` String COMMENT 'the group that it is a member of',
    `member_id` String COMMENT 'given by the coordinator',
    `heartbeat_time` DateTime64(3, 'UTC') COMMENT 'the last heartbeat, join or sync',
    `coordinator` Int32 COMMENT 'node id of the broker that wrote this',
    INDEX by_coordinator coordinator TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(heartbeat_time)
ORDER BY (group_id, member_id)
TTL toDateTime(heartbeat_time) + toIntervalDay(1)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 8192
-- group_member_versions
ATTACH TABLE _ UUID '${uuid}'
(
    `group_id` String COMMENT 'the group that it is a member of',
    `member_id` String COMMENT 'given by the coordinator',
    `version` UInt64 COMMENT 'that of the group when the member changed last',
    `generation` Int32 COMMENT 'that of the group when the member changed last',
    `group_instance_id` Nullable(String) COMMENT 'of a static member (KIP-345), else null',
    `client_id` String COMMENT 'as the client calls itself',
    `client_host` String COMMENT 'its address',
    `session_timeout_ms` Int32 COMMENT 'without a heartbeat for this long it is gone',
    `rebalance_timeout_ms` Int32 COMMENT 'how long a rebalance waits for it',
    `protocol_name` String COMMENT 'the assignor that the group agreed on',
    `protocols` Array(Tuple(name String, metadata String)) COMMENT 'assignors that it offers, the preferred one first, each with its subscription as sent',
    `assignment` Map(String, Map(Int32, String)) COMMENT 'topic to partition to the member that reads it, which is this one; empty where the bytes are no assignment of a consumer',
    `assignment_bytes` String COMMENT 'its assignment as the leader sent it',
    `join_time` DateTime64(3, 'UTC') COMMENT 'when it joined the group first',
    `removed` Bool COMMENT 'it has left the group',
    `coordinator` Int32 COMMENT 'node id of the broker that wrote this',
    `changed_at` DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written',
    INDEX by_coordinator coordinator TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(version, removed)
ORDER BY (group_id, member_id)
SETTINGS non_replicated_deduplication_window = 1000, allow_experimental_replacing_merge_with_cleanup = 1, index_granularity = 8192
-- group_members
ATTACH VIEW _ UUID '${uuid}'
(
    `group_id` String,
    `member_id` String,
    `group_instance_id` Nullable(String),
    `client_id` String,
    `client_host` String,
    `session_timeout_ms` Int32,
    `rebalance_timeout_ms` Int32,
    `protocol_name` String,
    `assignment` Map(String, Map(Int32, String)),
    `join_time` DateTime64(3, 'UTC'),
    `heartbeat_time` DateTime64(3, 'UTC'),
    `coordinator` Int32,
    `changed_at` DateTime64(3, 'UTC')
)
AS SELECT
    group_id,
    member_id,
    group_instance_id,
    client_id,
    client_host,
    session_timeout_ms,
    rebalance_timeout_ms,
    protocol_name,
    assignment,
    join_time,
    greatest(join_time, heartbeat.heartbeat_time) AS heartbeat_time,
    coordinator,
    changed_at
FROM brokerhouse.group_member_versions AS member
FINAL
LEFT JOIN
(
    SELECT
        group_id,
        member_id,
        max(heartbeat_time) AS heartbeat_time
    FROM brokerhouse.group_heartbeats
    GROUP BY
        group_id,
        member_id
) AS heartbeat USING (group_id, member_id)
WHERE NOT removed
ORDER BY
    group_id ASC,
    member_id ASC
-- group_state
ATTACH VIEW _ UUID '${uuid}'
(
    `group_id` String,
    `state` LowCardinality(String),
    `state_time` DateTime64(3, 'UTC'),
    `generation` Int32,
    `protocol_type` String,
    `protocol` String,
    `leader` String,
    `members` UInt32,
    `partitions` UInt64,
    `last_heartbeat` Nullable(DateTime64(3, 'UTC')),
    `coordinator` Int32
)
AS SELECT
    group_id,
    state,
    state_time,
    generation,
    protocol_type,
    protocol_name AS protocol,
    leader,
    members,
    assigned.partitions AS partitions,
    if(beating.last_heartbeat > 0, beating.last_heartbeat, NULL) AS last_heartbeat,
    coordinator
FROM brokerhouse.consumer_groups
LEFT JOIN
(
    SELECT
        group_id,
        count() AS partitions
    FROM brokerhouse.group_assignments
    GROUP BY group_id
) AS assigned USING (group_id)
LEFT JOIN
(
    SELECT
        group_id,
        max(heartbeat_time) AS last_heartbeat
    FROM brokerhouse.group_members
    GROUP BY group_id
) AS beating USING (group_id)
ORDER BY group_id ASC
SETTINGS join_use_nulls = 0
-- lag_alerts
ATTACH TABLE _ UUID '${uuid}'
(
    `kind` LowCardinality(String) COMMENT 'records, seconds, growing or stalled',
    `group_id` String COMMENT 'the consumer group',
    `topic` LowCardinality(String) COMMENT 'topic name',
    `topic_id` UUID COMMENT 'a topic made again has another',
    `partition` Int32 COMMENT 'Kafka partition',
    `began_at` DateTime('UTC') COMMENT 'end of the first window with it' CODEC(Delta(4), ZSTD(1)),
    `ended_at` Nullable(DateTime('UTC')) COMMENT 'end of the first window without it; null while it lasts',
    `threshold` Float64 COMMENT 'what was passed: records, seconds or windows, as the kind says',
    `value` Float64 COMMENT 'records or seconds behind when it began; records for growing and stalled',
    `peak` Float64 COMMENT 'the most of that, up to evaluated_until',
    `window_seconds` UInt32 COMMENT 'of the windows that it was found in',
    `evaluated_until` DateTime('UTC') COMMENT 'end of the last window that was looked at when this was written'
)
ENGINE = ReplacingMergeTree(evaluated_until)
PARTITION BY toYYYYMM(began_at)
ORDER BY (kind, group_id, topic, partition, topic_id, window_seconds, began_at)
TTL began_at + toIntervalYear(1)
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, index_granularity = 8192
-- lag_history
ATTACH TABLE _ UUID '${uuid}'
(
    `window_start` DateTime('UTC') COMMENT 'when the window began; all values are those of its end' CODEC(Delta(4), ZSTD(1)),
    `window_seconds` UInt32 COMMENT 'how long it is',
    `group_id` String COMMENT 'the consumer group',
    `topic` LowCardinality(String) COMMENT 'topic name',
    `topic_id` UUID COMMENT 'a topic made again has another',
    `partition` Int32 COMMENT 'Kafka partition',
    `committed_offset` Int64 COMMENT 'the next offset that the group wanted' CODEC(Delta(8), ZSTD(1)),
    `commit_time` DateTime64(3, 'UTC') COMMENT 'when it had said so' CODEC(Delta(8), ZSTD(1)),
    `end_offset` Int64 COMMENT 'the offset that the next record would get' CODEC(Delta(8), ZSTD(1)),
    `lag` Int64 COMMENT 'records between the two' CODEC(ZSTD(1)),
    `lag_seconds` Float64 COMMENT 'since the oldest record that was not committed came in; 0 when all were' CODEC(ZSTD(1)),
    `rate_in` Float64 COMMENT 'records a second that came in during the window' CODEC(ZSTD(1)),
    `rate_out` Nullable(Float64) COMMENT 'records a second that were committed during it; null in the window of the first commit' CODEC(ZSTD(1)),
    `catch_up_seconds` Nullable(Float64) COMMENT 'until lag is 0 at these rates; null when that never comes' CODEC(ZSTD(1)),
    `trend` Float64 COMMENT 'records a second by which lag grew over the last windows (least squares)' CODEC(ZSTD(1)),
    `computed_at` DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written' CODEC(Delta(8), ZSTD(1))
)
ENGINE = ReplacingMergeTree(computed_at)
PARTITION BY toMonday(window_start)
ORDER BY (group_id, topic, partition, topic_id, window_seconds, window_start)
TTL window_start + toIntervalDay(90)
SETTINGS non_replicated_deduplication_window = 20000, ttl_only_drop_parts = 1, index_granularity = 8192
-- latest_offsets
ATTACH VIEW _ UUID '${uuid}'
(
    `group_id` String,
    `topic` String,
    `partition` Int32,
    `topic_id` UUID,
    `offset` Int64,
    `leader_epoch` Int32,
    `metadata` String,
    `member_id` String,
    `client_id` String,
    `client_host` String,
    `generation` Int32,
    `commit_time` DateTime64(3, 'UTC'),
    `expire_time` Nullable(DateTime64(3, 'UTC')),
    `deleted` Bool,
    `coordinator` Int32,
    `version` UInt64,
    `stored_at` DateTime64(3, 'UTC')
)
AS SELECT
    group_id,
    topic,
    partition,
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
        group_id,
        topic,
        partition,
        argMax(tuple(topic_id, offset, leader_epoch, metadata, member_id, client_id, client_host, generation, commit_time, expire_time, deleted, coordinator), version) AS latest,
        max(version) AS latest_version,
        max(stored_at) AS latest_stored_at
    FROM brokerhouse.consumer_offsets
    GROUP BY
        group_id,
        topic,
        partition
)
WHERE toMonday(latest_stored_at) >= toMonday(now('UTC') - toIntervalWeek(8))
-- leader_epochs
ATTACH TABLE _ UUID '${uuid}'
(
    `topic_id` UUID COMMENT 'id of the topic',
    `partition` Int32 COMMENT 'Kafka partition',
    `leader_epoch` Int32 COMMENT 'as in messages',
    `start_offset` Int64 COMMENT 'first offset of the epoch'
)
ENGINE = ReplacingMergeTree(leader_epoch)
ORDER BY (topic_id, partition, start_offset)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 8192
-- messages
ATTACH TABLE _ UUID '${uuid}'
(
    `topic` LowCardinality(String) COMMENT 'topic name' CODEC(LZ4),
    `topic_id` UUID COMMENT 'Kafka topic id (KIP-516); a topic made again has another' CODEC(LZ4),
    `partition` Int32 COMMENT 'Kafka partition' CODEC(LZ4),
    `offset` Int64 COMMENT 'Kafka offset' CODEC(Delta(8), LZ4),
    `timestamp_ms` Int64 COMMENT 'Kafka timestamp as sent, any int64, milliseconds' CODEC(Delta(8), ZSTD(1)),
    `timestamp_type` Enum8('CreateTime' = 0, 'LogAppendTime' = 1) COMMENT 'who set timestamp_ms: the client or the broker' CODEC(LZ4),
    `timestamp` DateTime64(3, 'UTC') ALIAS fromUnixTimestamp64Milli(timestamp_ms, 'UTC'),
    `key` Nullable(String) COMMENT 'null is not empty' CODEC(Default),
    `value` Nullable(String) COMMENT 'null is not empty' CODEC(Default),
    `headers` Array(Tuple(key String, value Nullable(String))) COMMENT 'in the order sent, repeats kept' CODEC(Default),
    `producer_id` Int64 COMMENT '-1: not idempotent' CODEC(Delta(8), ZSTD(1)),
    `producer_epoch` Int16 COMMENT '-1: not idempotent' CODEC(LZ4),
    `sequence` Int32 COMMENT 'of the record within its producer; -1: not idempotent' CODEC(Delta(4), ZSTD(1)),
    `transactional` Bool COMMENT 'written inside a transaction' CODEC(LZ4),
    `control` Bool COMMENT 'a transaction marker, not a record of a client' CODEC(LZ4),
    `transaction_start` Int64 DEFAULT -1 COMMENT 'where its transaction began in this partition; -1: not part of one' CODEC(Delta(8), LZ4),
    `leader_epoch` Int32 COMMENT 'epoch of the owner that wrote it' CODEC(LZ4),
    `append_time` DateTime64(3, 'UTC') COMMENT 'when the broker took it' CODEC(Delta(8), LZ4),
    INDEX by_timestamp timestamp_ms TYPE minmax GRANULARITY 1,
    INDEX by_append_time append_time TYPE minmax GRANULARITY 1,
    INDEX by_transactional transactional TYPE minmax GRANULARITY 1,
    INDEX by_control control TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(append_time)
ORDER BY (topic, partition, offset)
SETTINGS non_replicated_deduplication_window = 100000, index_granularity = 8192, remove_empty_parts = 0, default_compression_codec = ''
-- messages_committed
ATTACH VIEW _ UUID '${uuid}'
(
    `topic` LowCardinality(String),
    `topic_id` UUID,
    `partition` Int32,
    `offset` Int64,
    `timestamp_ms` Int64,
    `timestamp_type` Enum8('CreateTime' = 0, 'LogAppendTime' = 1),
    `key` Nullable(String),
    `value` Nullable(String),
    `headers` Array(Tuple(key String, value Nullable(String))),
    `producer_id` Int64,
    `producer_epoch` Int16,
    `sequence` Int32,
    `transactional` Bool,
    `control` Bool,
    `transaction_start` Int64,
    `leader_epoch` Int32,
    `append_time` DateTime64(3, 'UTC'),
    `timestamp` DateTime64(3, 'UTC')
)
AS WITH
    (
        SELECT (arrayPushBack(groupArray(log), 0), arrayPushBack(groupArray(stable_offset), 0), now64(3, 'UTC') - toIntervalSecond(10))
        FROM
        (
            SELECT
                reinterpretAsUInt64(topic_id) + partition AS log,
                min(transaction_start) AS stable_offset
            FROM brokerhouse.open_transactions
            GROUP BY log
        )
    ) AS unstable
SELECT
    *,
    timestamp
FROM brokerhouse.messages
WHERE bitAnd(bitAnd(NOT control, ((reinterpretAsUInt64(topic_id) + partition, transaction_start) NOT IN (
    SELECT
        reinterpretAsUInt64(topic_id) + partition,
        transaction_start
    FROM brokerhouse.aborted_transactions
))), bitAnd((length(unstable.1) = 1) OR (offset < transform(reinterpretAsUInt64(topic_id) + partition, unstable.1, unstable.2, 9223372036854775807)), bitOr(bitOr(transaction_start = -1, append_time < (unstable.3)), ((reinterpretAsUInt64(topic_id) + partition, transaction_start) IN (
    SELECT
        reinterpretAsUInt64(topic_id) + partition,
        transaction_start
    FROM brokerhouse.messages
    WHERE control AND (key = '\0\0\0') AND (append_time >= (now64(3, 'UTC') - toIntervalMinute(1)))
)))))
SETTINGS preferred_block_size_bytes = 4000000
-- open_transaction_versions
ATTACH TABLE _ UUID '${uuid}'
(
    `topic` String COMMENT 'topic name',
    `topic_id` UUID COMMENT 'id of the topic',
    `partition` Int32 COMMENT 'Kafka partition',
    `producer_id` Int64 COMMENT 'of its records',
    `producer_epoch` Int16 COMMENT 'of its records',
    `transaction_start` Int64 COMMENT 'where it began in this partition, as in messages',
    `ended` Bool COMMENT 'it is not open any more',
    `version` UInt64 COMMENT 'of a later leader always higher; else milliseconds of the leader\'s clock, never less than before'
)
ENGINE = ReplacingMergeTree(version, ended)
ORDER BY (topic, topic_id, partition, producer_id)
SETTINGS non_replicated_deduplication_window = 1000, allow_experimental_replacing_merge_with_cleanup = 1, index_granularity = 8192
-- open_transactions
ATTACH VIEW _ UUID '${uuid}'
(
    `topic` String,
    `topic_id` UUID,
    `partition` Int32,
    `producer_id` Int64,
    `transaction_start` Int64
)
AS SELECT
    topic,
    topic_id,
    partition,
    producer_id,
    transaction_start
FROM brokerhouse.open_transaction_versions
FINAL
WHERE NOT ended
-- partition_checkpoints
ATTACH TABLE _ UUID '${uuid}'
(
    `topic_id` UUID,
    `partition` Int32,
    `log_start_offset` SimpleAggregateFunction(max, Int64),
    `next_offset_floor` SimpleAggregateFunction(max, Int64),
    `forgot_producers` SimpleAggregateFunction(max, Bool) DEFAULT true COMMENT 'rows were deleted of producers that are not in producer_states'
)
ENGINE = AggregatingMergeTree
ORDER BY (topic_id, partition)
SETTINGS index_granularity = 8192
-- partition_minutes
ATTACH TABLE _ UUID '${uuid}'
(
    `topic` LowCardinality(String) COMMENT 'topic name; empty in the row that ends a window',
    `topic_id` UUID COMMENT 'a topic made again has another',
    `partition` Int32 COMMENT 'Kafka partition; -1 in the row that ends a window',
    `minute` DateTime('UTC') COMMENT 'start of the minute of append_time; of an hour, its last one with records' CODEC(Delta(4), ZSTD(1)),
    `records` UInt64 COMMENT 'rows of the log, control records included' CODEC(ZSTD(1)),
    `bytes` UInt64 COMMENT 'of keys and values, before compression' CODEC(ZSTD(1)),
    `min_offset` Int64 COMMENT 'first offset of the minute' CODEC(Delta(8), ZSTD(1)),
    `max_offset` Int64 COMMENT 'last offset of the minute' CODEC(Delta(8), ZSTD(1)),
    `first_append_time` DateTime64(3, 'UTC') COMMENT 'of the first record' CODEC(Delta(8), ZSTD(1)),
    `last_append_time` DateTime64(3, 'UTC') COMMENT 'of the last record' CODEC(Delta(8), ZSTD(1)),
    PROJECTION totals
    (
        SELECT
            topic,
            topic_id,
            partition,
            max(minute),
            sum(records),
            sum(bytes),
            min(min_offset),
            max(max_offset),
            min(first_append_time),
            max(last_append_time)
        GROUP BY
            topic,
            topic_id,
            partition
    )
)
ENGINE = MergeTree
ORDER BY (toStartOfHour(minute), topic, topic_id, partition, minute)
TTL minute + toIntervalWeek(1) GROUP BY toStartOfHour(minute), topic, topic_id, partition SET minute = max(minute), records = sum(records), bytes = sum(bytes), min_offset = min(min_offset), max_offset = max(max_offset), first_append_time = min(first_append_time), last_append_time = max(last_append_time)
SETTINGS non_replicated_deduplication_window = 100, index_granularity = 8192
-- partition_seconds
ATTACH TABLE _ UUID '${uuid}'
(
    `topic` LowCardinality(String) COMMENT 'topic name; empty in the row that ends a window',
    `topic_id` UUID COMMENT 'a topic made again has another',
    `partition` Int32 COMMENT 'Kafka partition; -1 in the row that ends a window',
    `minute` DateTime('UTC') COMMENT 'start of the minute of append_time',
    `until` DateTime64(3, 'UTC') COMMENT 'end of the window: rows since then are not in it',
    `records` UInt64 COMMENT 'rows of the log, control records included',
    `bytes` UInt64 COMMENT 'of keys and values, before compression',
    `min_offset` Int64 COMMENT 'first offset of the window',
    `max_offset` Int64 COMMENT 'last offset of the window',
    `first_append_time` DateTime64(3, 'UTC') COMMENT 'of the first record',
    `last_append_time` DateTime64(3, 'UTC') COMMENT 'of the last record'
)
ENGINE = MergeTree
PARTITION BY minute
ORDER BY (minute, topic, topic_id, partition, until)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 8192
-- partition_stats
ATTACH VIEW _ UUID '${uuid}'
(
    `topic` String,
    `topic_id` UUID,
    `partition` Int32,
    `log_start_offset` Int64,
    `end_offset` Int64,
    `records` UInt64,
    `bytes` UInt64,
    `first_time` DateTime64(3, 'UTC'),
    `last_time` DateTime64(3, 'UTC')
)
AS WITH
    (
        SELECT max(minute) + toIntervalMinute(1)
        FROM brokerhouse.partition_minutes
    ) AS counted_until,
    (
        SELECT max(until)
        FROM brokerhouse.partition_seconds
        WHERE minute = counted_until
    ) AS seconds_until,
    greatest(counted_until, seconds_until) AS tail_from
SELECT
    topic,
    topic_id,
    partition,
    CAST(log_start_offset, 'Int64') AS log_start_offset,
    end_offset,
    least(appended, toUInt64(greatest(end_offset - log_start_offset, 0))) AS records,
    if(records = appended, appended_bytes, toUInt64((appended_bytes / appended) * records)) AS bytes,
    first_time,
    last_time
FROM
(
    SELECT
        topic,
        topic_id,
        partition,
        log_start_offset,
        greatest(counted.next_offset, tail.next_offset, next_offset_floor) AS end_offset,
        arrayFilter(minute -> (minute.start > counted.last_minute), tail.minutes) AS news,
        counted.records + arraySum(minute -> minute.records, news) AS appended,
        counted.bytes + arraySum(minute -> minute.bytes, news) AS appended_bytes,
        if(counted.records > 0, counted.first_time, tail.first_time) AS first_time,
        greatest(counted.last_time, tail.last_time) AS last_time
    FROM
    (
        SELECT
            name AS topic,
            topic_id,
            toInt32(arrayJoin(range(partitions))) AS partition
        FROM brokerhouse.topics
    ) AS live
    LEFT JOIN
    (
        SELECT
            topic_id,
            partition,
            sum(records) AS records,
            sum(bytes) AS bytes,
            max(max_offset) + 1 AS next_offset,
            max(minute) AS last_minute,
            min(first_append_time) AS first_time,
            max(last_append_time) AS last_time
        FROM brokerhouse.partition_minutes
        GROUP BY
            topic_id,
            partition
    ) AS counted USING (topic_id, partition)
    LEFT JOIN
    (
        SELECT
            topic_id,
            partition,
            groupArray(CAST((start, records, bytes), 'Tuple(start DateTime, records UInt64, bytes UInt64)')) AS minutes,
            max(last_offset) + 1 AS next_offset,
            min(first) AS first_time,
            max(last) AS last_time
        FROM
        (
            SELECT
                topic_id,
                partition,
                minute AS start,
                max_offset AS last_offset,
                records,
                bytes,
                first_append_time AS first,
                last_append_time AS last
            FROM brokerhouse.partition_seconds
            WHERE (minute = counted_until) AND (until <= tail_from)
            UNION ALL
            SELECT
                topic_id,
                partition,
                CAST(toStartOfMinute(append_time), 'DateTime(\'UTC\')') AS start,
                max(offset) AS last_offset,
                count() AS records,
                sum(ifNull(key.size, 0) + ifNull(value.size, 0)) AS bytes,
                min(append_time) AS first,
                max(append_time) AS last
            FROM brokerhouse.messages
            WHERE append_time >= tail_from
            GROUP BY
                topic_id,
                partition,
                start
        )
        GROUP BY
            topic_id,
            partition
    ) AS tail USING (topic_id, partition)
    LEFT JOIN
    (
        SELECT
            topic_id,
            partition,
            max(log_start_offset) AS log_start_offset,
            max(next_offset_floor) AS next_offset_floor
        FROM brokerhouse.partition_checkpoints
        GROUP BY
            topic_id,
            partition
    ) AS checkpoint USING (topic_id, partition)
)
ORDER BY
    topic ASC,
    partition ASC
SETTINGS join_use_nulls = 0
-- producer_states
ATTACH TABLE _ UUID '${uuid}'
(
    `topic_id` UUID COMMENT 'id of the topic',
    `partition` Int32 COMMENT 'Kafka partition',
    `producer_id` Int64 COMMENT 'as in messages',
    `producer_epoch` Int16 COMMENT 'as in messages',
    `control` Bool COMMENT 'transaction markers, not records',
    `shift` Int32 COMMENT 'offset less sequence, modulo 2^31: neighbouring batches have the same; 0 for markers',
    `first_offset` SimpleAggregateFunction(min, Int64) COMMENT 'of these records or markers',
    `last_offset` SimpleAggregateFunction(max, Int64) COMMENT 'of these records or markers',
    `coordinator_epoch` SimpleAggregateFunction(max, Int32) COMMENT 'of these markers; -1 for records',
    `append_time` SimpleAggregateFunction(max, DateTime64(3, 'UTC')) COMMENT 'when the producer wrote here last, as far as this row knows'
)
ENGINE = AggregatingMergeTree
ORDER BY (topic_id, partition, producer_id, producer_epoch, control, shift)
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 8192
-- schema_migrations
ATTACH TABLE _ UUID '${uuid}'
(
    `number` UInt32,
    `name` String,
    `applied_at` DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY number
SETTINGS index_granularity = 8192
-- table_feed_blocks
ATTACH TABLE _ UUID '${uuid}'
(
    `feed` String COMMENT 'its name',
    `feed_id` UUID COMMENT 'a feed made again with this name has another',
    `topic` LowCardinality(String) COMMENT 'topic name',
    `topic_id` UUID COMMENT 'a topic made again has another',
    `partition` Int32 COMMENT 'Kafka partition',
    `version` UInt64 COMMENT 'of the state in the registry' CODEC(Delta(8), ZSTD(1)),
    `epoch` UInt64 COMMENT 'grows with every feeder; earlier ones are fenced' CODEC(Delta(8), ZSTD(1)),
    `feeder` String COMMENT 'who wrote this',
    `phase` LowCardinality(String) COMMENT 'before: the block is to be inserted; after: its rows are stored',
    `first_offset` Int64 COMMENT 'of the block; -1: none was begun' CODEC(Delta(8), ZSTD(1)),
    `end_offset` Int64 COMMENT 'the offset after the last of the block' CODEC(Delta(8), ZSTD(1)),
    `attempt` UInt32 COMMENT 'part of the token in column _block of the rows',
    `rows` UInt64 COMMENT 'that the block has in the table, once it is complete' CODEC(ZSTD(1)),
    `dead_letters` UInt64 COMMENT 'records of the block that did not fit' CODEC(ZSTD(1)),
    `reference_offset` Int64 COMMENT 'where the feed began',
    `total_rows` UInt64 COMMENT 'of all complete blocks from reference_offset on' CODEC(Delta(8), ZSTD(1)),
    `total_dead_letters` UInt64 COMMENT 'of all complete blocks from reference_offset on' CODEC(Delta(8), ZSTD(1)),
    `time` DateTime64(3, 'UTC') COMMENT 'when this was written' CODEC(Delta(8), ZSTD(1))
)
ENGINE = ReplacingMergeTree(time)
PARTITION BY toMonday(time)
ORDER BY (feed_id, topic_id, partition, version)
TTL toDateTime(time) + toIntervalDay(90)
SETTINGS non_replicated_deduplication_window = 1000, ttl_only_drop_parts = 1, index_granularity = 8192
-- table_feed_progress
ATTACH VIEW _ UUID '${uuid}'
(
    `feed` String,
    `topic` String,
    `partition` Int32,
    `phase` String,
    `next_offset` Int64,
    `lag` Int64,
    `rows` UInt64,
    `dead_letters` UInt64,
    `rows_per_second` Float64,
    `since` DateTime64(3, 'UTC'),
    `topic_id` UUID,
    `feed_id` UUID
)
AS SELECT
    states.feed AS feed,
    states.topic AS topic,
    states.partition AS partition,
    states.last_phase AS phase,
    states.next AS next_offset,
    greatest(ends.end_offset - states.next, 0) AS lag,
    states.all_rows + dead.replayed_rows AS rows,
    dead.letters AS dead_letters,
    states.rows_per_second AS rows_per_second,
    states.since AS since,
    states.topic_id AS topic_id,
    states.feed_id AS feed_id
FROM
(
    SELECT
        any(block.feed) AS feed,
        any(block.topic) AS topic,
        topic_id,
        partition,
        feed_id,
        argMax(block.phase, version) AS last_phase,
        argMax(if(block.phase = 'before', first_offset, end_offset), version) AS next,
        argMax(total_rows, version) AS all_rows,
        sumIf(block.rows, (block.phase = 'after') AND (time > (now64(3, 'UTC') - toIntervalMinute(1)))) / 60 AS rows_per_second,
        max(time) AS since
    FROM brokerhouse.table_feed_blocks AS block
    GROUP BY
        feed_id,
        topic_id,
        partition
) AS states
INNER JOIN brokerhouse.table_feeds AS existing ON existing.feed_id = states.feed_id
LEFT JOIN brokerhouse.partition_stats AS ends ON (ends.topic_id = states.topic_id) AND (ends.partition = states.partition)
LEFT JOIN
(
    SELECT
        feed_id,
        topic_id,
        partition,
        countIf(NOT is_replayed) AS letters,
        sumIf(last_rows, is_replayed) AS replayed_rows
    FROM
    (
        SELECT
            feed_id,
            topic_id,
            partition,
            offset,
            argMax(replayed, time) AS is_replayed,
            argMax(rows, time) AS last_rows
        FROM brokerhouse.dead_letter_versions
        GROUP BY
            feed_id,
            topic_id,
            partition,
            offset
    )
    GROUP BY
        feed_id,
        topic_id,
        partition
) AS dead ON (dead.feed_id = states.feed_id) AND (dead.topic_id = states.topic_id) AND (dead.partition = states.partition)
ORDER BY
    feed ASC,
    topic ASC,
    partition ASC
SETTINGS join_use_nulls = 0
-- table_feed_versions
ATTACH TABLE _ UUID '${uuid}'
(
    `name` String COMMENT 'of the feed: DATABASE.TABLE of its table',
    `version` UInt64 COMMENT 'milliseconds of the clock of who changed it, never less than before',
    `feed_id` UUID COMMENT 'a feed made again with this name has another',
    `database` String COMMENT 'where the table is',
    `table` String COMMENT 'which gets the rows',
    `topics` Array(String) COMMENT 'whose records it gets',
    `format` LowCardinality(String) COMMENT 'of the records: json, csv, raw, avro, protobuf or msgpack',
    `paths` Map(String, String) COMMENT 'JSON path of each column whose path is not its name',
    `start` String COMMENT 'where a partition begins: earliest, latest, or milliseconds since 1970',
    `interval_ms` UInt32 COMMENT 'how long records wait for others of their block',
    `stop_on_error` Bool COMMENT 'whether a dead letter pauses the feed',
    `options` Map(String, String) COMMENT 'route: how records name their table; route_value: of those that are taken; like: the table that new ones are made like; router: id of the feed that made this one; add_columns: 1',
    `status` LowCardinality(String) COMMENT 'running, paused or dropped',
    `replay_asked_at` DateTime64(3, 'UTC') COMMENT 'when dead letters of before were asked to be parsed again; 1970 if never',
    `changed_at` DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when this was written'
)
ENGINE = ReplacingMergeTree(version)
ORDER BY name
SETTINGS non_replicated_deduplication_window = 1000, index_granularity = 8192
-- table_feeds
ATTACH VIEW _ UUID '${uuid}'
(
    `name` String,
    `database` String,
    `table` String,
    `topics` Array(String),
    `format` LowCardinality(String),
    `paths` Map(String, String),
    `start` String,
    `interval_ms` UInt32,
    `stop_on_error` Bool,
    `status` LowCardinality(String),
    `changed_at` DateTime64(3, 'UTC'),
    `feed_id` UUID,
    `options` Map(String, String)
)
AS SELECT
    name,
    database,
    `table`,
    topics,
    format,
    paths,
    start,
    interval_ms,
    stop_on_error,
    status,
    changed_at,
    feed_id,
    options
FROM
(
    SELECT *
    FROM brokerhouse.table_feed_versions
    ORDER BY version DESC
    LIMIT 1 BY name
)
WHERE status != 'dropped'
ORDER BY name ASC
-- topic_minutes
ATTACH VIEW _ UUID '${uuid}'
(
    `topic` LowCardinality(String),
    `topic_id` UUID,
    `partition` Int32,
    `minute` DateTime('UTC'),
    `records` UInt64,
    `bytes` UInt64,
    `end_offset` Int64
)
AS WITH
    (
        SELECT max(minute) + toIntervalMinute(1)
        FROM brokerhouse.partition_minutes
    ) AS counted_until,
    (
        SELECT max(until)
        FROM brokerhouse.partition_seconds
        WHERE minute = counted_until
    ) AS seconds_until,
    greatest(counted_until, seconds_until) AS tail_from
SELECT
    topic,
    topic_id,
    partition,
    minute,
    records,
    bytes,
    max_offset + 1 AS end_offset
FROM brokerhouse.partition_minutes
WHERE (minute < counted_until) AND (topic_id IN (
    SELECT topic_id
    FROM brokerhouse.topics
))
UNION ALL
WITH
    (
        SELECT max(minute) + toIntervalMinute(1)
        FROM brokerhouse.partition_minutes
    ) AS counted_until,
    (
        SELECT max(until)
        FROM brokerhouse.partition_seconds
        WHERE minute = counted_until
    ) AS seconds_until,
    greatest(counted_until, seconds_until) AS tail_from
SELECT
    topic,
    topic_id,
    partition,
    minute,
    sum(records) AS records,
    sum(bytes) AS bytes,
    max(last_offset) + 1 AS end_offset
FROM
(
    SELECT
        topic,
        topic_id,
        partition,
        minute,
        records,
        bytes,
        max_offset AS last_offset
    FROM brokerhouse.partition_seconds
    WHERE (minute = counted_until) AND (until <= tail_from) AND (topic_id IN (
        SELECT topic_id
        FROM brokerhouse.topics
    ))
    UNION ALL
    SELECT
        topic,
        topic_id,
        partition,
        CAST(toStartOfMinute(append_time), 'DateTime(\'UTC\')') AS minute,
        count() AS records,
        sum(ifNull(key.size, 0) + ifNull(value.size, 0)) AS bytes,
        max(offset) AS last_offset
    FROM brokerhouse.messages
    WHERE (append_time >= tail_from) AND (topic_id IN (
        SELECT topic_id
        FROM brokerhouse.topics
    ))
    GROUP BY
        topic,
        topic_id,
        partition,
        minute
)
GROUP BY
    topic,
    topic_id,
    partition,
    minute
-- topic_stats
ATTACH VIEW _ UUID '${uuid}'
(
    `topic` String,
    `topic_id` UUID,
    `partitions` Int32,
    `records` UInt64,
    `bytes` UInt64,
    `records_per_second` Float64,
    `bytes_per_second` Float64,
    `first_time` Nullable(DateTime64(3, 'UTC')),
    `last_time` Nullable(DateTime64(3, 'UTC'))
)
AS WITH
    toStartOfMinute(now('UTC')) - toIntervalMinute(5) AS recent_since,
    dateDiff('second', recent_since, now('UTC')) AS recent_seconds
SELECT
    topic,
    topic_id,
    partitions,
    total.records AS records,
    total.bytes AS bytes,
    round(recent.records / recent_seconds, 3) AS records_per_second,
    round(recent.bytes / recent_seconds, 3) AS bytes_per_second,
    if(total.records > 0, total.first_time, NULL) AS first_time,
    if(total.records > 0, total.last_time, NULL) AS last_time
FROM
(
    SELECT
        topic,
        topic_id,
        toInt32(count()) AS partitions,
        sum(records) AS records,
        sum(bytes) AS bytes,
        minIf(first_time, partition_stats.records > 0) AS first_time,
        max(last_time) AS last_time
    FROM brokerhouse.partition_stats
    GROUP BY
        topic,
        topic_id
) AS total
LEFT JOIN
(
    SELECT
        topic_id,
        sum(records) AS records,
        sum(bytes) AS bytes
    FROM brokerhouse.topic_minutes
    WHERE minute >= recent_since
    GROUP BY topic_id
) AS recent USING (topic_id)
ORDER BY topic ASC
SETTINGS join_use_nulls = 0
-- topic_versions
ATTACH TABLE _ UUID '${uuid}'
(
    `topic_id` UUID,
    `version` UInt64,
    `name` String,
    `partitions` Int32,
    `configs` Map(String, String) COMMENT 'only what was set on the topic itself',
    `state` Enum8('live' = 0, 'deleting' = 1, 'deleted' = 2),
    `changed_at` DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(version)
ORDER BY topic_id
SETTINGS index_granularity = 8192
-- topics
ATTACH VIEW _ UUID '${uuid}'
(
    `name` String,
    `topic_id` UUID,
    `partitions` Int32,
    `configs` Map(String, String),
    `changed_at` DateTime64(3, 'UTC')
)
AS SELECT
    name,
    topic_id,
    partitions,
    configs,
    changed_at
FROM brokerhouse.topic_versions
FINAL
WHERE state = 'live'
ORDER BY name ASC
-- transaction_offsets
ATTACH TABLE _ UUID '${uuid}'
(
    `group_id` String COMMENT 'the consumer group',
    `producer_id` Int64 COMMENT 'of the transaction',
    `producer_epoch` Int16 COMMENT 'of the producer that sent it',
    `topic` String COMMENT 'topic name',
    `topic_id` UUID COMMENT 'id of the topic when this was sent',
    `partition` Int32 COMMENT 'Kafka partition',
    `offset` Int64 COMMENT 'the next offset that the group wants',
    `leader_epoch` Int32 COMMENT 'of the last record read; -1: not known',
    `metadata` String COMMENT 'what the consumer noted with it' CODEC(ZSTD(1)),
    `member_id` String COMMENT 'who sent it',
    `client_id` String COMMENT 'as the client calls itself',
    `client_host` String COMMENT 'its address',
    `generation` Int32 COMMENT 'of the group; -1 for a consumer without a group',
    `commit_time` DateTime64(3, 'UTC') COMMENT 'when it was sent',
    `version` UInt64 COMMENT 'order of commits in the group, as in consumer_offsets',
    `ended` Bool COMMENT 'the transaction was committed or aborted',
    `coordinator` Int32 COMMENT 'node id of the broker that wrote this'
)
ENGINE = ReplacingMergeTree(version, ended)
ORDER BY (group_id, producer_id, topic, partition)
SETTINGS non_replicated_deduplication_window = 1000, allow_experimental_replacing_merge_with_cleanup = 1, index_granularity = 8192
-- transaction_versions
ATTACH TABLE _ UUID '${uuid}'
(
    `transactional_id` String COMMENT 'as the client calls it',
    `version` UInt64 COMMENT 'of a later coordinator always higher; else milliseconds of its clock, never less than before',
    `producer_id` Int64 COMMENT 'of its records',
    `producer_epoch` Int16 COMMENT 'grows with every instance, and with every transaction (KIP-890)',
    `last_epoch` Int16 COMMENT 'the epoch before; -1: none that may repeat a request',
    `previous_producer_id` Int64 COMMENT 'the id before, whose epochs are used up; -1: none',
    `next_producer_id` Int64 COMMENT 'the id that follows when this transaction ends; -1: the same',
    `timeout_ms` Int32 COMMENT 'after which the transaction is aborted',
    `state` LowCardinality(String) COMMENT 'Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort',
    `client_version` Int8 COMMENT 'transaction.version of the client: 2 is KIP-890, less is the older flow',
    `partitions` Array(Tuple(topic String, topic_id UUID, partition Int32)) COMMENT 'where the transaction has records',
    `groups` Array(String) COMMENT 'consumer groups with offsets in the transaction',
    `start_time` DateTime64(3, 'UTC') COMMENT 'of the transaction; 1970 if none has begun',
    `update_time` DateTime64(3, 'UTC') COMMENT 'of this version',
    `removed` Bool COMMENT 'the id has expired',
    `coordinator` Int32 COMMENT 'node id of the broker that wrote this'
)
ENGINE = ReplacingMergeTree(version, removed)
ORDER BY transactional_id
SETTINGS non_replicated_deduplication_window = 1000, allow_experimental_replacing_merge_with_cleanup = 1, index_granularity = 8192
-- transactions
ATTACH VIEW _ UUID '${uuid}'
(
    `transactional_id` String,
    `producer_id` Int64,
    `producer_epoch` Int16,
    `timeout_ms` Int32,
    `state` LowCardinality(String),
    `partitions` Array(Tuple(topic String, topic_id UUID, partition Int32)),
    `groups` Array(String),
    `start_time` DateTime64(3, 'UTC'),
    `update_time` DateTime64(3, 'UTC'),
    `coordinator` Int32
)
AS SELECT
    transactional_id,
    producer_id,
    producer_epoch,
    timeout_ms,
    state,
    partitions,
    groups,
    start_time,
    update_time,
    coordinator
FROM brokerhouse.transaction_versions
FINAL
WHERE NOT removed
ORDER BY transactional_id ASC
-- view_doubts
ATTACH TABLE _ UUID '${uuid}'
(
    `database` String COMMENT 'of the view',
    `view` String COMMENT 'its name',
    `topic` String COMMENT 'topic name',
    `topic_id` UUID COMMENT 'id of the topic',
    `partition` Int32 COMMENT 'Kafka partition',
    `first_offset` Int64 COMMENT 'where the range begins',
    `end_offset` Int64 COMMENT 'the first offset behind the range',
    `changed_at` DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'when this was written'
)
ENGINE = ReplacingMergeTree(changed_at)
ORDER BY (database, view, topic, topic_id, partition, first_offset)
SETTINGS index_granularity = 8192
