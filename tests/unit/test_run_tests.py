"""tools/run-tests: each test is in one lane; lanes that fail, pass, and are run again."""

import importlib.machinery
import importlib.util
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.collected import Collected, collect
from tests.support.waiting import until

PROJECT = Path(__file__).resolve().parents[2]
PYTEST = str(Path(sys.executable).with_name("pytest"))


def script() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("run_tests", str(PROJECT / "tools/run-tests"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


run_tests = script()
TABLE = run_tests.lanes_and_more()


def lanes_of(path: str, lanes: Sequence[Any]) -> list[str]:
    return [
        lane.name
        for lane in lanes
        if any(run_tests.is_below(path, own) for own in lane.paths)
        and not any(run_tests.is_below(path, other) for other in lane.ignored)
    ]


@pytest.mark.parametrize("everything", [False, True])
def test_each_test_file_is_in_exactly_one_lane(everything: bool) -> None:
    lanes = [lane for lane in run_tests.all_lanes(TABLE, everything=everything) if not lane.alone]

    files = [str(path.relative_to(PROJECT)) for path in PROJECT.glob("tests/**/test_*.py")]
    found = {path: lanes_of(path, lanes) for path in files if "/support/" not in path}

    assert {path: names for path, names in found.items() if len(names) != 1} == {}
    assert all(lane.marks == ("" if everything else run_tests.QUICK) for lane in lanes)


@cache
def lanes_with(path: str, everything: bool) -> list[Any]:
    lanes = run_tests.all_lanes(TABLE, everything=everything)
    return [lane for lane in lanes if lanes_of(path, [lane])]


def wrong_with(test: Collected) -> str:
    """Why a test is not in exactly one of `make test` and `make test-all`; "" if it is."""
    quick, everything = (
        [lane for lane in lanes_with(test.path, everything) if lane.marks in test.chosen_by]
        for everything in (False, True)
    )
    if len(test.markers) > 1:
        return "several markers"
    if len(quick) != (0 if test.markers else 1):
        return f"in {len(quick)} lanes of make test"
    return "" if len(everything) == 1 else f"in {len(everything)} lanes of make test-all"


WRONG = {
    "no marker, chosen by both": ((), ("", run_tests.QUICK), ""),
    "test_all, not in make test": (("test_all",), ("",), ""),
    "slow, in its own lane": (("slow",), ("slow",), ""),
    "two markers": (("test_all", "slow"), ("slow",), "several markers"),
    "no marker, not in make test": ((), ("",), "in 0 lanes of make test"),
    "a marker, in make test": (("slow",), ("slow", run_tests.QUICK), "in 1 lanes of make test"),
    "slow, chosen by no lane": (("slow",), (), "in 0 lanes of make test-all"),
    "slow, chosen by two lanes": (("slow",), ("", "slow"), "in 2 lanes of make test-all"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_test_in_no_lane_or_in_two_is_found(case: str) -> None:
    markers, chosen_by, expected = WRONG[case]

    assert wrong_with(Collected("tests/unit/test_a.py::test_a", markers, chosen_by)) == expected


@pytest.mark.test_all
def test_each_test_is_in_make_test_or_has_one_marker_and_is_in_one_lane_of_all(
    tmp_path: Path,
) -> None:
    both = [run_tests.all_lanes(TABLE, everything=everything) for everything in (False, True)]
    marks = sorted({lane.marks for lanes in both for lane in lanes})
    # Those of tests/cluster need a cluster that runs: only `make test-cluster` has one.
    tests = [test for test in collect(tmp_path, marks) if "tests/cluster/" not in test.id]

    assert len(tests) > 1000
    assert {test.id: wrong for test in tests if (wrong := wrong_with(test))} == {}


def test_every_path_of_the_table_exists() -> None:
    assert set(TABLE["files"]["in_memory"]) <= set(TABLE["lanes"])
    tables = [TABLE["lanes"], TABLE["alone"], TABLE["touched"]]
    paths = {path for table in tables for paths in table.values() for path in paths}

    missing = {path for path in paths | set(TABLE["touched"]) if not (PROJECT / path).exists()}
    assert missing == set()


TOUCHED = {
    "a file of a folder": (["protocol/frames.py"], ["tests/clients/wire", "tests/unit"]),
    "the longest folder counts": (["broker/cli/main.py"], TABLE["touched"]["broker/cli"]),
    "a file of no folder": (["LICENSE"], []),
    "a test itself": (["tests/faults/test_disk.py"], ["tests/faults/test_disk.py"]),
    "a test whose folder runs anyway": (
        ["protocol/frames.py", "tests/unit/test_docs.py"],
        ["tests/clients/wire", "tests/unit"],
    ),
    "a test that was removed": (["tests/unit/test_that_was_removed.py"], []),
}


@pytest.mark.parametrize("case", TOUCHED)
def test_a_change_runs_the_tests_that_it_touches(case: str) -> None:
    changed, expected = TOUCHED[case]

    assert run_tests.touched(changed, TABLE["touched"]) == sorted(expected)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with the script, and two lanes of which one fails."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/run-tests").write_text((PROJECT / "tools/run-tests").read_text())
    lanes = '[lanes]\ngood = ["good"]\nbad = ["bad"]\n[alone]\nslow = ["long"]\n[touched]\n'
    (tmp_path / "tools/lanes.toml").write_text(lanes)
    for folder, tests in {
        "good": """
            import pytest
            def test_always(): pass
            def test_skipped(): pytest.skip("it is not counted")
            @pytest.mark.test_all
            def test_all(): pass
        """,
        "long": """
            import pytest
            @pytest.mark.slow
            def test_slow(): pass
        """,
        "bad": "def test_bad(): assert False, 'it is broken'",
    }.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text(textwrap.dedent(tests))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    test_all\n    slow\n")
    (tmp_path / ".gitignore").write_text(".lanes\n__pycache__\n.pytest_cache\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    return tmp_path


def run_in(project: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "tools/run-tests", "--pytest", PYTEST, *arguments]
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_the_files_of_a_lane_in_memory_are_gone_when_the_run_has_ended(project: Path) -> None:
    lanes = (project / "tools/lanes.toml").read_text()
    (project / "tools/lanes.toml").write_text(f'{lanes}[files]\nin_memory = ["good"]\n')
    (project / "memory").mkdir()
    script = (project / "tools/run-tests").read_text()
    for name, value in {
        "MEMORY": f"Path({str(project / 'memory')!r})",
        "ENOUGH_MEMORY_BYTES": "0",
    }.items():
        script, changed = re.subn(rf"^{name} = .*$", f"{name} = {value}", script, flags=re.M)
        assert changed == 1
    (project / "tools/run-tests").write_text(script)
    for name in ("good", "bad"):
        told = f"__import__('pathlib').Path({str(project / name)!r} + '.txt')"
        test = f"def test_it(tmp_path): {told}.write_text(str(tmp_path))"
        (project / name / f"test_{name}.py").write_text(test)
    code, _ = run_in(project)

    assert code == 0
    good, bad = (Path((project / f"{name}.txt").read_text()) for name in ("good", "bad"))
    assert good.is_relative_to(project / "memory")
    assert not bad.is_relative_to(project / "memory")
    assert list((project / "memory").iterdir()) == []


def test_a_run_in_the_background_of_a_shell_can_be_ended(project: Path) -> None:
    began = project / "began.txt"
    for name in ("good", "bad"):
        test = f"def test_it(): open({str(began)!r}, 'w').close(); __import__('time').sleep(60)"
        (project / name / f"test_{name}.py").write_text(test)
    command = [sys.executable, "tools/run-tests", "--pytest", PYTEST]
    run = subprocess.Popen(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command], cwd=project)
    try:
        until(began.exists)
        run.terminate()
        assert run.wait(30) == 143
    finally:
        run.kill()


def test_a_failed_lane_is_shown_and_fails_the_run_and_the_others_run_all_the_same(
    project: Path,
) -> None:
    code, shown = run_in(project)

    assert code == 1
    assert "it is broken" in shown
    assert "lane good: passed" in shown
    assert shown.rstrip().endswith("1 passed, 1 failed")


@pytest.mark.test_all
def test_all_goes_on_with_the_lanes_that_have_not_passed_on_this_code(project: Path) -> None:
    _, first = run_in(project, "--all")
    _, second = run_in(project, "--all")
    (project / "bad/test_bad.py").write_text("def test_bad(): pass")
    code, third = run_in(project, "--all")

    assert first.rstrip().endswith("3 passed, 1 failed")
    assert "lane good: has passed on this code" in second
    assert second.rstrip().endswith("0 passed, 1 failed")
    assert code == 0
    assert third.rstrip().endswith("4 passed, 0 failed")


def test_lanes_end_when_the_run_is_told_to_end(project: Path) -> None:
    started, ended = project / "started", project / "ended"
    (project / "good/test_good.py").write_text(
        "import pathlib, time\n"
        "def test_long():\n"
        f"    pathlib.Path({str(started)!r}).touch()\n"
        "    try: time.sleep(60)\n"
        f"    finally: pathlib.Path({str(ended)!r}).touch()\n"
    )
    pytest_command = str(Path(sys.executable).with_name("pytest"))
    command = [sys.executable, "tools/run-tests", "--pytest", pytest_command, "--lane", "good"]
    run = subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL)
    until(started.exists, "the test runs", 60)
    run.terminate()

    assert run.wait(60) == 143
    assert ended.exists()


def test_an_unknown_lane_is_refused_with_the_names_of_all(project: Path) -> None:
    code, shown = run_in(project, "--lane", "fast")

    assert code == 2
    assert "no lane fast; there are good, bad" in shown
