"""The Kafka server: one broker process, alone or one of a cluster.

* server.py starts and stops it; single.py builds it on the embedded engine, cluster/node.py on
  shards; wiring.py has the parts that both build alike; node.py is what request handlers reach.
* control.py: the socket that `brokerhouse backup` connects to.
* listener.py: the port; connection.py: one client; memory.py: what requests and responses hold.
* request_counts.py: what /metrics shows of requests, which monitoring/ makes.
* sending.py: whose turn it is to make a large response, what is not sent yet, clients that do not
  read.
* config.py: the settings; config_sources.py: flags, environment, file; effective_configs.py: the
  configs that apply to a topic; dynamic_settings.py: what changes while the broker runs.
* admin_store.py: what administrators set beside topics, with stored_configs.py, client_quotas.py;
  resource_configs.py: which configs groups and client metrics have.
* topics.py: changes of topics; watched_topics.py: topics as they were read; topic_store.py: where
  they are stored; topic_cleanup.py: rows of deleted ones; topic_names.py: Kafka's rules for names.
* leadership.py: brokers and leaders, as clients see them; led_partitions.py: the log of a
  partition, or NOT_LEADER_OR_FOLLOWER; producer_ids.py; fetch_sessions.py.
* transaction_checks.py asks the coordinator about batches; transaction_markers.py ends
  transactions; encoded_topics.py: Metadata.
* api/: a file for each Kafka API. log/: the log of a partition. feeds/: feeds of typed tables.
  slots/: what belongs to slots, on any broker. cluster/: what several brokers need.
  cli/: the command `brokerhouse`.
"""
