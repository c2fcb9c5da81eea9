-- column of table_feed_versions; cluster: rows of all shards
-- What a feed may have beside what every feed has, by name; see FeedOptions in feeds/definition.py. For
-- tables that were made before there were options.
ALTER TABLE ${table_feed_versions} ADD COLUMN IF NOT EXISTS options Map(String, String)
    COMMENT 'route: how records name their table; route_value: of those that are taken; like: the table that new ones are made like; router: id of the feed that made this one; add_columns: 1' AFTER stop_on_error;
