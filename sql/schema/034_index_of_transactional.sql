-- index of messages; cluster: nothing
-- Where no row is part of a transaction, looking for transactions reads next to nothing.
ALTER TABLE ${messages} ADD INDEX IF NOT EXISTS by_transactional transactional TYPE minmax GRANULARITY 1;
