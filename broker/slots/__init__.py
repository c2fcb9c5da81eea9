"""What belongs to slots, on any broker: logs, consumer groups and transactions.

A single broker serves all slots; a broker of a cluster serves those that its session owns
(coordinator/slots.py).

* shard_host.py: what runs on one shard; slot_logs.py: the open logs, and which shards they are on.
* sessions.py: sessions of brokers, as rows of the registry.
* leadership.py: which brokers there are, who leads each partition, who coordinates each group.
* groups.py, slot_transactions.py: what handlers see, and what coordinators ask other brokers.
* peers.py: the connections to the other brokers; a single broker has none.
"""
