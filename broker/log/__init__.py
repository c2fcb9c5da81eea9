"""The log of a partition, from a record batch to its rows and back.

* Writing: appender.py (group commit), lane.py (one insert at a time), block_store.py (until its
  outcome is known), block.py (the rows of one insert), write_lease.py (the right to write),
  fence.py (ends a writer that may still be alive).
* Compressed batches: batch_records.py (one, within its limits), decompression.py (large ones, by
  threads of their own), large_batches.py (the partitions of a lane that wait for them).
* Producers: producers.py (which batch may come next), producer_recovery.py (read from the rows),
  refused_batches.py (batches that must be sent first).
* Transactions: partition_transactions.py (which are open, which were aborted),
  transaction_tables.py (what is stored of them), transaction_recovery.py (read back).
* State: partition.py (one partition), topic.py, open_logs.py (those that this broker leads),
  log_ends.py (where logs end), checkpoints.py and log_starts.py (where they start).
* Reading: tail_cache.py (the newest batches), reader.py (cold reads), row_sources.py (which engine
  has the rows), partition_sql.py (conditions on one partition).
* Deleting: retention.py, removals.py (what compaction chose), sweep.py (rows below the log start),
  reclaim.py (the same on a full disk).
* rollup.py counts records per minute.
"""
