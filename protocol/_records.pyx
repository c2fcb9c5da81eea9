# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""Record batches to and from ClickHouse Native blocks: the version that the broker runs.

The same functions as `protocol/records.py`, which says what each of them means; the tests hold the
two against each other byte for byte. What is different here is only the cost: records are walked
once, in C, without the GIL, straight from the batch into the columns of the block and straight from
the columns into the batch.

What must hold: the bytes are a stranger's. Every read is checked against the end of what was
received, no allocation is larger than a small multiple of it, whatever a count claims, and a
builder that refused a batch is exactly as it was before.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8String
from libc.stdint cimport (
    INT32_MAX,
    INT64_MAX,
    int8_t,
    int16_t,
    int32_t,
    int64_t,
    uint8_t,
    uint16_t,
    uint32_t,
    uint64_t,
)
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from protocol.errors import (
    CorruptMessage,
    InvalidRecord,
    RecordsWithoutKey,
    UnsupportedForMessageFormat,
)
from protocol.records import COLUMNS, READ_COLUMNS


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "a Native block is little-endian, and so is this module"
    #endif

    /* CRC32C (Castagnoli, reflected polynomial 0x82F63B78): the processor's own instruction where
       there is one, eight tables (slicing-by-8) elsewhere. */
    static uint32_t bh_crc_table[8][256];

    static void bh_crc_init(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0x82F63B78u & (0u - (c & 1u)));
            bh_crc_table[0][i] = c;
        }
        for (int t = 1; t < 8; t++)
            for (uint32_t i = 0; i < 256; i++) {
                uint32_t c = bh_crc_table[t - 1][i];
                bh_crc_table[t][i] = (c >> 8) ^ bh_crc_table[0][c & 0xFF];
            }
    }

    static uint32_t bh_crc_by_table(const uint8_t *p, size_t n) {
        uint32_t c = 0xFFFFFFFFu;
        while (n >= 8) {
            uint32_t a, b;
            memcpy(&a, p, 4);
            memcpy(&b, p + 4, 4);
            a ^= c;
            c = bh_crc_table[7][a & 0xFF] ^ bh_crc_table[6][(a >> 8) & 0xFF] ^
                bh_crc_table[5][(a >> 16) & 0xFF] ^ bh_crc_table[4][a >> 24] ^
                bh_crc_table[3][b & 0xFF] ^ bh_crc_table[2][(b >> 8) & 0xFF] ^
                bh_crc_table[1][(b >> 16) & 0xFF] ^ bh_crc_table[0][b >> 24];
            p += 8;
            n -= 8;
        }
        while (n--) c = (c >> 8) ^ bh_crc_table[0][(c ^ *p++) & 0xFF];
        return ~c;
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    __attribute__((target("sse4.2")))
    static uint32_t bh_crc_by_sse42(const uint8_t *p, size_t n) {
        uint64_t c = 0xFFFFFFFFu;
        while (n >= 8) {
            uint64_t v;
            memcpy(&v, p, 8);
            c = __builtin_ia32_crc32di(c, v);
            p += 8;
            n -= 8;
        }
        uint32_t tail = (uint32_t)c;
        while (n--) tail = __builtin_ia32_crc32qi(tail, *p++);
        return ~tail;
    }
    static int bh_crc_has_hardware(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    #else
    static uint32_t bh_crc_by_sse42(const uint8_t *p, size_t n) { return bh_crc_by_table(p, n); }
    static int bh_crc_has_hardware(void) { return 0; }
    #endif

    static inline uint64_t bh_be64(const uint8_t *p) {
        uint64_t v;
        memcpy(&v, p, 8);
        return __builtin_bswap64(v);
    }
    static inline uint32_t bh_be32(const uint8_t *p) {
        uint32_t v;
        memcpy(&v, p, 4);
        return __builtin_bswap32(v);
    }
    static inline uint16_t bh_be16(const uint8_t *p) {
        uint16_t v;
        memcpy(&v, p, 2);
        return __builtin_bswap16(v);
    }
    static inline void bh_put64(uint8_t *p, uint64_t v) {
        v = __builtin_bswap64(v);
        memcpy(p, &v, 8);
    }
    static inline void bh_put32(uint8_t *p, uint32_t v) {
        v = __builtin_bswap32(v);
        memcpy(p, &v, 4);
    }
    static inline void bh_put16(uint8_t *p, uint16_t v) {
        v = __builtin_bswap16(v);
        memcpy(p, &v, 2);
    }

    /* Bytes that a base-128 varint of v takes: 1 to 10. */
    static inline unsigned bh_varuint_size(uint64_t v) {
        return (unsigned)((63 - __builtin_clzll(v | 1)) / 7 + 1);
    }
    static inline uint64_t bh_zigzag(int64_t v) {
        return ((uint64_t)v << 1) ^ (uint64_t)(v >> 63);
    }
    """
    void bh_crc_init() noexcept nogil
    uint32_t bh_crc_by_table(const uint8_t *p, size_t n) noexcept nogil
    uint32_t bh_crc_by_sse42(const uint8_t *p, size_t n) noexcept nogil
    int bh_crc_has_hardware() noexcept nogil
    uint64_t bh_be64(const uint8_t *p) noexcept nogil
    uint32_t bh_be32(const uint8_t *p) noexcept nogil
    uint16_t bh_be16(const uint8_t *p) noexcept nogil
    void bh_put64(uint8_t *p, uint64_t v) noexcept nogil
    void bh_put32(uint8_t *p, uint32_t v) noexcept nogil
    void bh_put16(uint8_t *p, uint16_t v) noexcept nogil
    unsigned int bh_varuint_size(uint64_t v) noexcept nogil
    uint64_t bh_zigzag(int64_t v) noexcept nogil


cdef enum:
    BATCH_OVERHEAD = 61  # bytes before the first record
    LENGTH_END = 12  # the length field counts from here
    EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21  # the CRC counts from here
    MAX_TIMESTAMP_AT = 35
    INDEXES_TOLD = 1000
    SMALLEST_RECORD = 7  # length, attributes, two deltas, two lengths, header count
    # Below this much work the GIL is kept: taking it back can cost a switch interval (5 ms) when
    # others want it.
    RELEASE_GIL_BYTES = 16384

    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20


cdef bint _hardware_crc
bh_crc_init()
_hardware_crc = bh_crc_has_hardware()


cdef inline uint32_t _crc(const uint8_t *p, size_t n) noexcept nogil:
    return bh_crc_by_sse42(p, n) if _hardware_crc else bh_crc_by_table(p, n)


def crc32c(data, *, bint hardware=True):
    """CRC32C of `data`; by the tables, whatever the processor has, with `hardware=False`."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            if hardware:
                crc = _crc(<const uint8_t *>view.buf, view.len)
            else:
                crc = bh_crc_by_table(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


# --- growable buffers ---


cdef struct Buf:
    uint8_t *data
    size_t len
    size_t cap


cdef int _grow(Buf *b, size_t extra) noexcept nogil:
    cdef size_t cap = b.cap + b.cap // 2
    cdef void *data
    if extra > <size_t>INT64_MAX - b.len:
        return 0
    if cap < b.len + extra:
        cap = b.len + extra
    if cap < 1024:
        cap = 1024
    data = realloc(b.data, cap)
    if data == NULL:
        return 0
    b.data = <uint8_t *>data
    b.cap = cap
    return 1


cdef inline int _reserve(Buf *b, size_t extra) noexcept nogil:
    """Room for `extra` more bytes; 0 when there is no memory, and then nothing changed."""
    return 1 if b.cap - b.len >= extra else _grow(b, extra)


cdef inline uint8_t *_write_varuint(uint8_t *p, uint64_t v) noexcept nogil:
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        p += 1
        v >>= 7
    p[0] = <uint8_t>v
    return p + 1


cdef inline int _put_string(Buf *b, const uint8_t *s, size_t n) noexcept nogil:
    """A ClickHouse String: a varint length, then the bytes."""
    cdef uint8_t *p
    if not _reserve(b, n + 10):
        return 0
    p = _write_varuint(b.data + b.len, n)
    if n:
        memcpy(p, s, n)
    b.len = (p - b.data) + n
    return 1


cdef inline int _put_byte(Buf *b, uint8_t v) noexcept nogil:
    if not _reserve(b, 1):
        return 0
    b.data[b.len] = v
    b.len += 1
    return 1


cdef inline int _put_int64(Buf *b, int64_t v) noexcept nogil:
    if not _reserve(b, 8):
        return 0
    memcpy(b.data + b.len, &v, 8)
    b.len += 8
    return 1


# --- batch headers ---


cdef class BatchHeader:
    """The fixed part of one record batch: see `protocol.records.BatchHeader`."""

    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef readonly int64_t base_offset
    cdef readonly int32_t leader_epoch
    cdef readonly int8_t magic
    cdef readonly uint32_t crc
    cdef readonly int16_t attributes
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly int32_t count

    def __cinit__(
        self,
        Py_ssize_t start,
        Py_ssize_t end,
        int64_t base_offset,
        int32_t leader_epoch,
        int8_t magic,
        uint32_t crc,
        int16_t attributes,
        int32_t last_offset_delta,
        int64_t base_timestamp,
        int64_t max_timestamp,
        int64_t producer_id,
        int16_t producer_epoch,
        int32_t base_sequence,
        int32_t count,
    ):
        self.start = start
        self.end = end
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.magic = magic
        self.crc = crc
        self.attributes = attributes
        self.last_offset_delta = last_offset_delta
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.count = count

    @property
    def codec(self):
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self):
        return 1 if self.attributes & LOG_APPEND_TIME else 0

    @property
    def transactional(self):
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self):
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self):
        if self.base_sequence < 0:
            return -1
        return (
            <uint32_t>self.base_sequence + <uint32_t>self.last_offset_delta
        ) & <uint32_t>INT32_MAX

    def _fields(self):
        return (
            self.start,
            self.end,
            self.base_offset,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        )

    def __eq__(self, other):
        if not isinstance(other, BatchHeader):
            return NotImplemented
        return self._fields() == (<BatchHeader>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"BatchHeader(start={self.start}, end={self.end}, base_offset={self.base_offset}, "
            f"leader_epoch={self.leader_epoch}, magic={self.magic}, crc={self.crc}, "
            f"attributes={self.attributes}, last_offset_delta={self.last_offset_delta}, "
            f"base_timestamp={self.base_timestamp}, max_timestamp={self.max_timestamp}, "
            f"producer_id={self.producer_id}, producer_epoch={self.producer_epoch}, "
            f"base_sequence={self.base_sequence}, count={self.count})"
        )


def parse_headers(records):
    """The headers of concatenated batches: see `protocol.records.parse_headers`."""
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *p
    cdef Py_ssize_t at = 0
    cdef int64_t end
    cdef int64_t length
    cdef int8_t magic
    cdef list headers = []
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t *>view.buf
        while at < view.len:
            p = base + at
            if view.len - at < CRC_AT:
                raise CorruptMessage(
                    f"record batch at byte {at} is cut: {view.len - at} bytes are left"
                )
            magic = <int8_t>p[MAGIC_AT]
            if magic == 0 or magic == 1:
                raise UnsupportedForMessageFormat(
                    f"record batch at byte {at} has message format v{magic}; only v2 is supported"
                )
            if magic != 2:
                raise CorruptMessage(f"record batch at byte {at} has unknown magic {magic}")
            length = <int32_t>bh_be32(p + 8)
            if length < BATCH_OVERHEAD - LENGTH_END:
                raise CorruptMessage(
                    f"record batch at byte {at} is shorter than its header: {length + LENGTH_END}"
                )
            end = at + LENGTH_END + length
            if end > view.len:
                raise CorruptMessage(
                    f"record batch at byte {at} is cut: it says {length + LENGTH_END} bytes, "
                    f"{view.len - at} are left"
                )
            headers.append(
                BatchHeader(
                    at,
                    <Py_ssize_t>end,
                    <int64_t>bh_be64(p),
                    <int32_t>bh_be32(p + EPOCH_AT),
                    magic,
                    bh_be32(p + CRC_AT),
                    <int16_t>bh_be16(p + ATTRIBUTES_AT),
                    <int32_t>bh_be32(p + 23),
                    <int64_t>bh_be64(p + 27),
                    <int64_t>bh_be64(p + MAX_TIMESTAMP_AT),
                    <int64_t>bh_be64(p + 43),
                    <int16_t>bh_be16(p + 51),
                    <int32_t>bh_be32(p + 53),
                    <int32_t>bh_be32(p + 57),
                )
            )
            at = <Py_ssize_t>end
    finally:
        PyBuffer_Release(&view)
    return headers


cdef int _check_place(BatchHeader header, Py_ssize_t size) except -1:
    if header.start < 0 or header.end > size or header.end - header.start < BATCH_OVERHEAD:
        raise ValueError("the header is not one of these records")
    return 0


def check_crc(records, BatchHeader header not None):
    """CorruptMessage unless the batch's CRC is right: see `protocol.records.check_crc`."""
    cdef Py_buffer view
    cdef uint32_t crc
    cdef const uint8_t *p
    cdef size_t n
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        _check_place(header, view.len)
        p = <const uint8_t *>view.buf + header.start + ATTRIBUTES_AT
        n = header.end - header.start - ATTRIBUTES_AT
        if n < RELEASE_GIL_BYTES:
            crc = _crc(p, n)
        else:
            with nogil:
                crc = _crc(p, n)
    finally:
        PyBuffer_Release(&view)
    if crc != header.crc:
        raise CorruptMessage(f"record batch has CRC {header.crc:#010x}, its bytes have {crc:#010x}")


def stamp_batch(
    records,
    BatchHeader header not None,
    int64_t base_offset,
    int32_t leader_epoch,
    log_append_time_ms,
):
    """A copy of the batch as the log keeps it: see `protocol.records.stamp_batch`."""
    cdef Py_buffer view
    cdef uint8_t *p
    cdef size_t n
    cdef bint stamp_time = log_append_time_ms is not None
    cdef int64_t log_append_time = log_append_time_ms if stamp_time else 0
    cdef bytes batch
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        _check_place(header, view.len)
        n = header.end - header.start
        batch = PyBytes_FromStringAndSize(<const char *>view.buf + header.start, n)
    finally:
        PyBuffer_Release(&view)
    p = <uint8_t *>PyBytes_AS_STRING(batch)
    bh_put64(p, <uint64_t>base_offset)
    bh_put32(p + EPOCH_AT, <uint32_t>leader_epoch)
    if stamp_time:
        bh_put16(p + ATTRIBUTES_AT, bh_be16(p + ATTRIBUTES_AT) | LOG_APPEND_TIME)
        bh_put64(p + MAX_TIMESTAMP_AT, <uint64_t>log_append_time)
        bh_put32(p + CRC_AT, _crc(p + ATTRIBUTES_AT, n - ATTRIBUTES_AT))
    return batch


# --- batches to columns ---


cdef struct Run:
    # What all rows of one batch share; spread over the rows only when the block is written.
    int64_t base_offset
    int64_t count
    int64_t producer_id
    uint32_t topic
    int32_t partition
    int32_t leader_epoch
    int32_t base_sequence
    int16_t producer_epoch
    int16_t attributes
    uint8_t topic_id[16]


cdef struct Columns:
    # Buffers in a fixed order, so that a rollback is a loop.
    Buf timestamp
    Buf key_null
    Buf key
    Buf value_null
    Buf value
    Buf header_end  # UInt64 per row: headers up to and with this row
    Buf header_key
    Buf header_value_null
    Buf header_value
    Buf runs
    Buf topics  # the dictionary of the LowCardinality column, as it is written


cdef enum:
    COLUMN_BUFFERS = 11


cdef enum Fault:
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
    BLOCK_CUT
    BLOCK_COLUMNS
    BLOCK_COLUMN
    BLOCK_STRING
    BLOCK_OFFSETS
    BLOCK_ENUM
    BLOCK_ORDER
    RECORD_TOO_LARGE


cdef dict _FAULTS = {
    BAD_VARINT: "a number in it is cut or too long",
    BAD_LENGTH: "its length does not fit into the batch",
    NO_ATTRIBUTES: "it is empty",
    BAD_OFFSET: "its offset delta is not its place in the batch",
    BAD_KEY: "its key does not fit into it",
    BAD_VALUE: "its value does not fit into it",
    BAD_HEADER_COUNT: "its header count does not fit into it",
    BAD_HEADER_KEY: "a header's key is null or does not fit into it",
    BAD_HEADER_VALUE: "a header's value does not fit into it",
    RECORD_TRAILING: "bytes are left over in it",
    BATCH_TRAILING: "bytes are left over after it",
    BLOCK_CUT: "the block is cut",
    BLOCK_STRING: "a string does not fit into the block",
    BLOCK_OFFSETS: "the header offsets do not grow",
    BLOCK_ENUM: "a timestamp_type is neither CreateTime nor LogAppendTime",
    BLOCK_ORDER: "the rows are not in order of offset",
    RECORD_TOO_LARGE: "a row is too large for a record batch",
}


cdef inline int _read_varint(
    const uint8_t **cursor, const uint8_t *end, int32_t *out
) noexcept nogil:
    """A zigzag varint of at most 5 bytes and 32 bits."""
    cdef const uint8_t *p = cursor[0]
    cdef uint32_t value = 0
    cdef uint32_t byte
    cdef int shift = 0
    while True:
        if p == end:
            return 0
        byte = p[0]
        p += 1
        if shift == 28 and byte > 0x0F:
            return 0
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    cursor[0] = p
    out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
    return 1


cdef inline int _read_varlong(
    const uint8_t **cursor, const uint8_t *end, int64_t *out
) noexcept nogil:
    """A zigzag varint of at most 10 bytes and 64 bits."""
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t value = 0
    cdef uint64_t byte
    cdef int shift = 0
    while True:
        if p == end:
            return 0
        byte = p[0]
        p += 1
        if shift == 63 and byte > 0x01:
            return 0
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    cursor[0] = p
    out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
    return 1


cdef Fault _parse_records(
    Columns *c,
    const uint8_t *p,
    const uint8_t *end,
    int64_t count,
    int64_t base_timestamp,
    bint one_timestamp,
    int64_t *record,
) noexcept nogil:
    """Appends `count` records; `record` is the one at fault, and the caller rolls back."""
    cdef const uint8_t *stop
    cdef int32_t n = 0
    cdef int32_t headers = 0
    cdef int64_t delta = 0
    cdef int64_t i
    cdef int64_t h
    if not (
        _reserve(&c.timestamp, count * 8)
        and _reserve(&c.key_null, count)
        and _reserve(&c.value_null, count)
        and _reserve(&c.header_end, count * 8)
    ):
        return NO_MEMORY
    for i in range(count):
        record[0] = i
        if not _read_varint(&p, end, &n):
            return BAD_VARINT
        if n < 0 or n > end - p:
            return BAD_LENGTH
        stop = p + n
        if n == 0:
            return NO_ATTRIBUTES
        p += 1  # a record's attributes mean nothing in v2
        if not _read_varlong(&p, stop, &delta):
            return BAD_VARINT
        if one_timestamp:
            delta = 0
        if not _put_int64(&c.timestamp, <int64_t>(<uint64_t>base_timestamp + <uint64_t>delta)):
            return NO_MEMORY
        if not _read_varint(&p, stop, &n):
            return BAD_VARINT
        if n != i:
            return BAD_OFFSET

        if not _read_varint(&p, stop, &n):
            return BAD_VARINT
        if n < -1 or n > stop - p:
            return BAD_KEY
        if not (_put_byte(&c.key_null, n < 0) and _put_string(&c.key, p, n if n > 0 else 0)):
            return NO_MEMORY
        if n > 0:
            p += n

        if not _read_varint(&p, stop, &n):
            return BAD_VARINT
        if n < -1 or n > stop - p:
            return BAD_VALUE
        if not (_put_byte(&c.value_null, n < 0) and _put_string(&c.value, p, n if n > 0 else 0)):
            return NO_MEMORY
        if n > 0:
            p += n

        if not _read_varint(&p, stop, &headers):
            return BAD_VARINT
        if headers < 0 or headers > stop - p:
            return BAD_HEADER_COUNT
        for h in range(headers):
            if not _read_varint(&p, stop, &n):
                return BAD_VARINT
            if n < 0 or n > stop - p:
                return BAD_HEADER_KEY
            if not _put_string(&c.header_key, p, n):
                return NO_MEMORY
            p += n
            if not _read_varint(&p, stop, &n):
                return BAD_VARINT
            if n < -1 or n > stop - p:
                return BAD_HEADER_VALUE
            if not (
                _put_byte(&c.header_value_null, n < 0)
                and _put_string(&c.header_value, p, n if n > 0 else 0)
            ):
                return NO_MEMORY
            if n > 0:
                p += n
        if not _put_int64(&c.header_end, <int64_t>c.header_value_null.len):
            return NO_MEMORY
        if p != stop:
            return RECORD_TRAILING
    if p != end:
        return BATCH_TRAILING
    return OK


cdef inline bytes _name_and_type(str name, str type_):
    return _length_prefixed(name.encode()) + _length_prefixed(type_.encode())


cdef bytes _length_prefixed(bytes text):
    cdef uint8_t varuint[10]
    cdef uint8_t *end = _write_varuint(varuint, len(text))
    return varuint[: end - varuint] + text


cdef list _COLUMN_HEADS = [_name_and_type(name, type_) for name, type_ in COLUMNS]
cdef list _READ_HEADS = [_name_and_type(name, type_) for name, type_ in READ_COLUMNS]

cdef enum:
    BLOCK_WIDTH = 16
    READ_WIDTH = 12
    # topic_id, partition, offset, timestamp_ms, timestamp_type, the null maps of key and value,
    # header ends, producer_id, producer_epoch, sequence, transactional, control, leader_epoch,
    # append_time
    FIXED_ROW_BYTES = 16 + 4 + 8 + 8 + 1 + 1 + 1 + 8 + 8 + 2 + 4 + 1 + 1 + 4 + 8

assert len(_COLUMN_HEADS) == BLOCK_WIDTH and len(_READ_HEADS) == READ_WIDTH

cdef size_t _column_heads_size = sum(len(head) for head in _COLUMN_HEADS)
cdef const uint8_t *_column_head[BLOCK_WIDTH]
cdef size_t _column_head_size[BLOCK_WIDTH]
cdef const uint8_t *_read_head[READ_WIDTH]
cdef size_t _read_head_size[READ_WIDTH]


cdef void _point_at_heads():
    # The lists above live as long as the module, so their bytes may be pointed at.
    cdef int i
    for i in range(BLOCK_WIDTH):
        _column_head[i] = <const uint8_t *>PyBytes_AS_STRING(_COLUMN_HEADS[i])
        _column_head_size[i] = len(_COLUMN_HEADS[i])
    for i in range(READ_WIDTH):
        _read_head[i] = <const uint8_t *>PyBytes_AS_STRING(_READ_HEADS[i])
        _read_head_size[i] = len(_READ_HEADS[i])


_point_at_heads()


cdef inline uint8_t *_copy(uint8_t *p, const void *data, size_t n) noexcept nogil:
    if n:
        memcpy(p, data, n)
    return p + n


cdef inline uint8_t *_copy_head(uint8_t *p, int column) noexcept nogil:
    return _copy(p, _column_head[column], _column_head_size[column])


cdef inline size_t _index_width(uint64_t keys) noexcept nogil:
    return 1 if keys <= 0x100 else 2 if keys <= 0x10000 else 4


cdef void _write_block(
    uint8_t *p,
    Columns *c,
    int64_t rows,
    uint64_t topics,
    int64_t append_time_ms,
) noexcept nogil:
    cdef Run *runs = <Run *>c.runs.data
    cdef size_t run_count = c.runs.len // sizeof(Run)
    cdef Run *run
    cdef size_t r
    cdef int64_t i
    cdef int64_t offset
    cdef uint32_t sequence
    cdef int32_t no_sequence = -1
    cdef int32_t sequence_out
    cdef int32_t leader_epoch
    cdef uint64_t word
    cdef size_t width = _index_width(topics)

    p = _write_varuint(p, BLOCK_WIDTH)
    p = _write_varuint(p, <uint64_t>rows)
    if rows == 0:  # a column without rows is its name and type alone
        for r in range(<size_t>BLOCK_WIDTH):
            p = _copy_head(p, <int>r)
        return

    p = _copy_head(p, 0)  # topic: version 1, own keys (bit 9) and index width, keys, indexes
    word = 1
    p = _copy(p, &word, 8)
    word = (1 << 9) | (0 if width == 1 else 1 if width == 2 else 2)
    p = _copy(p, &word, 8)
    p = _copy(p, &topics, 8)
    p = _copy(p, c.topics.data, c.topics.len)
    p = _copy(p, &rows, 8)
    for r in range(run_count):
        run = &runs[r]
        if width == 1:
            memset(p, <int>run.topic, run.count)
            p += run.count
        else:
            for i in range(run.count):
                p = _copy(p, &run.topic, width)
    p = _copy_head(p, 1)  # topic_id: two little-endian halves
    for r in range(run_count):
        run = &runs[r]
        for i in range(run.count):
            bh_put64(p, (<uint64_t *>run.topic_id)[0])
            bh_put64(p + 8, (<uint64_t *>run.topic_id)[1])
            p += 16
    p = _copy_head(p, 2)  # partition
    for r in range(run_count):
        run = &runs[r]
        for i in range(run.count):
            p = _copy(p, &run.partition, 4)
    p = _copy_head(p, 3)  # offset
    for r in range(run_count):
        run = &runs[r]
        for i in range(run.count):
            offset = run.base_offset + i
            p = _copy(p, &offset, 8)
    p = _copy_head(p, 4)  # timestamp_ms
    p = _copy(p, c.timestamp.data, c.timestamp.len)
    p = _copy_head(p, 5)  # timestamp_type
    for r in range(run_count):
        run = &runs[r]
        memset(p, 1 if run.attributes & LOG_APPEND_TIME else 0, run.count)
        p += run.count
    p = _copy_head(p, 6)  # key
    p = _copy(p, c.key_null.data, c.key_null.len)
    p = _copy(p, c.key.data, c.key.len)
    p = _copy_head(p, 7)  # value
    p = _copy(p, c.value_null.data, c.value_null.len)
    p = _copy(p, c.value.data, c.value.len)
    p = _copy_head(p, 8)  # headers: ends, then all keys, then the null map and all values
    p = _copy(p, c.header_end.data, c.header_end.len)
    p = _copy(p, c.header_key.data, c.header_key.len)
    p = _copy(p, c.header_value_null.data, c.header_value_null.len)
    p = _copy(p, c.header_value.data, c.header_value.len)
    p = _copy_head(p, 9)  # producer_id
    for r in range(run_count):
        run = &runs[r]
        for i in range(run.count):
            p = _copy(p, &run.producer_id, 8)
    p = _copy_head(p, 10)  # producer_epoch
    for r in range(run_count):
        run = &runs[r]
        for i in range(run.count):
            p = _copy(p, &run.producer_epoch, 2)
    p = _copy_head(p, 11)  # sequence: 0 follows 2^31-1
    for r in range(run_count):
        run = &runs[r]
        if run.producer_id < 0 or run.base_sequence < 0:
            for i in range(run.count):
                p = _copy(p, &no_sequence, 4)
        else:
            sequence = <uint32_t>run.base_sequence
            for i in range(run.count):
                sequence_out = <int32_t>((sequence + <uint32_t>i) & <uint32_t>INT32_MAX)
                p = _copy(p, &sequence_out, 4)
    p = _copy_head(p, 12)  # transactional
    for r in range(run_count):
        run = &runs[r]
        memset(p, 1 if run.attributes & TRANSACTIONAL else 0, run.count)
        p += run.count
    p = _copy_head(p, 13)  # control
    for r in range(run_count):
        run = &runs[r]
        memset(p, 1 if run.attributes & CONTROL else 0, run.count)
        p += run.count
    p = _copy_head(p, 14)  # leader_epoch
    for r in range(run_count):
        run = &runs[r]
        leader_epoch = run.leader_epoch
        for i in range(run.count):
            p = _copy(p, &leader_epoch, 4)
    p = _copy_head(p, 15)  # append_time
    for i in range(rows):
        p = _copy(p, &append_time_ms, 8)


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


cdef class BlockBuilder:
    """Gathers batches into one block for `messages`: see `protocol.records.BlockBuilder`."""

    COLUMNS = COLUMNS

    cdef Columns _columns
    cdef dict _topics  # name -> place in the dictionary of the topic column
    cdef int64_t _rows
    cdef int64_t _append_time_ms
    cdef bint _busy

    def __cinit__(self, int64_t append_time_ms):
        self._append_time_ms = append_time_ms
        self._topics = {"": 0}  # a LowCardinality dictionary opens with the default value
        if not _put_string(&self._columns.topics, NULL, 0):
            raise MemoryError()

    def __dealloc__(self):
        cdef Buf *buffers = <Buf *>&self._columns
        cdef int i
        for i in range(COLUMN_BUFFERS):
            free(buffers[i].data)

    @property
    def rows(self):
        return self._rows

    @property
    def bytes(self):
        return self._size()

    cdef size_t _size(self):
        cdef Columns *c = &self._columns
        cdef size_t size = 1 + bh_varuint_size(<uint64_t>self._rows) + _column_heads_size
        if self._rows == 0:
            return size
        size += 32 + c.topics.len
        size += <size_t>self._rows * (_index_width(len(self._topics)) + FIXED_ROW_BYTES)
        size += c.key.len + c.value.len
        return size + c.header_key.len + c.header_value_null.len + c.header_value.len

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
    ):
        cdef Columns *c = &self._columns
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
        cdef Fault fault = OK
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
            raise InvalidRecord(f"record batch has {count} records")
        if header.last_offset_delta != count - 1:
            raise InvalidRecord(
                f"record batch has {count} records and last offset delta {header.last_offset_delta}"
            )
        if base_offset < 0 or base_offset > INT64_MAX - (count - 1):
            raise ValueError(f"offset {base_offset} of {count} records is out of range")
        if self._busy:
            raise RuntimeError("the block builder is in use by another thread")

        name = PyUnicode_AsUTF8String(topic)
        run.base_offset = base_offset
        run.count = count
        run.producer_id = header.producer_id
        run.partition = partition
        run.leader_epoch = leader_epoch
        run.base_sequence = header.base_sequence
        run.producer_epoch = header.producer_epoch
        memcpy(run.topic_id, PyBytes_AS_STRING(topic_id), 16)
        known = self._topics.get(topic)
        run.topic = len(self._topics) if known is None else known

        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        self._busy = True
        for i in range(COLUMN_BUFFERS):
            before[i] = buffers[i].len
        try:
            if count > view.len // SMALLEST_RECORD:
                raise InvalidRecord(f"record batch claims {count} records in {view.len} bytes")
            p = <const uint8_t *>view.buf
            end = p + view.len
            if view.len < RELEASE_GIL_BYTES:
                fault = _parse_records(c, p, end, count, base_timestamp, one_timestamp, &record)
            else:
                with nogil:
                    fault = _parse_records(c, p, end, count, base_timestamp, one_timestamp, &record)
            if fault == OK and keyed:
                _check_keys(c.key_null.data + c.key_null.len - count, count)
            if fault == OK:
                if not _reserve(&c.runs, sizeof(Run)):
                    fault = NO_MEMORY
                elif known is None:
                    p = <const uint8_t *>PyBytes_AS_STRING(name)
                    if not _put_string(&c.topics, p, len(name)):
                        fault = NO_MEMORY
                    else:
                        self._topics[topic] = run.topic
            if fault == NO_MEMORY:
                raise MemoryError()
            if fault != OK:
                raise InvalidRecord(f"record {record} of {count}: {_FAULTS[fault]}")
            memcpy(c.runs.data + c.runs.len, &run, sizeof(Run))
            c.runs.len += sizeof(Run)
            self._rows += count
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
        cdef Columns *c = &self._columns
        cdef uint64_t topics = len(self._topics)
        cdef int64_t rows = self._rows
        cdef int64_t append_time_ms = self._append_time_ms
        if self._busy:
            raise RuntimeError("the block builder is in use by another thread")
        block = PyBytes_FromStringAndSize(NULL, self._size())
        p = <uint8_t *>PyBytes_AS_STRING(block)
        self._busy = True
        if len(block) < RELEASE_GIL_BYTES:
            _write_block(p, c, rows, topics, append_time_ms)
        else:
            with nogil:
                _write_block(p, c, rows, topics, append_time_ms)
        self._busy = False
        return block


# --- columns to batches ---


cdef class EncodedBatch:
    """One record batch made from rows: see `protocol.records.EncodedBatch`."""

    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp
    cdef readonly bytes data

    def __cinit__(
        self,
        int64_t base_offset,
        int64_t last_offset,
        int64_t max_timestamp,
        bytes data not None,
    ):
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.data = data

    def _fields(self):
        return (self.base_offset, self.last_offset, self.max_timestamp, self.data)

    def __eq__(self, other):
        if not isinstance(other, EncodedBatch):
            return NotImplemented
        return self._fields() == (<EncodedBatch>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"EncodedBatch(base_offset={self.base_offset}, last_offset={self.last_offset}, "
            f"max_timestamp={self.max_timestamp}, data={self.data!r})"
        )


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
    int32_t last_sequence
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


cdef inline int _read_varuint(
    const uint8_t **cursor, const uint8_t *end, uint64_t *out
) noexcept nogil:
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t value = 0
    cdef uint64_t byte
    cdef int shift = 0
    while True:
        if p == end:
            return 0
        byte = p[0]
        p += 1
        if shift == 63 and byte > 0x01:
            return 0
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    cursor[0] = p
    out[0] = value
    return 1


cdef inline int _skip(const uint8_t **cursor, const uint8_t *end, uint64_t n) noexcept nogil:
    if n > <uint64_t>(end - cursor[0]):
        return 0
    cursor[0] += n
    return 1


cdef int _skip_strings(const uint8_t **cursor, const uint8_t *end, uint64_t count) noexcept nogil:
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t i
    cdef uint64_t n = 0
    for i in range(count):
        if p == end:
            return 0
        if p[0] < 0x80:
            n = p[0]
            p += 1
        elif not _read_varuint(&p, end, &n):
            return 0
        if n > <uint64_t>(end - p):
            return 0
        p += n
    cursor[0] = p
    return 1


cdef inline uint64_t _next_length(const uint8_t **cursor) noexcept nogil:
    """The length of a String that `_skip_strings` has already been over."""
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


cdef Fault _locate(
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
    if not (_read_varuint(&p, end, &width) and _read_varuint(&p, end, &rows)):
        return BLOCK_CUT
    if width != READ_WIDTH:
        e.fault_at = width
        return BLOCK_COLUMNS
    # Every row takes more than a byte; and so the products below are small.
    if rows > <uint64_t>(end - p):
        return BLOCK_CUT
    for column in range(READ_WIDTH):
        e.fault_column = column
        e.fault_at = p - base
        head_size = _read_head_size[column]
        if <size_t>(end - p) < head_size or memcmp(p, _read_head[column], head_size) != 0:
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
            if not _skip(&p, end, rows):
                return BLOCK_CUT
            if column == 3:
                c.key = p
            else:
                c.value = p
            if not _skip_strings(&p, end, rows):
                return BLOCK_STRING
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
            if not _skip_strings(&p, end, previous):
                return BLOCK_STRING
            c.header_value_null = p
            if not _skip(&p, end, previous):
                return BLOCK_CUT
            c.header_value = p
            if not _skip_strings(&p, end, previous):
                return BLOCK_STRING
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


cdef int _close_batch(Encoder *e) noexcept nogil:
    cdef Batch *b = &e.open
    cdef uint8_t *p
    if b.count == 0:
        return 1
    if not _reserve(&e.done, sizeof(Batch)):
        return 0
    b.end = e.out.len
    p = e.out.data + b.start
    bh_put64(p, <uint64_t>b.base_offset)
    bh_put32(p + 8, <uint32_t>(b.end - b.start - LENGTH_END))
    bh_put32(p + EPOCH_AT, <uint32_t>b.leader_epoch)
    p[MAGIC_AT] = 2
    bh_put16(p + ATTRIBUTES_AT, <uint16_t>b.attributes)
    bh_put32(p + 23, <uint32_t>(b.last_offset - b.base_offset))
    bh_put64(p + 27, <uint64_t>b.base_timestamp)
    bh_put64(p + MAX_TIMESTAMP_AT, <uint64_t>b.max_timestamp)
    bh_put64(p + 43, <uint64_t>b.producer_id)
    bh_put16(p + 51, <uint16_t>b.producer_epoch)
    bh_put32(p + 53, <uint32_t>b.base_sequence)
    bh_put32(p + 57, <uint32_t>b.count)
    bh_put32(p + CRC_AT, _crc(p + ATTRIBUTES_AT, b.end - b.start - ATTRIBUTES_AT))
    memcpy(e.done.data + e.done.len, b, sizeof(Batch))
    e.done.len += sizeof(Batch)
    b.count = 0
    return 1


cdef inline bint _continues(Batch *b, Batch *row) noexcept nogil:
    """Whether `row` (a batch of one) may join `b`, its size aside."""
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


cdef inline size_t _bytes_size(bint null, uint64_t n) noexcept nogil:
    return 1 if null else bh_varuint_size(n << 1) + n


cdef inline uint8_t *_write_bytes(
    uint8_t *p, bint null, const uint8_t *data, uint64_t n
) noexcept nogil:
    if null:
        p[0] = 1  # -1
        return p + 1
    return _copy(_write_varuint(p, n << 1), data, n)


cdef Fault _encode_rows(Encoder *e, Rows *c, uint64_t rows) noexcept nogil:
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
            headers_size += _bytes_size(False, n)
            n = _next_length(&c.header_value)
            c.header_value += n
            headers_size += _bytes_size(c.header_value_null[h] != 0, n)

        joins = b.count > 0 and _continues(b, &row)
        while True:
            offset_delta = 0
            timestamp_delta = 0
            if joins:
                offset_delta = <uint64_t>row.base_offset - <uint64_t>b.base_offset
                timestamp_delta = <uint64_t>row.base_timestamp - <uint64_t>b.base_timestamp
                timestamp_delta = bh_zigzag(<int64_t>timestamp_delta)
            body = 1 + bh_varuint_size(timestamp_delta) + bh_varuint_size(offset_delta << 1)
            body += _bytes_size(key_null, key_size) + _bytes_size(value_null, value_size)
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
            if not _reserve(&e.out, BATCH_OVERHEAD):
                return NO_MEMORY
            b[0] = row
            b.start = e.out.len
            b.max_timestamp = row.base_timestamp
            e.out.len += BATCH_OVERHEAD
        b.last_offset = row.base_offset
        b.count += 1
        if row.base_timestamp > b.max_timestamp:
            b.max_timestamp = row.base_timestamp

        if not _reserve(&e.out, record_size):
            return NO_MEMORY
        p = _write_varuint(e.out.data + e.out.len, body << 1)
        p[0] = 0
        p = _write_varuint(p + 1, timestamp_delta)
        p = _write_varuint(p, offset_delta << 1)
        p = _write_bytes(p, key_null, key, key_size)
        p = _write_bytes(p, value_null, value, value_size)
        p = _write_varuint(p, headers << 1)
        for h in range(headers):
            n = _next_length(&header_keys)
            p = _write_bytes(p, False, header_keys, n)
            header_keys += n
            n = _next_length(&header_values)
            p = _write_bytes(p, c.header_value_null[h] != 0, header_values, n)
            header_values += n
        c.header_value_null += headers
        e.out.len += record_size
    return OK


cdef Fault _encode(Encoder *e, const uint8_t *base, const uint8_t *end) noexcept nogil:
    cdef const uint8_t *p = base
    cdef Rows columns
    cdef uint64_t rows = 0
    cdef Fault fault
    memset(&columns, 0, sizeof(Rows))
    while p != end:
        fault = _locate(e, &columns, base, &p, end, &rows)
        if fault == OK:
            fault = _encode_rows(e, &columns, rows)
        if fault != OK:
            return fault
    return OK if _close_batch(e) else NO_MEMORY


cdef _raise_block_fault(Fault fault, Encoder *e, bytes block):
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
            f"{block[e.fault_at : e.fault_at + 64]!r}"
        )
    raise ValueError(_FAULTS[fault])


def encode_batches(bytes block not None, int64_t max_batch_bytes):
    """Uncompressed batches from Native blocks of rows: see `protocol.records.encode_batches`."""
    cdef Encoder e
    cdef const uint8_t *base = <const uint8_t *>PyBytes_AS_STRING(block)
    cdef const uint8_t *end = base + len(block)
    cdef Fault fault
    cdef Batch *done
    cdef size_t i
    cdef list batches = []
    memset(&e, 0, sizeof(Encoder))
    if max_batch_bytes < 0:
        max_batch_bytes = 0
    e.max_batch_bytes = <uint64_t>min(max_batch_bytes, <int64_t>INT32_MAX)
    try:
        if len(block) < RELEASE_GIL_BYTES:
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
        free(e.out.data)
        free(e.done.data)
    return batches
