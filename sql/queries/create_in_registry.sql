-- Creates keys in the registry of a cluster.
--
-- Placeholders: table, settings. Parameters: keys, values; mark (of this write), no_marks (in place of earlier ones).
INSERT INTO ${table} (key, value)
${settings}
SELECT one.1, concat({mark:String}, {no_marks:String}, one.2)
FROM (SELECT arrayJoin(arrayZip({keys:Array(String)}, {values:Array(String)})) AS one);
