-- Creates a key in the registry of a cluster.
--
-- Placeholders: table, settings. Parameters: key, value; mark (of this write), no_marks (in place of earlier ones).
INSERT INTO ${table} (key, value)
${settings}
SELECT {key:String}, concat({mark:String}, {no_marks:String}, {value:String});
