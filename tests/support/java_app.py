"""An application of Java that reads its settings from a file, as a process that a test may kill."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.server_process import ENDED_JAVA, LIMIT_S, ServerProcess

_ENDS_IT = re.compile(r"[Ss]hutdown|KafkaBasedLog|DistributedHerder")


class JavaApp(ServerProcess):
    """A subclass says when it is ready."""

    clean_exit_codes = ENDED_JAVA

    def __init__(
        self, directory: Path, name: str, command: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        """`command` gets the path of the file with the settings as its last argument."""
        super().__init__(directory / f"{name}.log")
        properties = directory / f"{name}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._command = (*command, str(properties))

    def command(self) -> Sequence[str]:
        return self._command

    def busy_with(self) -> str:
        """The stacks of the threads that end it, and of those that work for a request."""
        jstack = ["jstack", str(self.pid)]
        stacks = subprocess.run(jstack, capture_output=True, text=True, timeout=LIMIT_S).stdout
        (self.log_path.parent / f"{self.log_path.stem}.stacks").write_text(stacks)
        return "\n\n".join(stack for stack in stacks.split("\n\n") if _ENDS_IT.search(stack))
