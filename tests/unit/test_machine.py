"""How much memory the process may use, as Linux says it in files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerhouse.common.process import memory_bytes

_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _groups(root: Path, lines: str) -> None:
    _write(root / "proc/self/cgroup", lines)


def test_without_control_groups_the_limit_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) == _MACHINE


@pytest.mark.parametrize(("limit", "expected"), [("1073741824\n", 1 << 30), ("max\n", _MACHINE)])
def test_the_memory_limit_of_a_version_2_control_group_applies(
    tmp_path: Path, limit: str, expected: int
) -> None:
    _groups(tmp_path, "0::/system.slice/broker.service\n")
    _write(tmp_path / "sys/fs/cgroup/system.slice/broker.service/memory.max", limit)
    assert memory_bytes(tmp_path) == expected


def test_the_memory_limit_of_a_parent_control_group_applies(tmp_path: Path) -> None:
    _groups(tmp_path, "0::/system.slice/broker.service\n")
    _write(tmp_path / "sys/fs/cgroup/system.slice/broker.service/memory.max", "2147483648\n")
    _write(tmp_path / "sys/fs/cgroup/system.slice/memory.max", "1073741824\n")
    assert memory_bytes(tmp_path) == 1 << 30


def test_in_a_container_the_limit_is_read_at_the_mount(tmp_path: Path) -> None:
    _groups(tmp_path, "0::/docker/0123\n")
    _write(tmp_path / "sys/fs/cgroup/memory.max", "1073741824\n")
    assert memory_bytes(tmp_path) == 1 << 30


def test_the_memory_limit_of_a_version_1_control_group_applies(tmp_path: Path) -> None:
    _groups(tmp_path, "5:cpuset:/\n4:memory:/a\n1:cpu,cpuacct:/b\n")
    _write(tmp_path / "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n")
    _write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_bytes(tmp_path) == 1 << 30


def test_the_memory_limit_of_this_machine_is_plausible() -> None:
    assert 0 < memory_bytes() <= _MACHINE
