"""Hours of mixed clients, good and bad, and kill -9: `make soak HOURS=`.

`run.py` runs the broker and everything around it, `clients.py` the clients that are processes of
their own, `hostile.py` those that no broker wants, `checks.py` finds what was lost or doubled, and
`report.py` says what grew. Records are easy to check: each partition of the topic `ledger` has one
idempotent producer, and the record at offset n says n.
"""
