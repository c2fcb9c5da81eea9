-- Some keys of the registry of a cluster: values and versions.
--
-- Placeholders: table, settings. Parameter: keys.
SELECT key, value, _version
FROM ${table}
WHERE key IN (SELECT arrayJoin({keys:Array(String)}))
${settings};
