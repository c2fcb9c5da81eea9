-- Records migrations that were applied.
--
-- Placeholder: database. Parameters: numbers, names.
INSERT INTO ${database}.schema_migrations (number, name)
SELECT toUInt32(one.1), one.2
FROM (SELECT arrayJoin(arrayZip({numbers:Array(String)}, {names:Array(String)})) AS one);
