"""broker/cli/serve.py imports libraries without what a broker does not use."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.server_process import PROJECT


def printed(script: str) -> Any:
    """What a new Python process prints, as JSON."""
    script = f"import json, sys\nfrom brokerhouse.broker.cli import serve\n{script}"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_messages_of_kafka_are_imported_without_its_clients() -> None:
    clients = printed("""
serve.leave_out_kafka_clients()
from kafka.protocol.metadata import MetadataRequest
clients = ("kafka.admin", "kafka.consumer", "kafka.net", "kafka.producer")
print(json.dumps([name for name in sys.modules if name in clients]))
""")
    assert clients == []


def test_a_kafka_that_is_imported_already_stays_whole() -> None:
    is_there = printed("""
import kafka
serve.leave_out_kafka_clients()
from kafka import KafkaProducer
print(json.dumps(sys.modules["kafka"] is kafka))
""")
    assert is_there is True


def test_contexts_made_meanwhile_trust_nobody_and_later_ones_the_system() -> None:
    certificates = printed("""
import ssl
def trusted():
    context = ssl.create_default_context(cafile=None)
    return [len(context.get_ca_certs()) > 0, context.verify_mode == ssl.CERT_REQUIRED]
before = trusted()
with serve.no_certificates():
    meanwhile = trusted()
print(json.dumps([before, meanwhile, trusted()]))
""")
    before, meanwhile, after = certificates
    assert meanwhile == [False, True]
    assert after == before
