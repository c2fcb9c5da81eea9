-- How many dead letters a feed of Spark has, of some topics.
--
-- Placeholder: database. Parameters: feed (its name), topic_ids.
SELECT toInt64(count())
FROM ${database}.dead_letters
WHERE feed = {feed:String} AND has({topic_ids:Array(String)}, toString(topic_id));
