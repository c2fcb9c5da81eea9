"""Files of tables in a directory, where a `metadata.json` is there as a whole or not at all.

ClickHouse takes the newest `metadata.json` of the directory for the table, and reads it while it is
being written: its query failed then. Other files are read only when something refers to them. On an
object store every file comes to be as a whole.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import TracebackType
from typing import cast
from uuid import uuid4

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

_WHOLE = ".metadata.json"


class LocalFileIO(PyArrowFileIO):
    """The catalog's property `py-io-impl` names this class."""

    def new_output(self, location: str) -> PyArrowFile:
        made = super().new_output(location)
        scheme, _, path = self.parse_location(location, self.properties)
        if scheme != "file" or not path.endswith(_WHOLE):
            return made
        return _WholeFile(location, path, self.fs_by_scheme(scheme, ""))


class _WholeFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        return cast("OutputStream", _Written(Path(self._path)))


class _Written(io.BytesIO):
    """Becomes the file when it is closed; nothing does if writing it fails."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        if self.closed:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(f"{uuid4()}.part")
        part.write_bytes(self.getvalue())
        os.replace(part, self._path)
        super().close()

    def __del__(self) -> None:
        """`BytesIO` would close it, and so make a file of what was given up."""
