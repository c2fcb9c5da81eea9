-- table failed_view_versions; cluster: rows of all shards
-- Materialized views on messages that could not be filled, as the engine found them behind an insert. The last version of
-- a view counts. state: stopping (it is about to be detached), stopped (it is detached), ended (it was repaired, or
-- dropped).
CREATE TABLE IF NOT EXISTS ${failed_view_versions}
(
    database   String COMMENT 'of the view',
    view       String COMMENT 'its name',
    definition String COMMENT 'the statement that made it',
    query      String COMMENT 'its SELECT',
    target     String COMMENT 'name of its own table, if it does not write to another one',
    state      Enum8('stopping' = 0, 'stopped' = 1, 'ended' = 2) COMMENT 'see above',
    error      String COMMENT 'why it could not be filled',
    changed_at DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'when this was written'
)
ENGINE = ${engine(ReplacingMergeTree(changed_at))}
ORDER BY (database, view);
