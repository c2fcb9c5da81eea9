-- Stores the state of a view that exists, with its definition, so that it can be repaired.
--
-- Placeholder: database (of the table). Parameters: database and view; state; error.
INSERT INTO ${database}.failed_view_versions (database, view, definition, query, target, state, error)
SELECT
    database, name, create_table_query, as_select, concat('.inner_id.', toString(uuid)), {state:String}, {error:String}
FROM system.tables
WHERE database = {database:String} AND name = {view:String};
