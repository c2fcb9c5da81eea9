-- The values of some records, from which the columns of a table are inferred.
--
-- Placeholders: records (FROM and WHERE), with_value and condition (which of them), limit. Parameters: those of the
-- placeholders.
SELECT base64Encode(assumeNotNull(value))
${records} AND ${with_value} AND ${condition}
LIMIT ${limit};
