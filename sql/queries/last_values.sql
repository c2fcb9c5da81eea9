-- Keys and values of the last records of a topic that have a value, in base64.
--
-- Parameters: t (the topic's name); count.
SELECT base64Encode(ifNull(key, '')) AS key, base64Encode(assumeNotNull(value)) AS value
FROM ${database}.messages_committed
WHERE topic = {t:String} AND value IS NOT NULL
ORDER BY partition DESC, offset DESC
LIMIT {count:UInt32};
