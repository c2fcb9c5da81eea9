"""Minutes at full speed, by a Java producer with its defaults: does anything grow that should not?

Every few seconds the broker's parts, merges, memory and directories are looked at. The medians of
the second quarter of the time and of the last one are compared.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from bench.kafka.loads import java_producer_command
from bench.kafka.servers import BROKERHOUSE, create_topic, started
from bench.machine import cpu_seconds
from bench.samples import Sample, directory_bytes, growth_table, samples_table
from tests.support.broker_process import BrokerProcess

_TOPIC = "soak"
_SIZE = 100
_SAMPLES_AT_LEAST = 8
_LOOK_EACH_S = 5.0
_STORED = """
SELECT count() AS parts,
       sum(rows) AS all_rows,
       sum(bytes_on_disk) AS all_bytes,
       sumIf(rows, level = 0) AS never_merged,
       (SELECT count() FROM system.merges) AS merges,
       (SELECT count() FROM system.parts WHERE NOT active) AS outdated
FROM system.parts
WHERE active AND database = currentDatabase() AND table = 'messages'
"""
_RATE, _TABLES = "records/s", "clickhouse/ MB"
_RECORDS, _PER_RECORD = "million records", "bytes per record in all directories"
_JUST_SHOWN = (_RATE, _RECORDS, _TABLES)
"""What need not be flat: more records take more space."""


def soak(minutes: float) -> str:
    """Markdown: the samples, thinned out, and whether each figure stayed flat."""
    with started(BROKERHOUSE) as server:
        assert isinstance(server, BrokerProcess)
        create_topic(server, _TOPIC)
        samples = list(_samples(server, minutes * 60))
    return f"{samples_table(samples)}\n\n{growth_table(samples, _JUST_SHOWN)}"


def _samples(server: BrokerProcess, seconds: float) -> Iterator[Sample]:
    """Take samples while the producer sends, which is killed at the end."""
    command = java_producer_command(server, _TOPIC, _SIZE, 10**12)
    each_s = min(_LOOK_EACH_S, seconds / _SAMPLES_AT_LEAST)
    with tempfile.TemporaryFile() as printed:
        producer = subprocess.Popen(command, stdout=printed, stderr=printed)
        try:
            began = last = time.monotonic()
            rows, cpu_s = 0.0, cpu_seconds(server.pid)
            while last < began + seconds:
                time.sleep(each_s)
                if producer.poll() is not None:
                    printed.seek(0)
                    raise RuntimeError(f"the producer ended: {printed.read().decode()[-4000:]}")
                now, sample = time.monotonic(), _look(server)
                used = cpu_seconds(server.pid)
                yield {
                    "minute": (now - began) / 60,
                    _RATE: (sample[_RECORDS] * 1e6 - rows) / (now - last),
                    "broker's cores": (used - cpu_s) / (now - last),
                    **sample,
                }
                print(f"soak: minute {(now - began) / 60:.1f}", file=sys.stderr, flush=True)
                rows, cpu_s, last = sample[_RECORDS] * 1e6, used, now
        finally:
            producer.kill()
            producer.wait()


def _look(server: BrokerProcess) -> Sample:
    (stored,) = server.sql(_STORED)
    directories = {
        f"{path.name}/ MB": directory_bytes(path)
        for path in sorted(server.data_dir.iterdir())
        if path.is_dir()
    }
    rows = int(stored["all_rows"])
    return {
        _RECORDS: rows / 1e6,
        "parts": int(stored["parts"]),
        "outdated parts": int(stored["outdated"]),
        "merges that run": int(stored["merges"]),
        "1000 rows never merged": int(stored["never_merged"]) / 1e3,
        "RSS MB": server.rss_bytes() / 1e6,
        "bytes per record in parts": int(stored["all_bytes"]) / rows if rows else 0.0,
        _PER_RECORD: sum(directories.values()) / rows if rows else 0.0,
        **{name: size / 1e6 for name, size in directories.items()},
    }
