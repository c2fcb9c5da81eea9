-- The transactions of a partition that were aborted and have records in a range of offsets.
--
-- Placeholder: is_partition (the condition). Parameters: first, end; those of the condition.
SELECT producer_id, transaction_start, last_offset
FROM aborted_transactions FINAL
WHERE ${is_partition} AND transaction_start < {end:Int64} AND last_offset >= {first:Int64};
