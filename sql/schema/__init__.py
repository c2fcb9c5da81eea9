"""Every table and view: NNN_name.sql, applied in the order of the numbers.

The first line of a file says what it makes, and what database `brokerhouse` of a cluster shows
under this name (storage/schema_files.py). cluster/ has what only a cluster has. storage/schema.py
applies the files to the embedded engine, storage/cluster_schema.py to servers.
"""
