"""The README's session, as typed, answers its question from a real file.

Only what differs between machines is replaced: the broker's ports, the path of its command, and the
log of the package manager if that is empty (in a fresh container).
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import tools
from tests.support.broker_process import BrokerProcess

PROJECT = Path(__file__).resolve().parents[2]
LOG = Path("/var/log/dpkg.log")
SESSION = re.compile(r"<!-- session -->\n```sh\n(.*?)```\n", re.DOTALL)
SAMPLE = """\
2026-11-20 15:36:01 startup archives unpack
2026-11-20 15:36:01 install kcat:amd64 <none> 1.7.1-2
2026-11-20 15:36:01 status half-installed kcat:amd64 1.7.1-2
2026-11-21 09:00:00 install curl:amd64 <none> 7.88.1-10
2026-11-21 09:00:01 upgrade bash:amd64 5.2.15-2 5.2.15-3
2026-11-21 09:00:02 install maven:all <none> 3.8.7-1
"""


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """A package manager's log in which something was installed."""
    if LOG.exists() and " install " in LOG.read_text(errors="replace"):
        return LOG
    sample = tmp_path / "dpkg.log"
    sample.write_text(SAMPLE)
    return sample


def sessions() -> list[str]:
    """The sessions of the README."""
    return SESSION.findall((PROJECT / "README.md").read_text(encoding="utf-8"))


def type_in(session: str, broker: BrokerProcess, log_file: Path) -> str:
    """What a shell prints. Any command that fails fails the session."""
    script = (
        session.replace("localhost:9092", broker.kafka)
        .replace("localhost:8123", broker.http)
        .replace(str(LOG), str(log_file))
        .replace("brokerhouse ", f"{sys.executable} -m brokerhouse ")
    )
    result = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=PROJECT,
        env={**os.environ, "BROKERHOUSE_BOOTSTRAP": broker.kafka, "BROKERHOUSE_HTTP": broker.http},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_session_of_the_readme_answers_its_question_from_a_real_file(
    own_broker: Callable[..., BrokerProcess], log_file: Path
) -> None:
    tools.program("kcat")
    broker = own_broker()
    lines = log_file.read_text(errors="replace").splitlines()
    first, second, third = sessions()

    answer = type_in(first, broker, log_file)
    installs = Counter(line[:10] for line in lines if " install " in line)
    drawn = re.findall(r"│ (\d{4}-\d\d-\d\d) │ +(\d+) │", answer)
    assert {day: int(count) for day, count in drawn} == installs
    assert [day for day, _ in drawn] == sorted(installs)

    lag = type_in(second, broker, log_file)
    assert re.search(rf"│ readers +│ dpkg +│ +{len(lines)} │ +{len(lines) + 1} │ +1 │", lag)

    lines.append("one more line")
    records = type_in(third, broker, log_file)
    assert records.splitlines()[1].split()[:2] == ["dpkg", "1"]
    assert re.search(rf"^dpkg +0 +{len(lines) - 1} +{len(lines)} +1\b", records, re.MULTILINE)
    for action, times in Counter(line.split()[2] for line in lines).items():
        assert re.search(rf"^{action}\s+{times}$", records, re.MULTILINE)
    values = [line.split("\t")[3] for line in records.splitlines() if line.startswith("0:")]
    assert values == lines
