-- Every table and view: the name of a table of its own, its definition, and the views that it fills.
SELECT
    database, name, concat('.inner_id.', toString(uuid)), create_table_query, dependencies_database, dependencies_table
FROM system.tables;
