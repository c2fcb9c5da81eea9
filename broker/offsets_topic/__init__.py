"""The topic `__consumer_offsets`, made from what groups have committed, for monitors that read it.

Kafka keeps committed offsets and groups in this topic, and lag monitors read it. Here they are rows
of tables. A partition is made when somebody reads it, from what its coordinator has in memory; it
lives in memory, follows every change, and is dropped when nobody has read it for a while. Clients
can list and read it as any other topic. They cannot write to it, change or delete it.

* records.py: Kafka's formats of keys and values.
* offsets_log.py: one partition.
* offsets_topic.py: the topic; each partition has the groups of a slot (broker/slots/groups.py).
"""
