"""ClickHouse behind one interface, and what is stored there beside the log.

* engine.py: the interface. embedded.py: chDB in this process, with free_space.py. clickhouse.py:
  one server over HTTP. shards.py: the replicas of a shard as one engine.
* journal.py: the embedded engine behind a journal. journal_files.py: its files. journal_drain.py: how
  its blocks get into the engine, as one (merge_blocks.py).
* Rows: blocks.py and parameters.py (Python values to ClickHouse), native_stream.py (blocks in a
  stream), row_lane.py (group commit for the small tables).
* registry.py: keys changed by compare-and-set; registry_values.py, slot_map.py: what they hold.
* Migrations: schema.py (embedded), cluster_schema.py and cluster_sql.py (servers), schema_files.py
  (the files of sql/schema/).
* topic_configs.py: the topic configs that Kafka knows.
"""
