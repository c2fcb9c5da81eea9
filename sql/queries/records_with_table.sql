-- Records, and the table that each of them names: '' where it names none.
--
-- Placeholders: table (the expression that finds the name), records (FROM and WHERE), with_value (which of them).
-- Parameters: those of the placeholders.
SELECT topic, topic_id, partition, offset, ifNull(${table}, '') AS named
${records} AND ${with_value};
