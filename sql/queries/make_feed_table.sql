-- Makes a table that a feed can fill.
--
-- Placeholders: if_absent (IF NOT EXISTS, or nothing), table (with its database), columns, block_definition (of the
-- hidden column), engine, by (how it is sorted and partitioned), settings.
CREATE TABLE ${if_absent} ${table} (${columns}, ${block_definition})
ENGINE = ${engine}
${by}
SETTINGS ${settings};
