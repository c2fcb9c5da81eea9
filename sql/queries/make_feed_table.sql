-- Makes a table that a feed can fill, without a sorting key.
--
-- Placeholders: table (with its database), columns, block_definition (of the hidden column), engine, settings.
CREATE TABLE IF NOT EXISTS ${table} (${columns}, ${block_definition})
ENGINE = ${engine}
ORDER BY ()
SETTINGS ${settings};
