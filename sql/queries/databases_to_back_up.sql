-- The databases that a backup has: all but those of ClickHouse itself.
SELECT name FROM system.databases WHERE name NOT IN ('system', 'INFORMATION_SCHEMA', 'information_schema');
