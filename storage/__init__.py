"""ClickHouse behind one interface, and what is stored there beside the log.

* engine.py: the interface. data_directory.py: its lock and its rights. embedded.py: chDB in this
  process, with free_space.py, disk_reserve.py,
  block_file.py (what it reads inserts from) and _result_bytes.pyx. definition_guard.py and
  definition_files.py: a full disk damages no definition of a table. clickhouse.py: one server over
  HTTP. shards.py: the replicas of a shard as one engine.
* journal.py: the embedded engine behind a journal. journal_files.py: its files; journal_reading.py
  reads them, journal_register.py says which exist. journal_queue.py: changes of the files, one at a
  time. journal_spares.py: files that were emptied. journal_drain.py and journal_recovery.py: how
  its blocks get into the engine. journal_unplaced.py: those that have no space there.
  journal_statements.py: what a statement needs of it. token_memory.py: which tokens are known.
  block_intake.py: which blocks of other processes go into it. merge_pace.py: merges wait while it
  drains at full speed.
* shard_directory.py: the directory of a single broker becomes that of a shard.
* part_codecs.py: how parts of the log are compressed.
* backup.py and restore.py: a copy of a data directory, by ClickHouse's BACKUP and RESTORE;
  backup_files.py: the files of one.
* Rows: blocks.py and parameters.py (Python values to ClickHouse), native_types.py (how a column's
  type lays out its values), native_stream.py (blocks in a stream), _merge_blocks.pyx (many blocks
  as one), row_lane.py (group commit for the small tables).
* registry.py: keys changed by compare-and-set; registry_values.py, slot_map.py: what they hold.
* Migrations: schema.py (embedded), cluster_schema.py and cluster_sql.py (servers), schema_files.py
  (the files of sql/schema/).
* config_definitions.py: what a config is; topic_configs.py: the topic configs that Kafka knows.
"""
