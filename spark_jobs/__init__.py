"""Spark on the log: a data source, and the jobs that are built on it.

Needs the extra `brokerhouse[spark]` and Java 17. Nothing that the broker runs imports this package.
"""
