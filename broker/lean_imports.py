"""Leaves out parts of libraries that no broker needs, so that imports take less time.

A broker uses the messages of kafka-python and the HTTP server of aiohttp. It does not use their
clients, except aiohttp's for the ClickHouse servers of a cluster.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec


def leave_out_kafka_clients() -> None:
    """`import kafka` brings no producer, consumer and admin client, only what is asked for.

    `kafka/__init__.py`, which only names them, is not run: 0.04 s of CPU.
    """
    if "kafka" not in sys.modules and (spec := find_spec("kafka")) is not None:
        sys.modules["kafka"] = module_from_spec(spec)


@contextmanager
def no_certificates() -> Iterator[None]:
    """Import aiohttp without the certificates that its client would trust: 0.05 s of CPU.

    The two TLS contexts that aiohttp makes when it is imported trust nobody then.
    """
    name = "set_default_verify_paths"
    setattr(ssl.SSLContext, name, lambda context: None)
    try:
        yield
    finally:
        delattr(ssl.SSLContext, name)  # that of the base class again
