"""A long-lived process that drives a client of another language.

One JSON request per line in, one JSON answer per line out.
"""

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.support import tokens

ANSWER_LIMIT_S = 60.0


class HelperError(Exception):
    """The client's operation failed; the message ends with what the helper printed."""


class HelperProcess:
    def __init__(self, command: Sequence[str], errors_path: Path) -> None:
        self._errors_path = errors_path
        tokens.take_for(command)
        with errors_path.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._pump = threading.Thread(
            target=_read_lines, args=(self._process.stdout, self._answers), daemon=True
        )
        self._pump.start()

    def ask(self, verb: str, **arguments: Any) -> Any:
        """What the helper answers. Raises HelperError with the client's own error."""
        mark = self._errors_path.stat().st_size
        self._requests.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self._requests.flush()
        try:
            line = self._answers.get(timeout=ANSWER_LIMIT_S)
        except queue.Empty:
            self._process.kill()
            raise HelperError(f"no answer to {verb} in {ANSWER_LIMIT_S:.0f} s") from None
        answer = {"error": "the helper ended"} if line is None else json.loads(line)
        if "error" in answer:
            printed = self._errors_path.read_bytes()[mark:][-4000:].decode(errors="replace")
            raise HelperError(f"{verb}: {answer['error']}\n{printed}")
        return answer["ok"]

    def close(self) -> None:
        self._requests.close()
        try:
            self._process.wait(ANSWER_LIMIT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._pump.join(ANSWER_LIMIT_S)


def _read_lines(lines: IO[str], answers: "queue.SimpleQueue[str | None]") -> None:
    with lines:
        for line in lines:
            answers.put(line)
    answers.put(None)
