"""What several brokers in front of one ClickHouse cluster need.

* node.py builds the broker; config.py and servers.py: the cluster that it stores in.
* The registry: registry_view.py (reads it, writes the slot map, declares sessions dead),
  session.py (this broker's session), topic_registry.py (topics), config_watch.py (configs).
* Decisions, pure: leases.py (who should own which slot), slot_phases.py (what follows for a slot).
* Acting on them: ownership.py, reconcile.py, slots.py.
* topics.py: the topics, as handlers see them. Logs, groups and shards are in broker/slots/.
* feeds.py, feed_tables.py: feeds of typed tables; beside.py, feed_process.py: `brokerhouse feed`.
* housekeeping.py: what one broker does for all; check.py: the findings of `brokerhouse check`.
"""
