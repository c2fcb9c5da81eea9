-- setting of messages; cluster: nothing
-- A part of which every row is deleted stays, as an empty part, until its day is dropped. If the engine removed
-- it, it would also forget the tokens of the blocks that the part was made of (measured: 40 s after the merge),
-- and the fence would no longer refuse a block that arrives late (broker/log/fence.py). The cost: where
-- ClickHouse does not replicate, a day that was dropped leaves an empty part.
ALTER TABLE ${messages} MODIFY SETTING remove_empty_parts = 0;
