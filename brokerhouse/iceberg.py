"""What programs import for the tables of `--catalog DIRECTORY`; docs/iceberg.md shows how.

PyIceberg opens the catalog of a directory with `load_catalog(LOCAL_CATALOG, **local_catalog(...))`.
"""

from brokerhouse.spark_jobs.iceberg.tables import LOCAL_CATALOG, local_catalog

__all__ = ["LOCAL_CATALOG", "local_catalog"]
