-- The transactional ids that match a pattern. The last condition refuses a pattern that is one only between the
-- parentheses of the condition before it.
--
-- Parameter: pattern.
SELECT transactional_id
FROM transaction_versions FINAL
WHERE NOT removed AND match(transactional_id, concat('^(?-s:', {pattern:String}, ')$'))
    AND replaceRegexpOne('', {pattern:String}, '') = '';
