-- Removes what a view has missed, which is filled again.
--
-- Placeholder: database (of the table). Parameters: database and view.
ALTER TABLE ${database}.failed_view_offsets DELETE
WHERE database = {database:String} AND view = {view:String}
SETTINGS mutations_sync = 1;
