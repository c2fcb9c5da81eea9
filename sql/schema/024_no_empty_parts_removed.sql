-- setting of messages; cluster: nothing
-- A part of which every row is deleted stays, as an empty one, until its day is dropped: with it the engine would
-- forget the tokens of the blocks that it was made of (measured: 40 s after the merge), and a block that arrives
-- late would not be refused by its fence any more (broker/log/fence.py). What it costs: a day that was dropped
-- leaves an empty part where ClickHouse does not replicate.
ALTER TABLE ${messages} MODIFY SETTING remove_empty_parts = 0;
