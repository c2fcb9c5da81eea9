"""Types of `_scan.pyx`: values of records as rows of ClickHouse's RowBinary."""

from collections.abc import Mapping, Sequence

from brokerhouse.feeds.values.plan import ScanNode

Fields = Mapping[str, tuple[int, "Fields | None"]]

class RowScanner:
    """Reads values of one format for the columns of one table. Not for two threads at a time.

    A row is `_offset Int64, _error String` and the columns. A value with a good row for each object
    becomes those; any other value becomes one row with why it is none.
    """

    def __init__(
        self,
        kind: str,
        columns: Sequence[tuple[str, str, int, ScanNode]],
        table: Fields,
        slots: int,
        collects: bool = False,
    ) -> None:
        """`kind`: json, csv, raw, or doubles: JSON whose numbers with a point or an exponent are
        the shortest text of a double. `columns`: name, type (both for errors), slot, how it is
        read.

        `table`: for each field the slot of its value (-1: nobody wants it), and the same for the
        fields in it, or None. `collects`: remember fields of the record that no column has.
        """

    def scan_file(self, values: bytes, mark: bytes) -> bytes:
        """Rows of a file of RowBinary (mark FixedString(16), offset Int64, value String).

        Values with another mark are left out. Raises ValueError if it is no such file.
        """

    def scan_record(self, offset: int, value: bytes) -> bytes:
        """Rows of one value."""

    def bad_record(self, offset: int, why: str) -> bytes:
        """The row of a value that is none."""

    def take_unknown(self) -> list[bytes]:
        """Fields that no column has, since the last call; 1,000 at most."""
