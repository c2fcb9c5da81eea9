"""An application of Java that reads its settings from a file, as a process that a test may kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.server_process import ENDED_JAVA, ServerProcess


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
