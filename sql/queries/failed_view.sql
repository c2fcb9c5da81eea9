-- What is stored of a view that has failed.
--
-- Placeholders: columns, database (of the table). Parameters: database and view.
SELECT ${columns}
FROM ${database}.failed_view_versions FINAL
WHERE database = {database:String} AND view = {view:String};
