-- Parts of the log that ClickHouse has set aside and whose rows it has elsewhere.
SELECT name
FROM system.detached_parts
WHERE database = currentDatabase() AND table = 'messages'
    AND reason IN ('ignored', 'clone', 'attaching', 'deleting', 'merge-not-byte-identical',
    'mutate-not-byte-identical', 'tmp-fetch');
