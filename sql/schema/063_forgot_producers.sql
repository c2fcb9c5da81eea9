-- column of partition_checkpoints; cluster: rows of all shards
-- Whether rows were deleted of producers that have no row in producer_states: they had expired, or were deleted by a
-- version that did not write that table.
ALTER TABLE ${partition_checkpoints} ADD COLUMN IF NOT EXISTS forgot_producers SimpleAggregateFunction(max, Bool) DEFAULT true
    COMMENT 'rows were deleted of producers that are not in producer_states';
