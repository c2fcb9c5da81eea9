"""storage/chdb_library.py: the engine without what `import chdb` does besides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import PROJECT

_OPENED = """
import json, os, sys
from brokerhouse.storage import chdb_library
if sys.argv[2] == "in a thread":
    chdb_library.load_library()
elif sys.argv[2] == "after import chdb":
    import chdb
before = os.getcwd()
engine = chdb_library.chdb_connect()(sys.argv[1])
answer = engine.query("SELECT 40 + 2", "CSV").bytes().decode()
engine.close()
print(json.dumps([answer, hasattr(sys.modules["chdb"], "engine_version"), os.getcwd() == before]))
"""


@pytest.mark.parametrize(
    ("loaded", "has_functions"),
    [("here", False), ("in a thread", False), ("after import chdb", True)],
)
def test_the_library_is_loaded_without_a_temporary_engine(
    tmp_path: Path, loaded: str, has_functions: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OPENED, str(tmp_path / "data"), loaded],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == ["42\n", has_functions, True]
