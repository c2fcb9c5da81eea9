"""What Prometheus and health checks see: `/metrics`, `/live` and `/ready` of the HTTP listener.

The parts of the broker count in plain attributes; nothing here is called for a record or a request.
When somebody asks for `/metrics`, each file of metrics reads the attributes of its subject:

* requests.py: what clients asked (request_counts.py counts it); connections; memory of requests and
  responses; what was fetched.
* logs.py: lanes, tail cache, cold cache, partitions. groups.py: groups and their lag.
  transactions.py.
* engine.py: the engine and the journal of a single broker. cluster.py: the session, slots and
  shards of a broker of a cluster.
* process.py: the process, the delay of the event loop.

A new metric goes into the file of its subject, and into the table of docs/monitoring.md: a test
compares them. families.py makes metrics of numbers; scrape.py asks all files and encodes the
answer; pages.py has the HTTP routes and health.py what they say.
"""
