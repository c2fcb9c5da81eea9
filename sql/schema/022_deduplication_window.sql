-- setting of messages; cluster: nothing
-- In a cluster many lanes of many brokers share the window of a shard, and fencing relies on it: a block that
-- arrives late is refused only while the engine remembers its token (broker/log/fence.py). Each remembered
-- block takes 72 bytes on disk (measured), and about as much again in memory.
ALTER TABLE ${messages} MODIFY SETTING ${deduplication_window(100000)};
