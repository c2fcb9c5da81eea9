-- column of messages; cluster: rows of all shards
-- Which transaction a row belongs to: the offset where it began in this partition. Markers have it, too. For tables
-- that were made before there were transactions.
ALTER TABLE ${messages} ADD COLUMN IF NOT EXISTS transaction_start Int64 DEFAULT -1
    COMMENT 'where its transaction began in this partition; -1: not part of one' CODEC(Delta, ZSTD(1)) AFTER control;
