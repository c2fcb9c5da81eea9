"""How large the reserve of a disk and the parts of the log are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerhouse.storage.disk_reserve import DiskReserve, default_reserve_bytes, part_max_bytes

MIB = 1 << 20
GIB = 1 << 30


class _Disk:
    f_frsize = 4096

    def __init__(self, size: int) -> None:
        self.f_blocks = size // self.f_frsize


@pytest.mark.parametrize(
    ("disk", "reserve"),
    [
        (128 * MIB, 0),
        (256 * MIB, 96 * MIB),
        (4 * GIB, 4 * GIB // 20),
        (10 * GIB, 512 * MIB),
        (2000 * GIB, 512 * MIB),
    ],
)
def test_the_reserve_is_a_twentieth_of_the_disk_within_limits(
    monkeypatch: pytest.MonkeyPatch, disk: int, reserve: int
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: _Disk(disk))
    assert default_reserve_bytes(Path("/")) == reserve


def test_parts_fit_into_the_reserve_and_a_large_disk_has_few_of_them() -> None:
    assert part_max_bytes(96 * MIB, 300 * MIB) == 16 * MIB
    assert part_max_bytes(512 * MIB, 10 * GIB) == 224 * MIB
    for disk in (100 * GIB, 1000 * GIB, 20_000 * GIB):
        assert disk // part_max_bytes(512 * MIB, disk) <= 400


def test_a_sparse_copy_of_the_reserve_is_allocated_again(tmp_path: Path) -> None:
    DiskReserve(tmp_path, MIB)
    file = tmp_path / "reserve"
    whole = file.stat()
    DiskReserve(tmp_path, MIB)
    assert file.stat().st_ino == whole.st_ino, "it was there"
    file.unlink()
    with file.open("wb") as sparse:
        sparse.truncate(MIB)
    assert DiskReserve(tmp_path, MIB).is_held
    assert file.stat().st_blocks * 512 >= MIB
