-- index of messages; cluster: nothing
-- Finds the records since some moment without reading the others: within a partition append_time only grows,
-- so the index tells of each granule whether it is recent, even in a part that was merged from hours of
-- records. It costs an insert nothing that can be measured (3.06 against 3.11 ms for one row, 2 cores).
ALTER TABLE ${messages} ADD INDEX IF NOT EXISTS by_append_time append_time TYPE minmax GRANULARITY 1;
