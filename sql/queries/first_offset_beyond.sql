-- The first offset but one at which the values of a range are larger than a block may be; 0 if they are not.
--
-- Placeholder: source (FROM and WHERE: the range). Parameters: max_bytes and first; those of the source.
SELECT min(offset)
FROM
(
    SELECT offset, sum(length(value)) OVER (ORDER BY offset ROWS UNBOUNDED PRECEDING) AS bytes
    ${source}
)
WHERE bytes > {max_bytes:Int64} AND offset > {first:Int64};
