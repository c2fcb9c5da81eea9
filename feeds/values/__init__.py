"""What fits a column: a stored value reads back as it was sent, or its record is a dead letter.

    record -> _reader.pyx -> _scan.pyx -> RowBinary -> SQL of layout.py and plan.py -> feed_rows

* types.py: ClickHouse's names of types as trees.
* plan.py: the table of conversions, one entry for each type, also inside of others.
* layout.py: the columns of one table: what the scanner writes, and the query that makes rows of it.
* _reader.pyx: JSON and CSV: where a record has the values that somebody wants.
* _scan.pyx: these values as RowBinary, or what does not fit.
* _plan.pyx: the scanner's form of a plan. _numbers.pxd, _moments.pxd: digits, dates and times.
"""
