-- table producer_states; cluster: rows of all shards
-- What partitions know about producers whose rows may be deleted (retention, DeleteRecords, compaction): the last
-- batches of each, and its transaction markers. Written before rows are deleted. Batches whose rows had neighbouring
-- offsets are one row; the markers of an epoch are one row. Rows are deleted when the producer has expired
-- (producer_id_expiration_ms), when later rows replace them, and with their topic.
CREATE TABLE IF NOT EXISTS ${producer_states}
(
    topic_id          UUID  COMMENT 'id of the topic',
    partition         Int32 COMMENT 'Kafka partition',
    producer_id       Int64 COMMENT 'as in messages',
    producer_epoch    Int16 COMMENT 'as in messages',
    control           Bool  COMMENT 'transaction markers, not records',
    shift             Int32 COMMENT 'offset less sequence, modulo 2^31: neighbouring batches have the same; 0 for markers',
    first_offset      SimpleAggregateFunction(min, Int64) COMMENT 'of these records or markers',
    last_offset       SimpleAggregateFunction(max, Int64) COMMENT 'of these records or markers',
    coordinator_epoch SimpleAggregateFunction(max, Int32) COMMENT 'of these markers; -1 for records',
    append_time       SimpleAggregateFunction(max, DateTime64(3, 'UTC')) COMMENT 'when the producer wrote here last, as far as this row knows'
)
ENGINE = ${engine(AggregatingMergeTree)}
ORDER BY (topic_id, partition, producer_id, producer_epoch, control, shift)
SETTINGS ${deduplication_window(1000)};
