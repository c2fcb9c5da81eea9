"""A short soak: the same clients and kills as in `make soak`, for three minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import PROJECT

MINUTES = 3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_in_a_short_soak(tmp_path: Path) -> None:
    picture = tmp_path / "soak.svg"
    command = [sys.executable, "-m", "bench.soak", "--hours", str(MINUTES / 60)]
    command += ["--plot", str(picture), "--compaction-every-minutes", "1"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "times kill -9" in done.stdout
    assert picture.read_text().count("<path") > 10
