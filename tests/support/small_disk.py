"""Small file systems, and brokers that have their data directory on one.

Mounting needs root. Without root a test runs itself again in a user namespace.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.server_process import PROJECT

MIB = 1 << 20
Test = TypeVar("Test", bound=Callable[..., None])


def in_a_mount_namespace(test: Test) -> Test:
    """Run the test as root, or as root of a user namespace where this user is not."""

    @functools.wraps(test)
    def run(*args: Any, request: pytest.FixtureRequest, **fixtures: Any) -> None:
        if os.geteuid() == 0:
            test(*args, request=request, **fixtures)
            return
        command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-m"]
        command += ["pytest", "-q", "-p", "no:cacheprovider", request.node.nodeid]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run  # type: ignore[return-value]  # the same parameters, by functools.wraps


class SmallDisk:
    """A file system in memory, mounted below `directory`, and a file that takes up its room."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.path = directory / "disk"
        self._ballast = self.path / "ballast"
        self.path.mkdir()
        below = os.stat(self.path).st_dev
        self._mount("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(self.path))
        self._device = os.stat(self.path).st_dev
        assert self._device != below

    def _mount(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"these tests need to mount: {done.stderr}"

    def fill(self) -> None:
        """Until not a byte is left."""
        assert os.stat(self.path).st_dev == self._device, "it is not mounted any more"
        with self._ballast.open("ab", buffering=0) as ballast:
            end = ballast.tell()
            for size in (16 * MIB, MIB, os.sysconf("SC_PAGE_SIZE")):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(ballast.fileno(), end, size)
                        end += size

    def free(self, size_bytes: int | None = None) -> None:
        """Give back this much of it, or all."""
        left = 0 if size_bytes is None else self._ballast.stat().st_size - size_bytes
        os.truncate(self._ballast, max(0, left))

    def make_read_only(self) -> None:
        self._mount("mount", "-o", "remount,ro", str(self.path))

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.path)], check=False)


@contextlib.contextmanager
def small_disk(directory: Path, size_bytes: int = 128 * MIB) -> Iterator[SmallDisk]:
    disk = SmallDisk(directory, size_bytes)
    try:
        yield disk
    finally:
        disk.unmount()


@contextlib.contextmanager
def running(data_dir: Path, **settings: str) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(data_dir, settings)
    broker.start()
    try:
        yield broker
    finally:
        if broker.running:
            broker.stop()
