"""ClickHouse's HTTP interface in front of the embedded engine.

* listener.py: connections; interface.py: the routes. login.py: who asks; refuse_web_pages.py: pages
  of other sites may not; request.py: what a request asks; body.py, codings.py and
  compressed_blocks.py: its bytes; answers.py and errors.py: what is sent back; go_handshake.py:
  Grafana's client.
* gateway.py runs a statement: text.py finds its parts, access.py decides what it may do, pool.py
  and running.py run it in a thread, engine.py and handles.py give it a handle; sessions.py has the
  sessions (`session_id`); endings.py ends it with its client, or by KILL QUERY.
* settings.py: who may query, and how much. held_bytes.py and limits.py: what all requests take
  together; hidden_from_readers.py: what readers do not see.
* `brokerhouse engine`: engine_server.py, engine_interface.py, trusted_gateway.py, token_inserts.py.
"""
