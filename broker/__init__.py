"""The Kafka server: one broker process, alone or one of a cluster.

* server.py starts and stops it (start_error.py: what prevents a start); broker.py is what request
  handlers reach; node.py builds what both kinds of broker consist of, single.py on the embedded
  engine, cluster/node.py on shards; from_settings.py makes parts that both need.
* backup_socket.py: the socket that `brokerhouse backup` connects to.
* endpoints.py: brokers and leaders, as clients see them; led_partitions.py: the log of a
  partition, or NOT_LEADER_OR_FOLLOWER.
* memory.py: what requests and responses hold; fetch_sessions.py.

The folders: net/ (connections), api/ (a file for each Kafka API), settings/, topics/, log/ (the log
of a partition), transactions/, offsets_topic/ (`__consumer_offsets`), slots/ (what belongs to
slots, on any broker), cluster/ (what several brokers need), feeds/ (feeds of typed tables),
monitoring/ (metrics), cli/ (the command `brokerhouse`).
"""
