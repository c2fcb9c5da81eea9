"""What partitions and groups need of transactions. coordinator/ decides about transactions.

* transaction_checks.py: asks the coordinator whether a batch or an offset may be part of one.
* transaction_markers.py: writes the markers that end one.
* producer_ids.py: assigns producer ids, each once.
"""
