"""All tests of the project, collected once, and which of them pytest chooses for each `-m`.

    python -m tests.support.collected FILE MARKS...

writes a JSON list of `Collected` to FILE. It is a process of its own, as pytest does not collect
while it runs tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
LIMIT_S = 300.0


@dataclass(frozen=True)
class Collected:
    """`markers`: those of RUNS in tests/conftest.py. `chosen_by`: the values of -m that run it."""

    id: str
    markers: tuple[str, ...]
    chosen_by: tuple[str, ...]

    @property
    def path(self) -> str:
        return self.id.partition("::")[0]


def collect(directory: Path, marks: Sequence[str]) -> list[Collected]:
    """`directory`: for a file."""
    file = directory / "collected.json"
    command = [sys.executable, "-m", "tests.support.collected", str(file), *marks]
    subprocess.run(command, cwd=PROJECT, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())
    return [Collected(one["id"], tuple(one["markers"]), tuple(one["chosen_by"])) for one in found]


class Choices:
    """A plugin of pytest that asks all other plugins, and conftest.py, for each `-m` what runs."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = marks
        self.tests: list[Collected] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        from tests.conftest import RUNS

        choose = config.pluginmanager.subset_hook_caller("pytest_collection_modifyitems", [self])
        chosen: dict[str, set[str]] = {}
        for marks in self._marks:
            config.option.markexpr = marks
            left = list(items)
            choose(session=session, config=config, items=left)
            chosen[marks] = {item.nodeid for item in left}
        for item in items:
            markers = tuple(name for name in RUNS if item.get_closest_marker(name))
            chosen_by = tuple(marks for marks in self._marks if item.nodeid in chosen[marks])
            self.tests.append(Collected(item.nodeid, markers, chosen_by))
        items.clear()


def main(file: Path, marks: Sequence[str]) -> int:
    choices = Choices(marks)
    code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider"], plugins=[choices])
    file.write_text(json.dumps([asdict(test) for test in choices.tests]))
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else int(code)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
