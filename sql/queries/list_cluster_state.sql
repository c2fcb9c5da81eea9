-- The keys of the registry of a single process that begin with a prefix: values and versions.
--
-- Parameter: prefix.
SELECT key, argMax(value, version), max(version)
FROM cluster_state
WHERE startsWith(key, {prefix:String})
GROUP BY key
ORDER BY key;
