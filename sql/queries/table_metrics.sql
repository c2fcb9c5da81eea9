-- For /metrics: the parts of each table.
SELECT table, countIf(active), countIf(NOT active), sumIf(rows, active), sumIf(bytes_on_disk, active)
FROM system.parts
WHERE database = 'brokerhouse'
GROUP BY table
ORDER BY table;
