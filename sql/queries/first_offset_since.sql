-- The first offset with this timestamp or a later one; no row where there is none.
--
-- Placeholder: source (FROM and WHERE: the records). Parameters: timestamp; those of the source.
SELECT min(offset)
${source} AND timestamp_ms >= {timestamp:Int64}
HAVING count() > 0;
