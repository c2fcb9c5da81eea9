"""The job `iceberg`: topics as Iceberg tables, each committed record once (docs/iceberg.md).

    records           workers: one task of Spark each, members of one consumer group
       |                 rows -> data files                         worker.py, rows.py, files.py
       v                 files and source offsets, in one transaction
    control topic     events in Avro                                control_topic.py, events.py
       |
       v              coordinator: the worker that has partition 0 of the first topic
    Iceberg tables       one commit for the files of all workers    coordinator.py,
                                                                         commit_buffer.py

Built to the design of Iceberg's sink for Kafka Connect; docs/iceberg.md says what differs.
"""

from brokerhouse.spark_jobs.session import SparkMissing

try:
    from brokerhouse.spark_jobs.iceberg.job import command
except ModuleNotFoundError as error:
    raise SparkMissing(f"{error.name} is missing: pip install 'brokerhouse[iceberg]'") from error

__all__ = ["command"]
