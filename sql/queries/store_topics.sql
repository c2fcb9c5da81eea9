-- Stores a version of each of some topics, all in one state.
--
-- Parameters: topic_ids, versions, names, partitions and configs (JSON), each an array with one element per topic; state.
INSERT INTO topic_versions (topic_id, version, name, partitions, configs, state)
SELECT
    toUUID(one.1), toUInt64(one.2), one.3, toInt32(one.4), JSONExtract(one.5, 'Map(String, String)'), {state:String}
FROM
(
    SELECT arrayJoin(arrayZip({topic_ids:Array(String)}, {versions:Array(String)}, {names:Array(String)},
        {partitions:Array(String)}, {configs:Array(String)})) AS one
);
