-- index of messages; cluster: nothing
-- Markers are found without the records between them.
ALTER TABLE ${messages} ADD INDEX IF NOT EXISTS by_control control TYPE minmax GRANULARITY 1;
