"""Runs feeds of typed tables, which feeds/ describes: on any broker, and in `brokerhouse feed`.

* running.py: starts and stops feeds as their definitions say, and feeds their partitions in turn.
* host.py: what they find in this process: shards, tables, sessions, partitions to feed.
* groups.py: the group of a feed, which shows how far it is; remote_groups.py: the same where
  another broker coordinates it.

cluster/feed_process.py is `brokerhouse feed`.
"""
