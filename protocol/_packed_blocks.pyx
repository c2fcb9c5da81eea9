# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""Packed blocks, and writing Native ones.

`packed_blocks.py` has the format, _packed_blocks.pyi says what each function means.
tests/reference/packed_blocks.py is the same in readable Python; tests compare the two byte for byte.

What must hold: every size and count in a packed block is checked against its end before anything is
read or allocated; what they make is a small multiple of their bytes. Values of columns are copied
as they are: `BlockBuilder` wrote them, and the journal has checked their CRC.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from brokerhouse.protocol._batches cimport CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from brokerhouse.protocol._bytes cimport (
    RELEASE_GIL_BYTES,
    Buf,
    bh_put64,
    bh_varuint_size,
    point_at,
    put_bytes,
    read_varuint,
    skip_strings,
    write_bytes,
    write_varuint,
)

from brokerhouse.protocol import packed_blocks
from brokerhouse.protocol.columns import COLUMNS, column_head
from brokerhouse.protocol.packed_blocks import BadPackedBlock


cdef enum:
    BLOCK_WIDTH = 17  # columns
    # topic_id, partition, offset, timestamp_ms, timestamp_type, the null maps of key and value,
    # header ends, producer_id, producer_epoch, sequence, transactional, control, leader_epoch,
    # append_time, transaction_start
    FIXED_ROW_BYTES = 16 + 4 + 8 + 8 + 1 + 1 + 1 + 8 + 8 + 2 + 4 + 1 + 1 + 4 + 8 + 8
    DICTIONARY_BYTES = 32  # version, flags, number of keys, number of rows

    FORMAT = 1
    HEAD_NUMBERS = 9  # of 8 bytes: see `packed_blocks.py`


assert sizeof(Run) == packed_blocks.RUN.size and FORMAT == packed_blocks.FORMAT
assert 8 * HEAD_NUMBERS == packed_blocks.HEAD.size


# --- writing a Native block ---


cdef list _HEADS = [column_head(*column) for column in COLUMNS]
assert len(_HEADS) == BLOCK_WIDTH
cdef size_t _heads_size = sum(len(head) for head in _HEADS)
cdef const uint8_t *_head[BLOCK_WIDTH]
cdef size_t _head_size[BLOCK_WIDTH]
# The list lives as long as the module, so its bytes may be pointed at.
point_at(_HEADS, _head, _head_size)


cdef inline uint8_t *_write_head(uint8_t *p, int column) noexcept nogil:
    return write_bytes(p, _head[column], _head_size[column])


cdef inline uint8_t *_write_buf(uint8_t *p, const Buf *b) noexcept nogil:
    return write_bytes(p, b.data, b.len)


cdef inline uint8_t *_repeat(
    uint8_t *p, const void *value, size_t width, int64_t times
) noexcept nogil:
    cdef int64_t i
    for i in range(times):
        memcpy(p, value, width)
        p += width
    return p


cdef inline size_t _index_width(uint64_t keys) noexcept nogil:
    return 1 if keys <= 0x100 else 2 if keys <= 0x10000 else 4


cdef inline size_t _run_count(const Rows *part) noexcept nogil:
    return part.columns.runs.len // sizeof(Run)


cdef inline const Run *_runs(const Rows *part) noexcept nogil:
    return <const Run *>part.columns.runs.data


ctypedef uint8_t *(*WriteRun)(uint8_t *, const Run *) noexcept nogil


cdef inline uint8_t *_each_run(
    uint8_t *p, const Rows *parts, size_t part_count, WriteRun write
) noexcept nogil:
    cdef size_t i
    cdef size_t r
    for i in range(part_count):
        for r in range(_run_count(&parts[i])):
            p = write(p, &_runs(&parts[i])[r])
    return p


cdef uint8_t *_topic_id(uint8_t *p, const Run *run) noexcept nogil:
    cdef uint64_t halves[2]  # little-endian, each
    cdef uint64_t half
    memcpy(&half, run.topic_id, 8)
    bh_put64(<uint8_t *>&halves[0], half)
    memcpy(&half, run.topic_id + 8, 8)
    bh_put64(<uint8_t *>&halves[1], half)
    return _repeat(p, halves, 16, run.count)


cdef uint8_t *_partition(uint8_t *p, const Run *run) noexcept nogil:
    return _repeat(p, &run.partition, 4, run.count)


cdef uint8_t *_offset(uint8_t *p, const Run *run) noexcept nogil:
    cdef int64_t offset
    cdef int64_t i
    for i in range(run.count):
        offset = run.base_offset + i
        p = write_bytes(p, &offset, 8)
    return p


cdef inline uint8_t *_flag(uint8_t *p, const Run *run, int mask) noexcept nogil:
    """A byte for every row: 1 where the batch's attributes have the bit."""
    memset(p, 1 if run.attributes & mask else 0, run.count)
    return p + run.count


cdef uint8_t *_timestamp_type(uint8_t *p, const Run *run) noexcept nogil:
    return _flag(p, run, LOG_APPEND_TIME)


cdef uint8_t *_producer_id(uint8_t *p, const Run *run) noexcept nogil:
    return _repeat(p, &run.producer_id, 8, run.count)


cdef uint8_t *_producer_epoch(uint8_t *p, const Run *run) noexcept nogil:
    return _repeat(p, &run.producer_epoch, 2, run.count)


cdef uint8_t *_sequence(uint8_t *p, const Run *run) noexcept nogil:
    """Sequences count up from the base sequence: 0 follows 2^31-1. -1 if the batch has none."""
    cdef int32_t sequence = -1
    cdef int64_t i
    if run.producer_id < 0 or run.base_sequence < 0:
        return _repeat(p, &sequence, 4, run.count)
    for i in range(run.count):
        sequence = <int32_t>((<uint32_t>run.base_sequence + <uint32_t>i) & <uint32_t>INT32_MAX)
        p = write_bytes(p, &sequence, 4)
    return p


cdef uint8_t *_transactional(uint8_t *p, const Run *run) noexcept nogil:
    return _flag(p, run, TRANSACTIONAL)


cdef uint8_t *_control(uint8_t *p, const Run *run) noexcept nogil:
    return _flag(p, run, CONTROL)


cdef uint8_t *_leader_epoch(uint8_t *p, const Run *run) noexcept nogil:
    return _repeat(p, &run.leader_epoch, 4, run.count)


cdef uint8_t *_transaction_start(uint8_t *p, const Run *run) noexcept nogil:
    return _repeat(p, &run.transaction_start, 8, run.count)


cdef uint8_t *_write_topics(
    uint8_t *p,
    const Rows *parts,
    size_t part_count,
    uint64_t rows,
    const Buf *dictionary,
    uint64_t topics,
) noexcept nogil:
    """LowCardinality: version 1, own keys (bit 9) and index width, keys, indexes."""
    cdef size_t width = _index_width(topics)
    cdef uint64_t word = 1
    cdef const Run *run
    cdef uint32_t topic
    cdef size_t i
    cdef size_t r
    p = write_bytes(p, &word, 8)
    word = (1 << 9) | (0 if width == 1 else 1 if width == 2 else 2)
    p = write_bytes(p, &word, 8)
    p = write_bytes(p, &topics, 8)
    p = _write_buf(p, dictionary)
    p = write_bytes(p, &rows, 8)
    for i in range(part_count):
        for r in range(_run_count(&parts[i])):
            run = &_runs(&parts[i])[r]
            topic = parts[i].topics[run.topic] if parts[i].topics != NULL else run.topic
            if width == 1:
                memset(p, <int>topic, run.count)
                p += run.count
            else:
                p = _repeat(p, &topic, width, run.count)
    return p


cdef uint8_t *_write_headers(uint8_t *p, const Rows *parts, size_t part_count) noexcept nogil:
    """Ends, then all keys, then the null map and all values."""
    cdef uint64_t before = 0
    cdef uint64_t end
    cdef const Columns *c
    cdef size_t i
    cdef int64_t row
    for i in range(part_count):
        c = &parts[i].columns
        if c.header_value_null.len == 0:
            p = _repeat(p, &before, 8, parts[i].count)
            continue
        for row in range(parts[i].count):
            memcpy(&end, c.header_end.data + 8 * row, 8)
            end += before
            p = write_bytes(p, &end, 8)
        before += c.header_value_null.len
    for i in range(part_count):
        p = _write_buf(p, &parts[i].columns.header_key)
    for i in range(part_count):
        p = _write_buf(p, &parts[i].columns.header_value_null)
    for i in range(part_count):
        p = _write_buf(p, &parts[i].columns.header_value)
    return p


cdef size_t block_size(
    const Rows *parts, size_t part_count, int64_t rows, size_t dictionary_bytes, uint64_t topics
) noexcept nogil:
    """Of the block that `write_block` writes. `topics`: strings in the dictionary."""
    cdef size_t size = bh_varuint_size(BLOCK_WIDTH) + bh_varuint_size(<uint64_t>rows) + _heads_size
    cdef const Columns *c
    cdef size_t i
    if rows == 0:
        return size
    size += DICTIONARY_BYTES + dictionary_bytes
    size += <size_t>rows * (_index_width(topics) + FIXED_ROW_BYTES)
    for i in range(part_count):
        c = &parts[i].columns
        size += c.key.len + c.value.len
        size += c.header_key.len + c.header_value_null.len + c.header_value.len
    return size


cdef void write_block(
    uint8_t *p,
    const Rows *parts,
    size_t part_count,
    int64_t rows,
    const Buf *dictionary,
    uint64_t topics,
) noexcept nogil:
    """The Native block with the rows of all parts, in order."""
    cdef size_t i
    p = write_varuint(p, BLOCK_WIDTH)
    p = write_varuint(p, <uint64_t>rows)
    if rows == 0:  # a column without rows is its name and type alone
        for i in range(<size_t>BLOCK_WIDTH):
            p = _write_head(p, <int>i)
        return

    p = _write_head(p, 0)  # topic
    p = _write_topics(p, parts, part_count, <uint64_t>rows, dictionary, topics)
    p = _each_run(_write_head(p, 1), parts, part_count, _topic_id)
    p = _each_run(_write_head(p, 2), parts, part_count, _partition)
    p = _each_run(_write_head(p, 3), parts, part_count, _offset)
    p = _write_head(p, 4)  # timestamp_ms
    for i in range(part_count):
        p = _write_buf(p, &parts[i].columns.timestamp)
    p = _each_run(_write_head(p, 5), parts, part_count, _timestamp_type)
    p = _write_head(p, 6)  # key
    for i in range(part_count):
        p = _write_buf(p, &parts[i].columns.key_null)
    for i in range(part_count):
        p = _write_buf(p, &parts[i].columns.key)
    p = _write_head(p, 7)  # value
    for i in range(part_count):
        p = _write_buf(p, &parts[i].columns.value_null)
    for i in range(part_count):
        p = _write_buf(p, &parts[i].columns.value)
    p = _write_headers(_write_head(p, 8), parts, part_count)
    p = _each_run(_write_head(p, 9), parts, part_count, _producer_id)
    p = _each_run(_write_head(p, 10), parts, part_count, _producer_epoch)
    p = _each_run(_write_head(p, 11), parts, part_count, _sequence)
    p = _each_run(_write_head(p, 12), parts, part_count, _transactional)
    p = _each_run(_write_head(p, 13), parts, part_count, _control)
    p = _each_run(_write_head(p, 14), parts, part_count, _leader_epoch)
    p = _write_head(p, 15)  # append_time
    for i in range(part_count):
        p = _repeat(p, &parts[i].append_time_ms, 8, parts[i].count)
    _each_run(_write_head(p, 16), parts, part_count, _transaction_start)


# --- packing ---


cdef bytes packed(const Rows *rows, uint64_t topics):
    """The packed block of rows that were gathered; `topics`: how many strings theirs are."""
    cdef const Columns *c = &rows.columns
    cdef bint has_headers = c.header_value_null.len > 0
    cdef uint64_t[HEAD_NUMBERS] numbers
    cdef size_t size = 2 + bh_varuint_size(<uint64_t>rows.count) + sizeof(numbers)
    cdef bytes block
    cdef uint8_t *p
    numbers[0] = <uint64_t>rows.append_time_ms
    numbers[1] = block_size(rows, 1, rows.count, c.topics.len, topics)
    numbers[2] = c.runs.len
    numbers[3] = c.topics.len
    numbers[4] = c.key.len
    numbers[5] = c.value.len
    numbers[6] = c.header_key.len
    numbers[7] = c.header_value_null.len
    numbers[8] = c.header_value.len
    size += c.runs.len + c.topics.len + c.timestamp.len + c.key_null.len + c.key.len
    size += c.value_null.len + c.value.len + (c.header_end.len if has_headers else 0)
    size += c.header_key.len + c.header_value_null.len + c.header_value.len
    block = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t *>PyBytes_AS_STRING(block)
    p[0] = 0
    p = write_varuint(p + 1, <uint64_t>rows.count)
    p[0] = FORMAT
    p = write_bytes(p + 1, numbers, sizeof(numbers))
    if size < RELEASE_GIL_BYTES:
        _write_packed(p, c, has_headers)
    else:
        with nogil:
            _write_packed(p, c, has_headers)
    return block


cdef void _write_packed(uint8_t *p, const Columns *c, bint has_headers) noexcept nogil:
    p = _write_buf(p, &c.runs)
    p = _write_buf(p, &c.topics)
    p = _write_buf(p, &c.timestamp)
    p = _write_buf(p, &c.key_null)
    p = _write_buf(p, &c.key)
    p = _write_buf(p, &c.value_null)
    p = _write_buf(p, &c.value)
    if has_headers:
        p = _write_buf(p, &c.header_end)
    p = _write_buf(p, &c.header_key)
    p = _write_buf(p, &c.header_value_null)
    _write_buf(p, &c.header_value)


# --- unpacking ---


cdef inline bint _take(Buf *into, const uint8_t **cursor, const uint8_t *end, uint64_t n):
    if n > <uint64_t>(end - cursor[0]):
        return False
    into.data = <uint8_t *>cursor[0]
    into.len = n
    cursor[0] += n
    return True


cdef bint _read_rows(Rows *rows, const uint8_t *p, const uint8_t *end):
    """Points at the columns of a packed block. False if it is not one."""
    cdef Columns *c = &rows.columns
    cdef uint64_t[HEAD_NUMBERS] numbers
    cdef uint64_t count = 0
    cdef uint64_t in_runs = 0
    cdef const Run *run
    cdef size_t r
    if p == end or p[0] != 0:
        return False
    p += 1
    if not read_varuint(&p, end, &count) or count == 0 or count > <uint64_t>(end - p):
        return False
    if p == end or p[0] != FORMAT or <size_t>(end - p) < 1 + sizeof(numbers):
        return False
    memcpy(numbers, p + 1, sizeof(numbers))
    p += 1 + sizeof(numbers)
    rows.count = <int64_t>count
    rows.append_time_ms = <int64_t>numbers[0]
    if numbers[2] % sizeof(Run):
        return False
    if not (
        _take(&c.runs, &p, end, numbers[2])
        and _take(&c.topics, &p, end, numbers[3])
        and _take(&c.timestamp, &p, end, 8 * count)
        and _take(&c.key_null, &p, end, count)
        and _take(&c.key, &p, end, numbers[4])
        and _take(&c.value_null, &p, end, count)
        and _take(&c.value, &p, end, numbers[5])
        and _take(&c.header_end, &p, end, 8 * count if numbers[7] else 0)
        and _take(&c.header_key, &p, end, numbers[6])
        and _take(&c.header_value_null, &p, end, numbers[7])
        and _take(&c.header_value, &p, end, numbers[8])
        and p == end
    ):
        return False
    for r in range(_run_count(rows)):
        run = &_runs(rows)[r]
        if run.count <= 0 or <uint64_t>run.count > count - in_runs:
            return False
        in_runs += <uint64_t>run.count
    return in_runs == count


cdef list _topic_names(const Buf *topics):
    """The strings of a dictionary, as they are written, each with its length. None if malformed."""
    cdef const uint8_t *p = topics.data
    cdef const uint8_t *end = p + topics.len
    cdef const uint8_t *start
    cdef list names = []
    while p < end:
        start = p
        if not skip_strings(&p, end, 1):
            return None
        names.append(PyBytes_FromStringAndSize(<const char *>start, p - start))
    return names


cdef class _Joined:
    """Packed blocks that are about to be written as one Native block."""

    cdef list blocks
    cdef dict indexes  # bytes of a part's topics -> their indexes, at which the part points
    cdef Rows *parts
    cdef size_t count
    cdef int64_t rows
    cdef dict topics  # string with its length -> index in the dictionary
    cdef Buf dictionary

    def __cinit__(self, list blocks):
        self.blocks = blocks
        self.count = len(blocks)
        self.parts = <Rows *>calloc(self.count, sizeof(Rows))
        if self.parts == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.parts)
        free(self.dictionary.data)

    cdef read(self):
        cdef const uint8_t *p
        cdef Rows *part
        cdef size_t i
        self.topics = {}
        self.indexes = {}
        self._index_of(b"\0")
        for i in range(self.count):
            block = self.blocks[i]
            if not PyBytes_Check(block):
                raise TypeError(f"a block is bytes, not {type(block).__name__}")
            p = <const uint8_t *>PyBytes_AS_STRING(block)
            part = &self.parts[i]
            if not _read_rows(part, p, p + len(<bytes>block)):
                raise BadPackedBlock(f"block {i} of {self.count} is not a packed block")
            self.rows += part.count
            topics = PyBytes_FromStringAndSize(
                <const char *>part.columns.topics.data, part.columns.topics.len
            )
            indexes = self.indexes.get(topics)
            if indexes is None:
                indexes = self.indexes[topics] = self._indexes_of(&part.columns.topics, i)
            if not self._topics_fit(part, len(<bytes>indexes) // 4):
                raise BadPackedBlock(f"block {i} of {self.count} names a topic that it has not")
            part.topics = <const uint32_t *>PyBytes_AS_STRING(indexes)

    cdef bint _topics_fit(self, const Rows *part, size_t topics):
        cdef size_t r
        for r in range(_run_count(part)):
            if _runs(part)[r].topic >= topics:
                return False
        return True

    cdef bytes _indexes_of(self, const Buf *topics, size_t i):
        cdef list names = _topic_names(topics)
        cdef bytes indexes
        cdef uint32_t *to
        if names is None:
            raise BadPackedBlock(f"block {i} of {self.count} has a topic that does not fit into it")
        indexes = PyBytes_FromStringAndSize(NULL, 4 * len(names))
        to = <uint32_t *>PyBytes_AS_STRING(indexes)
        for name in names:
            to[0] = self._index_of(name)
            to += 1
        return indexes

    cdef uint32_t _index_of(self, bytes name) except? 0xFFFFFFFF:
        index = self.topics.get(name)
        if index is None:
            index = self.topics[name] = len(self.topics)
            if not put_bytes(&self.dictionary, PyBytes_AS_STRING(name), len(name)):
                raise MemoryError()
        return index

    cdef size_t size(self):
        return block_size(
            self.parts, self.count, self.rows, self.dictionary.len, len(self.topics)
        )

    cdef write(self, uint8_t *p, size_t size):
        cdef uint64_t topics = len(self.topics)
        if size < RELEASE_GIL_BYTES:
            write_block(p, self.parts, self.count, self.rows, &self.dictionary, topics)
        else:
            with nogil:
                write_block(p, self.parts, self.count, self.rows, &self.dictionary, topics)


cdef _Joined _joined(blocks):
    cdef _Joined joined = _Joined(list(blocks))
    if not joined.count:
        raise ValueError("there are no blocks to join")
    joined.read()
    return joined


def join_packed(blocks):
    """One Native block with the rows of all: see _packed_blocks.pyi."""
    cdef _Joined joined = _joined(blocks)
    cdef size_t size = joined.size()
    cdef bytes block = PyBytes_FromStringAndSize(NULL, size)
    joined.write(<uint8_t *>PyBytes_AS_STRING(block), size)
    return block


def join_packed_into(blocks, room):
    """`join_packed`, into the buffer that `room(size)` returns. Returns the size."""
    cdef _Joined joined = _joined(blocks)
    cdef Py_buffer buffer
    cdef size_t size = joined.size()
    PyObject_GetBuffer(room(size), &buffer, PyBUF_WRITABLE)
    try:
        if <size_t>buffer.len < size:
            raise ValueError(f"{size} bytes do not fit into a buffer of {buffer.len}")
        joined.write(<uint8_t *>buffer.buf, size)
    finally:
        PyBuffer_Release(&buffer)
    return size
