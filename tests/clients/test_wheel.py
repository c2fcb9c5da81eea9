"""The wheel: one package, `brokerhouse`, which runs where the project's folder is not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.adapters import ConfluentKafka
from tests.support.broker_process import BrokerProcess
from tests.support.records import Record
from tests.support.server_process import PROJECT

pytestmark = pytest.mark.test_all

SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
BUILT = shutil.ignore_patterns("*.so", "_*.c", "__pycache__")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the repository: a build leaves files where it runs, and would take older ones."""
    copy = tmp_path_factory.mktemp("project")
    for name in SOURCES:
        shutil.copy(PROJECT / name, copy)
    shutil.copytree(PROJECT / "brokerhouse", copy / "brokerhouse", symlinks=True, ignore=BUILT)
    for room in rooms():
        shutil.copytree(PROJECT / room, copy / room, ignore=BUILT)
    return copy


@pytest.fixture(scope="module")
def files(project: Path) -> set[str]:
    """Every file with code, SQL, messages or settings, by its name in a wheel."""
    package = project / "brokerhouse"
    folders = [package, *(path for path in package.iterdir() if path.is_dir())]
    found = (path for folder in folders for path in folder.resolve().rglob("*") if path.is_file())
    names = (path.relative_to(project) for path in found)
    return {str(name if name.parts[0] == "brokerhouse" else "brokerhouse" / name) for name in names}


@pytest.fixture(scope="module")
def wheel(project: Path, files: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`files` is asked for first: the build adds C files to the project."""
    into = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", into, project], check=True)
    (built,) = into.iterdir()
    return built


def rooms() -> list[str]:
    """The folders with code: no module may be imported by their name alone."""
    return [path.name for path in (PROJECT / "brokerhouse").iterdir() if path.is_symlink()]


def test_a_wheel_has_one_package_with_every_file_of_the_project(
    wheel: Path, files: set[str]
) -> None:
    names = {name for name in ZipFile(wheel).namelist() if not name.endswith("/")}
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"brokerhouse"}
    assert files - names == set()


def test_a_broker_of_the_wheel_runs_beside_other_packages_of_the_same_names(
    wheel: Path, tmp_path: Path, topic: str
) -> None:
    installed = tmp_path / "installed"
    subprocess.run([*PIP, "install", "--no-deps", "--target", installed, wheel], check=True)
    assert (installed / "bin" / "brokerhouse").exists()
    for room in rooms():
        (installed / f"{room}.py").write_text("raise ImportError('another package of this name')")
    broker, client = BrokerProcess(tmp_path / "data", tree=installed), ConfluentKafka()
    broker.start()
    try:
        client.create_topic(broker.kafka, topic, 1)
        client.produce(broker.kafka, topic, [Record(b"key", b"value")])
        (record,) = client.read_from_offset(broker.kafka, topic, 0, 1)
        assert (record.key, record.value) == (b"key", b"value")
        loaded = Path(f"/proc/{broker.pid}/maps").read_text()
        assert f"{installed}/brokerhouse/protocol/_batches." in loaded
        assert f"{PROJECT}/" not in loaded.replace(f"{PROJECT}/.venv/", "")
    finally:
        broker.stop()
