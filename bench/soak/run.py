"""The soak itself: starts the broker and its clients, kills it again and again, checks at the end.

In the first half the broker is killed and started; in the second half it is left alone, so what
grows there grew in one process.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from bench.kafka.figures import UnreadableOutput, produced
from bench.samples import MINUTE, Sample, directory_bytes
from bench.soak.hostile import Hostile, summary
from bench.soak.report import DISK, FDS, OUTDATED, PARTS, RECORDS, RSS, THREADS, Report
from tests.support import messages, tools
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target
from tests.support.server_process import PROJECT
from tests.support.sql_rows import SqlError
from tests.support.waiting import until
from tests.support.wire import Wire

LEDGER, JAVA, COMPACTED, BOMBED = "ledger", "java", "compacted", "bombed"
GROUP = "readers"
_PRODUCERS = {  # of the ledger: a partition each, and records a second
    0: ("confluent-kafka", 1000),
    1: ("kafka-python", 200),
    2: ("confluent-kafka", 50),
}
_JAVA_RATE = 500
_COMPACT_RATE = 50
_MEMBERS = ("confluent-kafka", "kafka-python", "confluent-kafka")
_MEMBER_STAYS_S = (10.0, 40.0)
_KILL_EVERY_S = (8.0, 180.0)
_SAMPLE_EVERY_S = (2.0, 30.0)
_END_LIMIT_S = 180.0
_QUERIES = (
    "SELECT topic, partition, count(), max(offset) FROM messages GROUP BY ALL FORMAT Null",
    "SELECT * FROM consumer_lag FORMAT Null",
    "SELECT value FROM messages WHERE topic = 'ledger' ORDER BY timestamp_ms DESC LIMIT 100"
    " FORMAT Null",
    "SELECT uniqExact(key), quantile(0.9)(length(value)) FROM messages FORMAT Null",
    "SELECT * FROM topic_stats FORMAT Null",
)
_STORED = """
SELECT count() AS parts, sum(rows) AS all_rows,
       (SELECT count() FROM system.parts WHERE NOT active) AS outdated
FROM system.parts WHERE active
"""
_NUMBERS = """
SELECT partition, count() AS records, uniqExact(offset) AS offsets, min(offset) AS first,
       max(offset) AS last, countIf(toInt64OrZero(substring(value, 1, 20)) != offset) AS wrong
FROM messages WHERE topic = 'ledger' GROUP BY partition
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a soak lasts and what is in it. `compaction_every_s`: 0 for never."""

    seconds: float
    seed: int
    compaction_every_s: float = 0.0

    @property
    def retention_ms(self) -> int:
        return int(max(60.0, self.seconds / 20) * 1000)

    def share(self, share: float, bounds: tuple[float, float]) -> float:
        """This share of the time, within bounds."""
        return min(max(self.seconds * share, bounds[0]), bounds[1])


class ClientProcess:
    """One process of clients.py, or of Kafka's own tools; it prints into a file."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.name = name
        self._out = folder / f"{name}.out"
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=out, stderr=out
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Tell it to stop; does not wait."""
        stdin: IO[bytes] | None = self._process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError):
                stdin.close()

    def result(self) -> dict[str, Any]:
        """What it printed at last, after `stop`."""
        self.stop()
        self._process.wait(_END_LIMIT_S)
        return self.last_line()

    def last_line(self) -> dict[str, Any]:
        """What it has printed as the last whole line."""
        for line in reversed(self.printed().splitlines(keepends=True)):
            if line.startswith("{") and line.endswith("\n"):
                found: dict[str, Any] = json.loads(line)
                return found
        return {"problems": [f"{self.name} printed no result: {self.printed()[-2000:]}"]}

    def printed(self) -> str:
        with self._out.open("rb") as out:
            out.seek(max(0, self._out.stat().st_size - 65_536))
            return out.read().decode(errors="replace")

    def wait(self) -> None:
        self._process.wait(_END_LIMIT_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Soak:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self.report = Report()
        self._plan = plan
        self._folder = folder
        self._chance = random.Random(plan.seed)
        self._broker = BrokerProcess(
            folder / "data",
            {
                "retention_check_interval_ms": "5000",
                "retention_ms": str(plan.retention_ms),
                "group_min_session_timeout_ms": "1000",
                "sql_user": "soak",
                "sql_password": "soak",
            },
        )
        self._began = 0.0
        self._up = threading.Event()
        self._stopped = threading.Event()
        self._statements: Counter[str] = Counter()
        self._members: list[tuple[ClientProcess, float]] = []
        self._started = 0
        self._joined = 0

    @property
    def _calm_at(self) -> float:
        """From then on the broker is not killed."""
        return self._began + self._plan.seconds / 2

    @property
    def _minute(self) -> float:
        return (time.monotonic() - self._began) / 60

    def run(self) -> Report:
        with ExitStack() as parts:
            self._broker.start()
            parts.callback(self._broker.kill)
            self._up.set()
            ledger, java_log, bombed = self._topics()
            self._began = time.monotonic()
            producers = {
                partition: self._client("produce", library, LEDGER, str(partition), str(rate))
                for partition, (library, rate) in _PRODUCERS.items()
            }
            compacting = self._client("compact", "kafka-python", COMPACTED, str(_COMPACT_RATE))
            auditor = self._client("audit", "confluent-kafka", LEDGER, str(len(_PRODUCERS)))
            java = self._java()
            for client in (*producers.values(), compacting, auditor, java):
                parts.callback(client.kill)
            parts.callback(self._kill_members)
            hostile = Hostile(self._broker, ledger, bombed, self._plan.seed)
            parts.callback(hostile.close)
            hostile.start()
            background = [threading.Thread(target=self._ask_sql, daemon=True)]
            if self._plan.compaction_every_s:
                background.append(threading.Thread(target=self._compact, daemon=True))
            for thread in background:
                thread.start()
            parts.callback(self._stopped.set)
            self._disturb()
            self._stopped.set()
            hostile.close()
            for thread in background:
                thread.join(_END_LIMIT_S)
            self.report.done += [*summary(hostile.done), *summary(self._statements)]
            self._check(producers, ledger, (compacting, auditor))
            self._check_java(java, java_log)
            self._broker.stop()
        return self.report

    # --- clients

    def _topics(self) -> tuple[Target, Target, Target]:
        """The ledger, the topic of the Java producer, and that of the bombs."""
        with Wire(self._broker) as wire:
            made = [
                messages.create_topic(wire, name, partitions, configs)
                for name, partitions, configs in (
                    (LEDGER, len(_PRODUCERS), {}),
                    (JAVA, 1, {}),
                    (COMPACTED, 1, {"cleanup.policy": "compact,delete"}),
                    (BOMBED, 1, {"retention.ms": "10000"}),
                )
            ]
        return made[0], made[1], made[3]

    def _client(self, kind: str, library: str, *arguments: str) -> ClientProcess:
        self._started += 1
        command = [sys.executable, "-m", "bench.soak.clients", kind, library, self._broker.kafka]
        name = f"{kind}-{library}-{self._started}"
        return ClientProcess(self._folder, name, [*command, *arguments])

    def _java(self) -> ClientProcess:
        """Kafka's own producer; it stops by the number of its records."""
        count = max(1, int(_JAVA_RATE * self._plan.seconds))
        command = [*tools.java_command(), "org.apache.kafka.tools.ProducerPerformance"]
        command += ["--bootstrap-server", self._broker.kafka, "--topic", JAVA]
        command += ["--num-records", str(count), "--record-size", "200"]
        return ClientProcess(self._folder, "java", [*command, "--throughput", str(_JAVA_RATE)])

    def _ask_sql(self) -> None:
        while not self._stopped.wait(1.0):
            if not self._up.is_set():
                continue
            try:
                self._broker.sql(self._chance.choice(_QUERIES))
            except SqlError as error:
                self._statements[f"SQL statements refused: {str(error)[:80]}"] += 1
            except (OSError, HTTPException):
                self._statements["SQL statements cut off by a kill"] += 1
            else:
                self._statements["SQL statements answered"] += 1

    def _compact(self) -> None:
        """The compaction job, in a Spark of its own."""
        while not self._stopped.wait(self._plan.compaction_every_s):
            command = [sys.executable, "-m", "brokerhouse", "jobs", "run", "compaction", "--force"]
            command += ["--user", "soak", "--password", "soak", "--retry-window-ms", "60000"]
            command += ["--http", self._broker.http_url]
            done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                self._statements["compaction jobs that ended well"] += 1
            elif time.monotonic() < self._calm_at + self._plan.compaction_every_s:
                self._statements["compaction jobs that failed while the broker was killed"] += 1
            else:
                self.report.problems.append(f"a compaction job failed: {done.stderr[-1000:]}")

    # --- disturbances

    def _disturb(self) -> None:
        """Until the time is over: kill the broker, let members come and go, take samples."""
        plan, report = self._plan, self.report
        kill_s = plan.share(0.05, _KILL_EVERY_S)
        sample_s = plan.share(0.005, _SAMPLE_EVERY_S)
        ends = self._began + plan.seconds
        kill_at, sample_at = self._began + kill_s, self._began + sample_s
        starts: list[float] = []
        while (now := time.monotonic()) < ends:
            self._change_members(now)
            if kill_at <= now < self._calm_at:
                self._up.clear()
                self._broker.kill()
                report.kills.append(self._minute)
                self._broker.start()
                self._up.set()
                starts.append(self._broker.start_s)
                report.calm_since = self._minute
                kill_at = time.monotonic() + kill_s * self._chance.uniform(0.5, 1.5)
            if now >= sample_at:
                sample_at = now + sample_s
                report.samples.append(self._look())
                print(f"soak: minute {self._minute:.1f}", file=sys.stderr, flush=True)
            time.sleep(0.2)
        if starts:
            report.done.append(
                f"{len(starts)} times kill -9; ready again after {max(starts):.1f} s at most"
            )

    def _look(self) -> Sample:
        (stored,) = self._broker.sql(_STORED)
        process = Path(f"/proc/{self._broker.pid}")
        return {
            MINUTE: self._minute,
            RSS: self._broker.rss_bytes() / 1e6,
            FDS: float(len(os.listdir(process / "fd"))),
            THREADS: float(len(os.listdir(process / "task"))),
            PARTS: float(stored["parts"]),
            OUTDATED: float(stored["outdated"]),
            RECORDS: int(stored["all_rows"]) / 1e3,
            DISK: directory_bytes(self._broker.data_dir) / 1e6,
        }

    def _change_members(self, now: float) -> None:
        """Keep three members; each stays for a while, then leaves, or is killed."""
        staying = []
        for client, leaves_at in self._members:
            if now < leaves_at and client.running:
                staying.append((client, leaves_at))
            elif self._chance.random() < 0.3:
                client.kill()
            else:
                client.stop()
                threading.Thread(target=client.wait, daemon=True).start()
        while len(staying) < len(_MEMBERS):
            library = _MEMBERS[self._joined % len(_MEMBERS)]
            client = self._client("member", library, LEDGER, GROUP)
            self._joined += 1
            staying.append((client, now + self._chance.uniform(*_MEMBER_STAYS_S)))
        self._members = staying

    def _kill_members(self) -> None:
        for client, _ in self._members:
            client.kill()

    # --- checks

    def _check(
        self,
        producers: dict[int, ClientProcess],
        ledger: Target,
        others: tuple[ClientProcess, ClientProcess],
    ) -> None:
        compacting, auditor = others
        for client in (*producers.values(), compacting):
            client.stop()
        results = {partition: client.result() for partition, client in producers.items()}
        acknowledged = {key: one.get("acknowledged", 0) for key, one in results.items()}
        with self._finding("the group did not read to the end"):
            until(lambda: self._is_committed(acknowledged), "all is committed", _END_LIMIT_S)
        wanted = [acknowledged[partition] for partition in sorted(acknowledged)]
        with self._finding("the auditor did not read to the end"):
            until(lambda: auditor.last_line().get("ends") == wanted, "all is read", _END_LIMIT_S)
        for result in (*results.values(), compacting.result(), auditor.result()):
            self.report.problems += result.get("problems", [f"a client did not end well: {result}"])
        for partition, result in results.items():
            if result.get("acknowledged") != result.get("sent"):
                self.report.problems.append(f"producer of partition {partition}: {result}")
        self._check_rows(ledger, acknowledged)
        library_counts = ", ".join(
            f"{library} {acknowledged[partition]:,}"
            for partition, (library, _) in _PRODUCERS.items()
        )
        self.report.done.append(
            f"records of the ledger acknowledged and found, each once: {library_counts}"
        )
        self.report.done.append(f"members of the group that joined: {self._joined}")

    @contextmanager
    def _finding(self, problem: str) -> Iterator[None]:
        try:
            yield
        except (AssertionError, UnreadableOutput) as error:
            self.report.problems.append(f"{problem}: {error}")

    def _is_committed(self, ends: dict[int, int]) -> bool:
        self._change_members(time.monotonic())
        rows = self._broker.sql(
            "SELECT partition, offset FROM current_offsets WHERE group_id = {group:String}",
            {"group": GROUP},
        )
        return {int(row["partition"]): int(row["offset"]) for row in rows} == ends

    def _check_rows(self, ledger: Target, acknowledged: dict[int, int]) -> None:
        """The log ends where it should; what retention has left is dense and says its offsets."""
        for partition, count in acknowledged.items():
            if (end := self._end(ledger, partition)) != count:
                self.report.problems.append(
                    f"{count} records of ledger-{partition} were acknowledged, and it ends at {end}"
                )
        for row in self._broker.sql(_NUMBERS):
            records, first, last = (int(row[name]) for name in ("records", "first", "last"))
            if int(row["wrong"]) or records != int(row["offsets"]) or records != last - first + 1:
                self.report.problems.append(f"rows of the ledger: {row}")

    def _check_java(self, java: ClientProcess, log: Target) -> None:
        with self._finding("the Java producer"):
            until(lambda: not java.running, "it has sent everything", _END_LIMIT_S)
            sent, end = produced(java.printed()).records, self._end(log)
            assert end == sent, f"it sent {sent} records, and its log ends at {end}"
            self.report.done.append(f"records of the Java producer, each once: {sent:,}")

    def _end(self, log: Target, partition: int = 0) -> int:
        with Wire(self._broker) as wire:
            answer = wire.ask(messages.list_offsets(log, -1, partition), 7)
        return int(answer.topics[0].partitions[0].offset)


def soak(plan: Plan, keep: Callable[[Report], None]) -> Report:
    """Run it in a folder of its own. `keep` gets the report, also if an error ends the soak."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        running = Soak(plan, Path(folder))
        try:
            return running.run()
        finally:
            keep(running.report)
