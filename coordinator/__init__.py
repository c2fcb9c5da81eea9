"""Consumer groups and their committed offsets; transactions.

* Requests: group_coordinator.py answers them; messages.py has the values; admission.py: who may
  join; commit_rules.py: who may commit.
* One group, without IO: groups.py, driven by the table in group_states.py; rebalance.py;
  group_members.py.
* hosted_groups.py: the groups that this broker coordinates, with their timers.
* group_cache.py: the groups of all brokers, and the worker that keeps them up to date.
* Stored: tables.py (columns), group_rows.py (groups and members), offsets.py, offset_expiry.py.
* Transactions: transaction_coordinator.py answers requests, transaction_states.py decides (one
  transactional id, without IO), hosted_transactions.py stores and ends, pending_offsets.py has the
  offsets that were sent to transactions.
* slots.py: which slots this broker serves, and what it may do for the groups of one shard.
"""
