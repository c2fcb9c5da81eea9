# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""Record batches to a block of columns.

_decode_batches.pyi says what each function means. tests/reference/decode_batches.py is the same in
readable Python; tests compare the two byte for byte. This module reads each record once, in C and
without the GIL, and copies its fields from the batch into the columns.

What must hold: the input is untrusted. Every read is checked against the end of what was received;
whatever a count claims, no allocation is larger than a small multiple of the bytes received; after
an error a builder is exactly as it was before. A record that becomes a row and a record again
(_encode_batches.pyx) is the same, bit for bit.

Formats: record batch v2 (https://kafka.apache.org/documentation/#recordbatch, KIP-98) and
ClickHouse's Native (https://clickhouse.com/docs/interfaces/formats/Native).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8String
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcpy

from brokerhouse.protocol._batches cimport LOG_APPEND_TIME, BatchHeader
from brokerhouse.protocol._bytes cimport (
    RELEASE_GIL_BYTES,
    Buf,
    put_byte,
    put_int64,
    put_string,
    read_zigzag,
    reserve,
)
from brokerhouse.protocol._packed_blocks cimport (
    COLUMN_BUFFERS,
    Columns,
    Rows,
    Run,
    block_size,
    packed,
    write_block,
)

from brokerhouse.protocol.columns import COLUMNS
from brokerhouse.protocol.errors import InvalidRecord, MessageTooLarge, RecordsWithoutKey


cdef enum:
    SMALLEST_RECORD = 7  # bytes: length, attributes, two deltas, two lengths, header count
    INDEXES_TOLD = 1000
    SPARE_MAX = 4 << 20  # bytes that are kept for the next block; small blocks take far less


# --- reading records ---


cdef enum RecordFault:
    OK
    NO_MEMORY
    BAD_VARINT
    BAD_LENGTH
    NO_ATTRIBUTES
    BAD_OFFSET
    BAD_KEY
    BAD_VALUE
    BAD_HEADER_COUNT
    BAD_HEADER_KEY
    BAD_HEADER_VALUE
    RECORD_TRAILING
    BATCH_TRAILING


cdef dict _FAULTS = {
    BAD_VARINT: "a number in it is cut or too long",
    BAD_LENGTH: "its length does not fit into the batch",
    NO_ATTRIBUTES: "it is empty",
    BAD_OFFSET: "its offset delta is not its position in the batch",
    BAD_KEY: "its key does not fit into it",
    BAD_VALUE: "its value does not fit into it",
    BAD_HEADER_COUNT: "its header count does not fit into it",
    BAD_HEADER_KEY: "a header's key is null or does not fit into it",
    BAD_HEADER_VALUE: "a header's value does not fit into it",
    RECORD_TRAILING: "bytes are left over in it",
    BATCH_TRAILING: "bytes are left over after it",
}


cdef inline RecordFault _read_nullable(
    const uint8_t **cursor, const uint8_t *stop, Buf *nulls, Buf *strings, RecordFault misfit
) noexcept nogil:
    """Appends a key or value, which is null where its length is -1."""
    cdef int32_t n = 0
    if not read_zigzag(cursor, stop, &n):
        return BAD_VARINT
    if n < -1 or n > stop - cursor[0]:
        return misfit
    if not (put_byte(nulls, n < 0) and put_string(strings, cursor[0], n if n > 0 else 0)):
        return NO_MEMORY
    if n > 0:
        cursor[0] += n
    return OK


cdef RecordFault _read_records(
    Columns *c,
    const uint8_t *p,
    const uint8_t *end,
    int64_t count,
    int64_t base_timestamp,
    bint one_timestamp,
    int64_t *record,
) noexcept nogil:
    """Appends `count` records. On a fault, `record` is the bad one; the caller rolls back."""
    cdef const uint8_t *stop
    cdef RecordFault fault
    cdef int32_t n = 0
    cdef int32_t headers = 0
    cdef int64_t delta = 0
    cdef int64_t i
    cdef int64_t h
    if not (
        reserve(&c.value, end - p)  # most of a batch are its values
        and reserve(&c.timestamp, count * 8)
        and reserve(&c.key_null, count)
        and reserve(&c.value_null, count)
        and reserve(&c.header_end, count * 8)
    ):
        return NO_MEMORY
    for i in range(count):
        record[0] = i
        if not read_zigzag(&p, end, &n):
            return BAD_VARINT
        if n < 0 or n > end - p:
            return BAD_LENGTH
        stop = p + n
        if n == 0:
            return NO_ATTRIBUTES
        p += 1  # a record's attributes mean nothing in v2
        if not read_zigzag(&p, stop, &delta):
            return BAD_VARINT
        if one_timestamp:
            delta = 0
        if not put_int64(&c.timestamp, <int64_t>(<uint64_t>base_timestamp + <uint64_t>delta)):
            return NO_MEMORY
        if not read_zigzag(&p, stop, &n):
            return BAD_VARINT
        if n != i:
            return BAD_OFFSET
        fault = _read_nullable(&p, stop, &c.key_null, &c.key, BAD_KEY)
        if fault != OK:
            return fault
        fault = _read_nullable(&p, stop, &c.value_null, &c.value, BAD_VALUE)
        if fault != OK:
            return fault
        if not read_zigzag(&p, stop, &headers):
            return BAD_VARINT
        if headers < 0 or headers > stop - p:
            return BAD_HEADER_COUNT
        for h in range(headers):
            if not read_zigzag(&p, stop, &n):
                return BAD_VARINT
            if n < 0 or n > stop - p:
                return BAD_HEADER_KEY
            if not put_string(&c.header_key, p, n):
                return NO_MEMORY
            p += n
            fault = _read_nullable(
                &p, stop, &c.header_value_null, &c.header_value, BAD_HEADER_VALUE
            )
            if fault != OK:
                return fault
        if not put_int64(&c.header_end, <int64_t>c.header_value_null.len):
            return NO_MEMORY
        if p != stop:
            return RECORD_TRAILING
    if p != end:
        return BATCH_TRAILING
    return OK


cdef enum LengthFault:
    NONE
    TOO_MANY
    LENGTH_CUT
    NO_LENGTH
    TOO_LONG


cdef LengthFault _skip_records(
    const uint8_t *data,
    int64_t available,
    int64_t count,
    int64_t max_bytes,
    int64_t *index,
    int64_t *at,
    int32_t *size,
) noexcept nogil:
    """Goes from length to length, until one is not complete or not accepted."""
    cdef const uint8_t *p
    cdef const uint8_t *end = data + available
    while at[0] < available:
        if index[0] == count:
            return TOO_MANY
        p = data + at[0]
        if not read_zigzag(&p, end, size):
            # A length has at most 5 bytes.
            return LENGTH_CUT if end - p >= 5 else NONE
        if size[0] < 1:
            return NO_LENGTH
        if size[0] > max_bytes:
            return TOO_LONG
        at[0] = p - data + size[0]
        index[0] += 1
    return NONE


cdef _check_keys(const uint8_t *nulls, int64_t count):
    """Raises RecordsWithoutKey unless every record has a key: `nulls` has a byte for each."""
    cdef int64_t i
    cdef int64_t keyless = 0
    if memchr(nulls, 1, count) == NULL:
        return
    indexes = []
    for i in range(count):
        if nulls[i]:
            keyless += 1
            if keyless <= INDEXES_TOLD:
                indexes.append(i)
    raise RecordsWithoutKey(tuple(indexes), keyless)


# --- what Python sees ---


cdef class RecordLengths:
    """Checks lengths during decompression: see _decode_batches.pyi."""

    cdef int64_t _count
    cdef int64_t _max_bytes
    cdef int64_t _index
    cdef int64_t _at

    def __cinit__(self, int64_t count, int64_t max_bytes):
        self._count = count
        self._max_bytes = max_bytes

    def check(self, data):
        cdef Py_buffer view
        cdef LengthFault fault
        cdef int32_t size = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                fault = _skip_records(
                    <const uint8_t *>view.buf, view.len, self._count, self._max_bytes,
                    &self._index, &self._at, &size
                )
        finally:
            PyBuffer_Release(&view)
        if fault == TOO_MANY:
            raise InvalidRecord(f"The record batch has more than its {self._count} records.")
        if fault == LENGTH_CUT:
            raise InvalidRecord(
                f"Record {self._index} of {self._count} is not valid: {_FAULTS[BAD_VARINT]}."
            )
        if fault == NO_LENGTH:
            raise InvalidRecord(
                f"Record {self._index} of {self._count} has a length of {size} bytes."
            )
        if fault == TOO_LONG:
            raise MessageTooLarge(
                f"Record {self._index} has {size} bytes when it is decompressed. At most "
                f"{self._max_bytes} are accepted."
            )


# The empty buffers of a builder that is gone, for the next one. For a small block it takes longer to
# make and grow buffers than to fill them. The GIL guards both.
cdef Columns _spare
cdef bint _has_spare = False


cdef class BlockBuilder:
    """Gathers batches into one block for `messages`: see _decode_batches.pyi."""

    COLUMNS = COLUMNS

    cdef Rows _rows
    cdef dict _topics  # name -> index in the dictionary of the topic column
    cdef bint _busy

    def __cinit__(self, int64_t append_time_ms):
        global _has_spare
        if _has_spare:
            self._rows.columns = _spare
            _has_spare = False
        self._rows.append_time_ms = append_time_ms
        self._topics = {"": 0}  # a LowCardinality dictionary opens with the default value
        if not put_string(&self._rows.columns.topics, NULL, 0):
            raise MemoryError()

    def __dealloc__(self):
        global _spare, _has_spare
        cdef Buf *buffers = <Buf *>&self._rows.columns
        cdef size_t size = 0
        cdef int i
        for i in range(COLUMN_BUFFERS):
            buffers[i].len = 0
            size += buffers[i].cap
        if not _has_spare and size <= SPARE_MAX:
            _spare = self._rows.columns
            _has_spare = True
            return
        for i in range(COLUMN_BUFFERS):
            free(buffers[i].data)

    @property
    def rows(self):
        return self._rows.count

    @property
    def bytes(self):
        return self._size()

    cdef size_t _size(self):
        return block_size(
            &self._rows, 1, self._rows.count, self._rows.columns.topics.len, len(self._topics)
        )

    def append(
        self,
        str topic not None,
        bytes topic_id not None,
        int32_t partition,
        int64_t base_offset,
        int32_t leader_epoch,
        BatchHeader header not None,
        payload,
        log_append_time_ms,
        bint keyed=False,
        int64_t transaction_start=-1,
    ):
        cdef Columns *c = &self._rows.columns
        cdef Buf *buffers = <Buf *>c
        cdef size_t before[COLUMN_BUFFERS]
        cdef Py_buffer view
        cdef const uint8_t *p
        cdef const uint8_t *end
        cdef Run run
        cdef int64_t count = header.count
        cdef int64_t record = 0
        cdef int64_t base_timestamp = header.base_timestamp
        cdef bint one_timestamp = False
        cdef RecordFault fault = OK
        cdef object known
        cdef bytes name
        cdef int i

        run.attributes = header.attributes
        if log_append_time_ms is not None:
            base_timestamp = log_append_time_ms
            one_timestamp = True
            run.attributes |= LOG_APPEND_TIME
        elif header.attributes & LOG_APPEND_TIME:
            base_timestamp = header.max_timestamp
            one_timestamp = True
        if len(topic_id) != 16:
            raise ValueError("a topic id has 16 bytes")
        if count <= 0:
            raise InvalidRecord(f"The record batch has {count} records. It must have at least one.")
        if header.last_offset_delta != count - 1:
            raise InvalidRecord(
                f"The record batch has {count} records, but its last offset delta is"
                f" {header.last_offset_delta}."
            )
        if base_offset < 0 or base_offset > INT64_MAX - (count - 1):
            raise ValueError(f"offset {base_offset} of {count} records is out of range")
        if self._busy:
            raise RuntimeError("the block builder is in use by another thread")

        name = PyUnicode_AsUTF8String(topic)
        run.base_offset = base_offset
        run.count = count
        run.producer_id = header.producer_id
        run.transaction_start = transaction_start
        run.partition = partition
        run.leader_epoch = leader_epoch
        run.base_sequence = header.base_sequence
        run.producer_epoch = header.producer_epoch
        run.unused = 0
        memcpy(run.topic_id, PyBytes_AS_STRING(topic_id), 16)
        known = self._topics.get(topic)
        run.topic = len(self._topics) if known is None else known

        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        self._busy = True
        for i in range(COLUMN_BUFFERS):
            before[i] = buffers[i].len
        try:
            if count > view.len // SMALLEST_RECORD:
                raise InvalidRecord(
                    f"The record batch has {view.len} bytes, too few for its {count} records."
                )
            p = <const uint8_t *>view.buf
            end = p + view.len
            if view.len < RELEASE_GIL_BYTES:
                fault = _read_records(c, p, end, count, base_timestamp, one_timestamp, &record)
            else:
                with nogil:
                    fault = _read_records(c, p, end, count, base_timestamp, one_timestamp, &record)
            if fault == OK and keyed:
                _check_keys(c.key_null.data + c.key_null.len - count, count)
            if fault == OK:
                if not reserve(&c.runs, sizeof(Run)):
                    fault = NO_MEMORY
                elif known is None:
                    p = <const uint8_t *>PyBytes_AS_STRING(name)
                    if not put_string(&c.topics, p, len(name)):
                        fault = NO_MEMORY
                    else:
                        self._topics[topic] = run.topic
            if fault == NO_MEMORY:
                raise MemoryError()
            if fault != OK:
                raise InvalidRecord(f"Record {record} of {count} is not valid: {_FAULTS[fault]}.")
            memcpy(c.runs.data + c.runs.len, &run, sizeof(Run))
            c.runs.len += sizeof(Run)
            self._rows.count += count
        except BaseException:
            for i in range(COLUMN_BUFFERS):
                buffers[i].len = before[i]
            raise
        finally:
            self._busy = False
            PyBuffer_Release(&view)

    def finish(self):
        cdef bytes block
        cdef uint8_t *p
        cdef uint64_t topics = len(self._topics)
        if self._busy:
            raise RuntimeError("the block builder is in use by another thread")
        block = PyBytes_FromStringAndSize(NULL, self._size())
        p = <uint8_t *>PyBytes_AS_STRING(block)
        self._busy = True
        if len(block) < RELEASE_GIL_BYTES:
            self._write(p, topics)
        else:
            with nogil:
                self._write(p, topics)
        self._busy = False
        return block

    cdef void _write(self, uint8_t *p, uint64_t topics) noexcept nogil:
        write_block(p, &self._rows, 1, self._rows.count, &self._rows.columns.topics, topics)

    def pack(self):
        if self._busy:
            raise RuntimeError("the block builder is in use by another thread")
        if self._rows.count == 0:
            raise ValueError("there are no rows to pack")
        self._busy = True
        try:
            return packed(&self._rows, len(self._topics))
        finally:
            self._busy = False
