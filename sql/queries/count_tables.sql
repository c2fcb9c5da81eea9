-- How many of these tables and views a database has.
--
-- Parameters: d (the database), names.
SELECT toInt64(count()) FROM system.tables WHERE database = {d:String} AND has({names:Array(String)}, name);
