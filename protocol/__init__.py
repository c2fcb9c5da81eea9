"""Kafka's protocol: bytes to messages and back. No sockets, no storage, no clock.

* _frames.pyx cuts bytes into frames; codec.py: frames to requests, responses to frames, by
  _request_head.pyx, decoder.py, versions.py and, for what is sent most, _produce_request.pyx,
  _produce_response.pyx and response_bodies.py; errors.py: Kafka's error codes, with a class for
  each; messages/: messages that kafka-python does not have.
* Record batches: batches.py and _batches.pyx (headers), compression.py, columns.py (the columns of
  `messages`), _decode_batches.pyx (batches to columns), _encode_batches.pyx (and back),
  packed_blocks.py and _packed_blocks.pyx (rows in fewer bytes, for the journal), varints.py.
  tests/reference/ has these .pyx files in readable Python.
* consumer_protocol.py: what consumers tell each other through their group's coordinator.
"""
