-- Creates keys in the registry of a single process.
--
-- Parameters: keys, values.
INSERT INTO cluster_state
SELECT one.1, 1, one.2
FROM (SELECT arrayJoin(arrayZip({keys:Array(String)}, {values:Array(String)})) AS one);
