-- Stores current offsets again whose row was stored before {before_ms:Int64}, with their version.
-- ${columns}: the columns of consumer_offsets.
INSERT INTO consumer_offsets (${columns})
SELECT ${columns}
FROM latest_offsets
WHERE NOT deleted AND stored_at < fromUnixTimestamp64Milli({before_ms:Int64});
