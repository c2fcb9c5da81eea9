# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""Blocks of columns to record batches.

_encode_batches.pyi says what each function means. tests/reference/encode_batches.py is the same in
readable Python; tests compare the two byte for byte. This module reads each row once, in C and
without the GIL, and copies its fields from the columns into a batch.

Formats: ClickHouse's Native (https://clickhouse.com/docs/interfaces/formats/Native) and record
batch v2 (https://kafka.apache.org/documentation/#recordbatch, KIP-98).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cython.dataclasses cimport dataclass
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from brokerhouse.protocol._batches cimport (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    BATCH_OVERHEAD,
    CONTROL,
    COUNT_AT,
    CRC_AT,
    EPOCH_AT,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
    crc_of,
)
from brokerhouse.protocol._bytes cimport (
    RELEASE_GIL_BYTES,
    Buf,
    bh_put16,
    bh_put32,
    bh_put64,
    bh_varuint_size,
    bh_zigzag,
    point_at,
    read_varuint,
    reserve,
    skip_strings,
    write_bytes,
    write_varuint,
)

from brokerhouse.protocol.columns import READ_COLUMNS, column_head


cdef enum BlockFault:
    OK
    NO_MEMORY
    BLOCK_CUT
    BLOCK_COLUMNS
    BLOCK_COLUMN
    BLOCK_STRING
    BLOCK_OFFSETS
    BLOCK_ENUM
    BLOCK_ORDER
    RECORD_TOO_LARGE


cdef dict _FAULTS = {
    BLOCK_CUT: "the block is cut",
    BLOCK_STRING: "a string does not fit into the block",
    BLOCK_OFFSETS: "the header offsets do not grow",
    BLOCK_ENUM: "a timestamp_type is neither CreateTime nor LogAppendTime",
    BLOCK_ORDER: "the rows are not in order of offset",
    RECORD_TOO_LARGE: "a row is too large for a record batch",
}


cdef enum:
    READ_WIDTH = 12  # columns

cdef list _HEADS = [column_head(*column) for column in READ_COLUMNS]
assert len(_HEADS) == READ_WIDTH
cdef const uint8_t *_head[READ_WIDTH]
cdef size_t _head_size[READ_WIDTH]
# The list lives as long as the module, so its bytes may be pointed at.
point_at(_HEADS, _head, _head_size)


cdef struct Rows:
    # Where each column of one block starts. Strings are walked, so theirs move on with the rows.
    const uint8_t *offset
    const uint8_t *timestamp
    const uint8_t *timestamp_type
    const uint8_t *key_null
    const uint8_t *key
    const uint8_t *value_null
    const uint8_t *value
    const uint8_t *header_end
    const uint8_t *header_key
    const uint8_t *header_value_null
    const uint8_t *header_value
    const uint8_t *producer_id
    const uint8_t *producer_epoch
    const uint8_t *sequence
    const uint8_t *transactional
    const uint8_t *control
    const uint8_t *leader_epoch


cdef struct Batch:
    size_t start
    size_t end
    int64_t base_offset
    int64_t last_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t base_sequence
    int32_t leader_epoch
    int32_t count
    int16_t producer_epoch
    int16_t attributes


cdef struct Encoder:
    Buf out
    Buf done  # array of Batch
    Batch open  # the batch being written; none while its count is 0
    bint any_row
    int64_t last_offset
    uint64_t max_batch_bytes
    size_t fault_at
    int fault_column


# --- finding the columns of a block ---


cdef inline int _skip(const uint8_t **cursor, const uint8_t *end, uint64_t n) noexcept nogil:
    if n > <uint64_t>(end - cursor[0]):
        return 0
    cursor[0] += n
    return 1


cdef inline BlockFault _skip_nullable(
    const uint8_t **cursor, const uint8_t *end, uint64_t count, const uint8_t **strings
) noexcept nogil:
    """Skips a Nullable(String): a byte for each row, then the strings, which begin at `strings`."""
    if not _skip(cursor, end, count):
        return BLOCK_CUT
    strings[0] = cursor[0]
    return OK if skip_strings(cursor, end, count) else BLOCK_STRING


cdef inline uint64_t _next_length(const uint8_t **cursor) noexcept nogil:
    """The length of a String that `skip_strings` has already checked."""
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t value = p[0]
    cdef int shift = 7
    p += 1
    if value >= 0x80:
        value &= 0x7F
        while p[0] >= 0x80:
            value |= (<uint64_t>(p[0] & 0x7F)) << shift
            shift += 7
            p += 1
        value |= (<uint64_t>p[0]) << shift
        p += 1
    cursor[0] = p
    return value


cdef BlockFault _locate(
    Encoder *e,
    Rows *c,
    const uint8_t *base,
    const uint8_t **cursor,
    const uint8_t *end,
    uint64_t *rows_out,
) noexcept nogil:
    """Checks one block's shape and finds its columns; after it every string is known to fit."""
    cdef const uint8_t *p = cursor[0]
    cdef const uint8_t *begin[READ_WIDTH]
    cdef uint64_t width = 0
    cdef uint64_t rows = 0
    cdef uint64_t total
    cdef uint64_t previous
    cdef uint64_t i
    cdef size_t head_size
    cdef int column
    cdef BlockFault fault
    if not (read_varuint(&p, end, &width) and read_varuint(&p, end, &rows)):
        return BLOCK_CUT
    if width != READ_WIDTH:
        e.fault_at = width
        return BLOCK_COLUMNS
    # Every row takes more than one byte, so the products below stay small.
    if rows > <uint64_t>(end - p):
        return BLOCK_CUT
    for column in range(READ_WIDTH):
        e.fault_column = column
        e.fault_at = p - base
        head_size = _head_size[column]
        if <size_t>(end - p) < head_size or memcmp(p, _head[column], head_size) != 0:
            return BLOCK_COLUMN
        p += head_size
        begin[column] = p
        if rows == 0:
            continue
        if column == 0 or column == 1 or column == 6:  # offset, timestamp_ms, producer_id
            if not _skip(&p, end, rows * 8):
                return BLOCK_CUT
        elif column == 2 or column == 9 or column == 10:  # timestamp_type, transactional, control
            if not _skip(&p, end, rows):
                return BLOCK_CUT
        elif column == 3 or column == 4:  # key, value
            fault = _skip_nullable(&p, end, rows, &c.key if column == 3 else &c.value)
            if fault != OK:
                return fault
        elif column == 5:  # headers
            if not _skip(&p, end, rows * 8):
                return BLOCK_CUT
            previous = 0
            for i in range(rows):
                memcpy(&total, begin[5] + i * 8, 8)
                if total < previous:
                    return BLOCK_OFFSETS
                previous = total
            if previous > <uint64_t>(end - p):
                return BLOCK_CUT
            c.header_key = p
            if not skip_strings(&p, end, previous):
                return BLOCK_STRING
            c.header_value_null = p
            fault = _skip_nullable(&p, end, previous, &c.header_value)
            if fault != OK:
                return fault
        elif column == 7:  # producer_epoch
            if not _skip(&p, end, rows * 2):
                return BLOCK_CUT
        else:  # sequence, leader_epoch
            if not _skip(&p, end, rows * 4):
                return BLOCK_CUT
    c.offset = begin[0]
    c.timestamp = begin[1]
    c.timestamp_type = begin[2]
    c.key_null = begin[3]
    c.value_null = begin[4]
    c.header_end = begin[5]
    c.producer_id = begin[6]
    c.producer_epoch = begin[7]
    c.sequence = begin[8]
    c.transactional = begin[9]
    c.control = begin[10]
    c.leader_epoch = begin[11]
    rows_out[0] = rows
    cursor[0] = p
    return OK


# --- writing batches ---


cdef int _close_batch(Encoder *e) noexcept nogil:
    cdef Batch *b = &e.open
    cdef uint8_t *p
    if b.count == 0:
        return 1
    if not reserve(&e.done, sizeof(Batch)):
        return 0
    b.end = e.out.len
    p = e.out.data + b.start
    bh_put64(p, <uint64_t>b.base_offset)
    bh_put32(p + LENGTH_AT, <uint32_t>(b.end - b.start - LENGTH_END))
    bh_put32(p + EPOCH_AT, <uint32_t>b.leader_epoch)
    p[MAGIC_AT] = 2
    bh_put16(p + ATTRIBUTES_AT, <uint16_t>b.attributes)
    bh_put32(p + LAST_OFFSET_DELTA_AT, <uint32_t>(b.last_offset - b.base_offset))
    bh_put64(p + BASE_TIMESTAMP_AT, <uint64_t>b.base_timestamp)
    bh_put64(p + MAX_TIMESTAMP_AT, <uint64_t>b.max_timestamp)
    bh_put64(p + PRODUCER_ID_AT, <uint64_t>b.producer_id)
    bh_put16(p + PRODUCER_EPOCH_AT, <uint16_t>b.producer_epoch)
    bh_put32(p + BASE_SEQUENCE_AT, <uint32_t>b.base_sequence)
    bh_put32(p + COUNT_AT, <uint32_t>b.count)
    bh_put32(p + CRC_AT, crc_of(p + ATTRIBUTES_AT, b.end - b.start - ATTRIBUTES_AT))
    memcpy(e.done.data + e.done.len, b, sizeof(Batch))
    e.done.len += sizeof(Batch)
    b.count = 0
    return 1


cdef inline bint _continues(Batch *b, Batch *row) noexcept nogil:
    """Whether `row` (a batch of one) may be added to `b`. The size is checked elsewhere."""
    if (
        b.producer_id != row.producer_id
        or b.producer_epoch != row.producer_epoch
        or b.leader_epoch != row.leader_epoch
        or b.attributes != row.attributes
        or b.attributes & CONTROL
        or <uint64_t>row.base_offset - <uint64_t>b.base_offset > INT32_MAX
        or b.count == INT32_MAX
    ):
        return False
    if b.attributes & LOG_APPEND_TIME and b.base_timestamp != row.base_timestamp:
        return False
    if b.producer_id >= 0:
        if b.base_sequence < 0 or row.base_sequence < 0:
            return b.base_sequence < 0 and row.base_sequence < 0
        return (
            <int64_t>row.base_sequence - b.base_sequence
            == <int64_t>(<uint64_t>row.base_offset - <uint64_t>b.base_offset)
        )
    return True


cdef inline size_t _nullable_size(bint null, uint64_t n) noexcept nogil:
    return 1 if null else bh_varuint_size(n << 1) + n


cdef inline uint8_t *_write_nullable(
    uint8_t *p, bint null, const uint8_t *data, uint64_t n
) noexcept nogil:
    if null:
        p[0] = 1  # -1
        return p + 1
    return write_bytes(write_varuint(p, n << 1), data, n)


cdef BlockFault _encode_rows(Encoder *e, Rows *c, uint64_t rows) noexcept nogil:
    cdef Batch *b = &e.open
    cdef Batch row
    cdef uint64_t i
    cdef uint64_t h
    cdef uint64_t n
    cdef uint64_t key_size
    cdef uint64_t value_size
    cdef uint64_t header_end = 0
    cdef uint64_t header_begin
    cdef uint64_t headers
    cdef uint64_t headers_size
    cdef uint64_t body
    cdef uint64_t timestamp_delta
    cdef uint64_t offset_delta
    cdef size_t record_size
    cdef bint key_null
    cdef bint value_null
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef const uint8_t *header_keys
    cdef const uint8_t *header_values
    cdef uint8_t *p
    cdef bint joins
    memset(&row, 0, sizeof(Batch))
    for i in range(rows):
        memcpy(&row.base_offset, c.offset + i * 8, 8)
        memcpy(&row.base_timestamp, c.timestamp + i * 8, 8)
        memcpy(&row.producer_id, c.producer_id + i * 8, 8)
        memcpy(&row.producer_epoch, c.producer_epoch + i * 2, 2)
        memcpy(&row.base_sequence, c.sequence + i * 4, 4)
        memcpy(&row.leader_epoch, c.leader_epoch + i * 4, 4)
        if c.timestamp_type[i] > 1:
            return BLOCK_ENUM
        row.attributes = (
            (LOG_APPEND_TIME if c.timestamp_type[i] else 0)
            | (TRANSACTIONAL if c.transactional[i] else 0)
            | (CONTROL if c.control[i] else 0)
        )
        if e.any_row and row.base_offset <= e.last_offset:
            return BLOCK_ORDER
        e.any_row = True
        e.last_offset = row.base_offset

        key_null = c.key_null[i] != 0
        key_size = _next_length(&c.key)
        key = c.key
        c.key += key_size
        value_null = c.value_null[i] != 0
        value_size = _next_length(&c.value)
        value = c.value
        c.value += value_size
        header_begin = header_end
        memcpy(&header_end, c.header_end + i * 8, 8)
        headers = header_end - header_begin
        headers_size = bh_varuint_size(headers << 1)
        header_keys = c.header_key
        header_values = c.header_value
        for h in range(headers):
            n = _next_length(&c.header_key)
            c.header_key += n
            headers_size += _nullable_size(False, n)
            n = _next_length(&c.header_value)
            c.header_value += n
            headers_size += _nullable_size(c.header_value_null[h] != 0, n)

        joins = b.count > 0 and _continues(b, &row)
        while True:
            offset_delta = 0
            timestamp_delta = 0
            if joins:
                offset_delta = <uint64_t>row.base_offset - <uint64_t>b.base_offset
                timestamp_delta = <uint64_t>row.base_timestamp - <uint64_t>b.base_timestamp
                timestamp_delta = bh_zigzag(<int64_t>timestamp_delta)
            body = 1 + bh_varuint_size(timestamp_delta) + bh_varuint_size(offset_delta << 1)
            body += _nullable_size(key_null, key_size) + _nullable_size(value_null, value_size)
            body += headers_size
            record_size = bh_varuint_size(body << 1) + body
            if not joins or e.out.len - b.start + record_size <= e.max_batch_bytes:
                break
            joins = False
        if not joins:
            if not _close_batch(e):
                return NO_MEMORY
            if record_size > INT32_MAX - BATCH_OVERHEAD:
                return RECORD_TOO_LARGE
            if not reserve(&e.out, BATCH_OVERHEAD):
                return NO_MEMORY
            b[0] = row
            b.start = e.out.len
            b.max_timestamp = row.base_timestamp
            e.out.len += BATCH_OVERHEAD
        b.last_offset = row.base_offset
        b.count += 1
        if row.base_timestamp > b.max_timestamp:
            b.max_timestamp = row.base_timestamp

        if not reserve(&e.out, record_size):
            return NO_MEMORY
        p = write_varuint(e.out.data + e.out.len, body << 1)
        p[0] = 0
        p = write_varuint(p + 1, timestamp_delta)
        p = write_varuint(p, offset_delta << 1)
        p = _write_nullable(p, key_null, key, key_size)
        p = _write_nullable(p, value_null, value, value_size)
        p = write_varuint(p, headers << 1)
        for h in range(headers):
            n = _next_length(&header_keys)
            p = _write_nullable(p, False, header_keys, n)
            header_keys += n
            n = _next_length(&header_values)
            p = _write_nullable(p, c.header_value_null[h] != 0, header_values, n)
            header_values += n
        c.header_value_null += headers
        e.out.len += record_size
    return OK


cdef BlockFault _encode(Encoder *e, const uint8_t *base, const uint8_t *end) noexcept nogil:
    cdef const uint8_t *p = base
    cdef Rows columns
    cdef uint64_t rows = 0
    cdef BlockFault fault
    memset(&columns, 0, sizeof(Rows))
    while p != end:
        fault = _locate(e, &columns, base, &p, end, &rows)
        if fault == OK:
            fault = _encode_rows(e, &columns, rows)
        if fault != OK:
            return fault
    return OK if _close_batch(e) else NO_MEMORY


# --- what Python sees ---


@dataclass(frozen=True)
cdef class EncodedBatch:
    """One record batch made from rows: see _encode_batches.pyi."""

    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp
    cdef readonly bytes data


cdef _raise_block_fault(BlockFault fault, Encoder *e, block):
    cdef str name
    cdef str type_
    if fault == NO_MEMORY:
        raise MemoryError()
    if fault == BLOCK_COLUMNS:
        raise ValueError(f"the block has {e.fault_at} columns, expected {READ_WIDTH}")
    if fault == BLOCK_COLUMN:
        name, type_ = READ_COLUMNS[e.fault_column]
        raise ValueError(
            f"column {e.fault_column} of the block is not `{name}` {type_}: "
            f"{bytes(block[e.fault_at : e.fault_at + 64])!r}"
        )
    raise ValueError(_FAULTS[fault])


def encode_batches(block not None, int64_t max_batch_bytes):
    """Uncompressed batches from Native blocks of rows: see _encode_batches.pyi."""
    cdef Encoder e
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *end
    cdef BlockFault fault
    cdef Batch *done
    cdef size_t i
    cdef list batches = []
    memset(&e, 0, sizeof(Encoder))
    if max_batch_bytes < 0:
        max_batch_bytes = 0
    e.max_batch_bytes = <uint64_t>min(max_batch_bytes, <int64_t>INT32_MAX)
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        end = base + view.len
        # A record is seldom larger than its row.
        if not reserve(&e.out, view.len + BATCH_OVERHEAD):
            raise MemoryError()
        if view.len < RELEASE_GIL_BYTES:
            fault = _encode(&e, base, end)
        else:
            with nogil:
                fault = _encode(&e, base, end)
        if fault != OK:
            _raise_block_fault(fault, &e, block)
        done = <Batch *>e.done.data
        for i in range(e.done.len // sizeof(Batch)):
            batches.append(
                EncodedBatch(
                    done[i].base_offset,
                    done[i].last_offset,
                    done[i].max_timestamp,
                    PyBytes_FromStringAndSize(
                        <const char *>e.out.data + done[i].start, done[i].end - done[i].start
                    ),
                )
            )
    finally:
        PyBuffer_Release(&view)
        free(e.out.data)
        free(e.done.data)
    return batches
