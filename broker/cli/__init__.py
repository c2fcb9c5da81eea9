"""The command `brokerhouse`: main.py lists its commands, one file for each family.

* A broker or a cluster: serve.py, config.py, engine.py, cluster.py (`migrate`, `check`, `slots`).
* backup.py (`backup`, `restore`): a broker's data directory.
* Clients of a running broker: topics.py, groups.py with reset_offsets.py and consumer_groups.py,
  produce.py, consume.py, tail.py; kafka_client.py is the client that they share.
* sql.py asks over HTTP; jobs.py starts Spark jobs.
* options.py: options that several commands have.
"""
