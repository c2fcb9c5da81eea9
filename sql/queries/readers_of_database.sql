-- Views and other tables that name the database of a single broker, and are not its own. Views would go on reading a
-- database that does not exist any more, and materialized views would miss every record. Tables with rows may mention
-- it in a comment.
--
-- Placeholder: database. Parameter: own (the names of its own tables and views).
SELECT concat(database, '.', name)
FROM system.tables
WHERE NOT (database = '${database}' AND has({own:Array(String)}, name))
    AND database NOT IN ('system', 'information_schema', 'INFORMATION_SCHEMA')
    AND engine NOT LIKE '%MergeTree'
    AND match(create_table_query, '\\b${database}\\b')
ORDER BY ALL;
