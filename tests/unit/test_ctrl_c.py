"""Ctrl-C in a command that waits for it."""

import subprocess
import sys

from tests.support.server_process import PROJECT

ROUNDS = 300

PRESSED_WHILE_WAITING = f"""
import os, signal, threading
from brokerhouse.broker.cli.ctrl_c import ctrl_c

def press():
    started.wait()
    os.kill(os.getpid(), signal.SIGINT)

for _ in range({ROUNDS}):
    started = threading.Event()
    thread = threading.Thread(target=press)
    with ctrl_c() as stop:
        thread.start()
        started.set()
        while not stop.wait(0):
            pass
        assert stop.is_pressed()
    thread.join()
"""


def test_ctrl_c_ends_a_waiting_command_at_any_moment() -> None:
    subprocess.run(
        [sys.executable, "-c", PRESSED_WHILE_WAITING], cwd=PROJECT, check=True, timeout=60
    )
