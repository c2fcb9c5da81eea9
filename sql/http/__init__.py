"""ClickHouse's HTTP interface in front of the embedded engine.

* interface.py: the routes. login.py: who asks; request.py: what a request asks; body.py and
  codings.py: its bytes; answers.py and errors.py: what is sent back; go_hello.py: Grafana's client.
* gateway.py runs a statement: text.py finds its parts, access.py decides what it may do, pool.py
  and running.py run it in a thread, engine.py and handles.py give it a handle; sessions.py has the
  sessions (`session_id`).
* settings.py: who may query, and how much.
* `brokerhouse engine`: engine_server.py, trusted.py, trusted_gateway.py, token_inserts.py.
"""
