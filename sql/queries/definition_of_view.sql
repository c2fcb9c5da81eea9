-- The statement that made a view, its SELECT, and the name of a table of its own.
--
-- Parameters: database and view.
SELECT create_table_query, as_select, concat('.inner_id.', toString(uuid))
FROM system.tables
WHERE database = {database:String} AND name = {view:String};
