"""Spark on the log: a data source, and the jobs that are built on it.

Needs the extra `brokerhouse[spark]` and Java 17. The broker imports nothing of this package.

The data source is datasource.py, with options.py, filters.py, shards.py and slices.py. Each job is
a file that `brokerhouse jobs run NAME` starts: lag.py, audit.py, compaction.py; job.py has their
command line. session.py makes Spark sessions, sql_client.py talks to ClickHouse, and queries.py
makes DataFrames of its answers. The queries of the jobs are in sql/queries/.
"""
