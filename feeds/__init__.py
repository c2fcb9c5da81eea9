"""Feeds: ranges of offsets of topics become rows of typed tables, exactly once.

* blocks.py: the protocol, pure: what is done next, whatever was stored before.
* definition.py: what a feed is; stored_definitions.py: those that the shards have stored.
* progress.py: the state of a feed in a partition, changed by compare-and-set; its history.
* statements.py: a block as ClickHouse's statements, for each format.
* decoding/: values that the scanner cannot read as lines of JSON, in a process of their own.
* tables.py: what the table of a feed needs; server_tables.py: makes and changes it on servers.
* feeder.py: the steps of one partition, on whichever shard its records are.
* writer.py: runs them, and finds out whether a block is stored.

Who feeds (a broker, or `brokerhouse feed`) is in broker/feeds/. docs/tables.md is for users.
"""
