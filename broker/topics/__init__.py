"""The topics of the broker.

* catalog.py: creates, changes and deletes topics; auto_creation.py: creates those that clients ask
  for.
* watched_topics.py: topics as this broker has read them; known_topics.py: by name and by id;
  encoded_topics.py: as Metadata sends them.
* topic_store.py: where topics are stored; topic_cleanup.py: rows of deleted topics.
* topic_names.py: Kafka's rules for names.
"""
