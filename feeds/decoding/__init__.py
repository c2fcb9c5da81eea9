"""Values that the scanner cannot read become lines of JSON, in a process of their own.

ClickHouse's readers of these formats take one stream of many records, in which a record that is too
short takes bytes of the next one. Here each record is decoded by itself.

* formats.py: a value of MessagePack or Avro as rows.
* protobuf.py: a message of Protobuf as a row.
* debezium.py: a change of a row as Debezium writes it, as a row.
* registry.py: schemas by their ids, from a schema registry.
* worker.py: the process, which reads a file of values and writes a file of lines.
* client.py: starts the process and asks it, in the broker.
"""
