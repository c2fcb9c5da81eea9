"""Kafka's protocol: bytes to messages and back. No sockets, no storage, no clock.

* response_errors.py finds the error codes in a response.
* _frames.pyx cuts bytes into frames; codec.py: frames to requests, responses to frames, by
  _request_head.pyx, decoder.py, versions.py and, for what is sent most, _produce_request.pyx,
  _produce_response.pyx, fetch_frame.py and offset_commit_body.py; errors.py: Kafka's error codes,
  with a class for each; messages/: messages that kafka-python does not have.
* Record batches: batches.py (headers), compression.py, columns.py (the columns of `messages`),
  decode_batches.py (batches to columns), encode_batches.py (and back), varints.py. What runs are
  _batches.pyx, _decode_batches.pyx and _encode_batches.pyx, the same in Cython.
* consumer_protocol.py: what consumers tell each other through their group's coordinator.
"""
