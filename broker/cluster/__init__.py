"""What several brokers in front of one ClickHouse cluster need.

* node.py builds the broker; config.py and servers.py: the cluster that it stores in.
* The registry: registry_view.py (reads it, writes the slot map, declares sessions dead),
  session.py (this broker's session), topic_registry.py (topics).
* Decisions, pure: leases.py (who should own which slot), slot_phases.py (what follows for a slot).
* Acting on them: slot_owner.py (the loops), reconcile.py (the phase of each slot), slot_server.py
  (opens and closes slots). Logs, groups, shards are in broker/slots/.
* adoption.py: a new cluster takes over what a single broker had.
* feeds.py: a shard as feeds use it; feed_process.py: `brokerhouse feed`.
* housekeeping.py: what one broker does for all; check.py: the findings of `brokerhouse check`.
"""
