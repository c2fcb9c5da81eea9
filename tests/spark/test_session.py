"""If something that Spark needs is missing, the error is one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerhouse.spark import SparkMissing, session
from brokerhouse.spark_jobs.session import check_installed, java_version
from tests.support.server_process import PROJECT


def java(directory: Path, says: str) -> None:
    """A JAVA_HOME whose Java says this of its version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("no version at all", None),
    ],
)
def test_the_version_of_java_is_read_from_its_output(
    says: str, version: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() == version


def test_a_session_without_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match=r"^Spark needs Java: install Java 17 \(apt-get inst"):
        session("never")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(SparkMissing, match="Spark needs Java: install Java 17"):
        check_installed()


def test_a_session_with_an_old_java_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(tmp_path, 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkMissing, match="Spark needs Java 17, but this is Java 11: install"):
        check_installed()


@pytest.mark.parametrize("name", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_python_package_is_named_with_the_pip_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SparkMissing, match=f"{name} is missing: pip install 'brokerhouse"):
        check_installed()


def test_the_public_name_can_be_imported_without_pyspark(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('no', name='pyspark')")
    code = "from brokerhouse.spark import JOBS, session; print(JOBS.is_dir()); session('never')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{PROJECT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n"
    assert "SparkMissing: pyspark is missing: pip install 'brokerhouse[spark]'" in done.stderr


def test_an_old_pyspark_is_refused_with_the_oldest_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.0")
    with pytest.raises(SparkMissing, match=r"pyspark is 4\.1\.0, but 4\.2 is the oldest"):
        check_installed()
