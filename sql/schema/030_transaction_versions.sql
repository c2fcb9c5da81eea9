-- table transaction_versions; cluster: rows of all shards
-- Transactional ids, as versions: every change of one is a new row with a higher version, and the highest
-- wins. The row of a state is stored before anybody acts on that state.
CREATE TABLE IF NOT EXISTS ${transaction_versions}
(
    transactional_id     String                 COMMENT 'as the client calls it',
    version              UInt64                 COMMENT 'of a later coordinator always higher; else milliseconds of its clock, never less than before',
    producer_id          Int64                  COMMENT 'of its records',
    producer_epoch       Int16                  COMMENT 'grows with every instance, and with every transaction (KIP-890)',
    last_epoch           Int16                  COMMENT 'the epoch before; -1: none that may repeat a request',
    previous_producer_id Int64                  COMMENT 'the id before, whose epochs are used up; -1: none',
    next_producer_id     Int64                  COMMENT 'the id that follows when this transaction ends; -1: the same',
    timeout_ms           Int32                  COMMENT 'after which the transaction is aborted',
    state                LowCardinality(String) COMMENT 'Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort',
    client_version       Int8                   COMMENT 'transaction.version of the client: 2 is KIP-890, less is the older flow',
    partitions           Array(Tuple(topic String, topic_id UUID, partition Int32)) COMMENT 'where the transaction has records',
    groups               Array(String)          COMMENT 'consumer groups with offsets in the transaction',
    start_time           DateTime64(3, 'UTC')   COMMENT 'of the transaction; 1970 if none has begun',
    update_time          DateTime64(3, 'UTC')   COMMENT 'of this version',
    removed              Bool                   COMMENT 'the id has expired',
    coordinator          Int32                  COMMENT 'node id of the broker that wrote this'
)
ENGINE = ${engine(ReplacingMergeTree(version, removed))}
ORDER BY transactional_id
SETTINGS ${deduplication_window(1000)}, allow_experimental_replacing_merge_with_cleanup = 1;
