"""Record batches <-> columns: constants first, the reference follows."""
COLUMNS: tuple[tuple[str, str], ...] = (
    ("topic", "LowCardinality(String)"),
    ("topic_id", "UUID"),
    ("partition", "Int32"),
    ("offset", "Int64"),
    ("timestamp_ms", "Int64"),
    ("timestamp_type", "Enum8('CreateTime' = 0, 'LogAppendTime' = 1)"),
    ("key", "Nullable(String)"),
    ("value", "Nullable(String)"),
    ("headers", "Array(Tuple(key String, value Nullable(String)))"),
    ("producer_id", "Int64"),
    ("producer_epoch", "Int16"),
    ("sequence", "Int32"),
    ("transactional", "Bool"),
    ("control", "Bool"),
    ("leader_epoch", "Int32"),
    ("append_time", "DateTime64(3)"),
)
READ_COLUMNS: tuple[tuple[str, str], ...] = tuple(
    column for column in COLUMNS if column[0] not in ("topic", "topic_id", "partition", "append_time")
)
