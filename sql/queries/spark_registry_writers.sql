-- Who has written a version of a key, or later ones: the first of a version has won it.
--
-- Placeholder: table. Parameters: key, version.
SELECT writer
FROM ${table}
WHERE key = {key:String} AND version >= {version:UInt64}
ORDER BY version DESC, time, writer;
