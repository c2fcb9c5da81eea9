# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""The headers of record batches and their CRC.

_batches.pyi says what each function means. tests/reference/batches.py is the same in readable
Python; tests compare the two byte for byte.

What must hold: the input is untrusted. Every read is checked against the end of what was received.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.dataclasses cimport dataclass
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from brokerhouse.protocol._bytes cimport (
    RELEASE_GIL_BYTES,
    bh_be16,
    bh_be32,
    bh_be64,
    bh_put16,
    bh_put32,
    bh_put64,
)

from brokerhouse.protocol.errors import CorruptMessage, UnsupportedForMessageFormat


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    /* CRC32C (Castagnoli, reflected polynomial 0x82F63B78): by the processor's own instruction if
       it has one, else by eight tables (slicing-by-8). */
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

    /* The checksum's register after BH_CRC_RUN more bytes of zero, by the four bytes of it. */
    #define BH_CRC_RUN 512
    static uint32_t bh_crc_zeros[4][256];

    static void bh_crc_init_zeros(void) {
        for (int byte = 0; byte < 4; byte++)
            for (uint32_t v = 1; v < 256; v++) {
                uint32_t c = v << (8 * byte);
                if (v & (v - 1))  /* two bits or more: the sum of what each of them gives */
                    c = bh_crc_zeros[byte][v & (v - 1)] ^ bh_crc_zeros[byte][v & -v];
                else
                    for (int i = 0; i < BH_CRC_RUN; i++) c = (c >> 8) ^ bh_crc_table[0][c & 0xFF];
                bh_crc_zeros[byte][v] = c;
            }
    }
    static inline uint32_t bh_crc_skip_run(uint32_t c) {
        return bh_crc_zeros[0][c & 0xFF] ^ bh_crc_zeros[1][(c >> 8) & 0xFF] ^
            bh_crc_zeros[2][(c >> 16) & 0xFF] ^ bh_crc_zeros[3][c >> 24];
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    /* The instruction takes three cycles, and one can begin in each: so three runs at a time. */
    __attribute__((target("sse4.2")))
    static uint32_t bh_crc_by_sse42(const uint8_t *p, size_t n) {
        uint64_t c = 0xFFFFFFFFu;
        while (n >= 3 * BH_CRC_RUN) {
            uint64_t c1 = 0, c2 = 0, v, v1, v2;
            for (size_t i = 0; i < BH_CRC_RUN; i += 8) {
                memcpy(&v, p + i, 8);
                memcpy(&v1, p + BH_CRC_RUN + i, 8);
                memcpy(&v2, p + 2 * BH_CRC_RUN + i, 8);
                c = __builtin_ia32_crc32di(c, v);
                c1 = __builtin_ia32_crc32di(c1, v1);
                c2 = __builtin_ia32_crc32di(c2, v2);
            }
            c = bh_crc_skip_run((uint32_t)c) ^ (uint32_t)c1;
            c = bh_crc_skip_run((uint32_t)c) ^ (uint32_t)c2;
            p += 3 * BH_CRC_RUN;
            n -= 3 * BH_CRC_RUN;
        }
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
    """
    void bh_crc_init() noexcept nogil
    void bh_crc_init_zeros() noexcept nogil
    uint32_t bh_crc_by_table(const uint8_t *p, size_t n) noexcept nogil
    uint32_t bh_crc_by_sse42(const uint8_t *p, size_t n) noexcept nogil
    int bh_crc_has_hardware() noexcept nogil


cdef bint _hardware_crc
bh_crc_init()
bh_crc_init_zeros()
_hardware_crc = bh_crc_has_hardware()


cdef uint32_t crc_of(const uint8_t *p, size_t n) noexcept nogil:
    return bh_crc_by_sse42(p, n) if _hardware_crc else bh_crc_by_table(p, n)


def crc32c(data, *, bint hardware=True):
    """CRC32C of `data`. `hardware=False`: by the tables, even if the processor can do it."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            if hardware:
                crc = crc_of(<const uint8_t *>view.buf, view.len)
            else:
                crc = bh_crc_by_table(<const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


@dataclass(frozen=True)
cdef class BatchHeader:
    """The fixed part of one record batch: see _batches.pyi."""

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


def parse_headers(records, Py_ssize_t start=0, end=None):
    """The headers of concatenated batches: see _batches.pyi."""
    cdef Py_buffer view
    cdef const uint8_t *p
    cdef Py_ssize_t at = start
    cdef Py_ssize_t stop
    cdef int64_t length
    cdef int8_t magic
    cdef list headers = []
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        stop = view.len if end is None else end
        if start < 0 or stop > view.len:
            raise ValueError("the batches are not within the records")
        while at < stop:
            p = <const uint8_t *>view.buf + at
            if stop - at < CRC_AT:
                raise CorruptMessage(
                    f"The record batch at byte {at - start} is cut: {stop - at} bytes are left."
                )
            magic = <int8_t>p[MAGIC_AT]
            if magic == 0 or magic == 1:
                raise UnsupportedForMessageFormat(
                    f"The record batch at byte {at - start} has message format v{magic}."
                    " Only v2 is supported."
                )
            if magic != 2:
                raise CorruptMessage(
                    f"The record batch at byte {at - start} has message format v{magic}, which"
                    " does not exist."
                )
            length = <int32_t>bh_be32(p + LENGTH_AT) + <int64_t>LENGTH_END
            if length < BATCH_OVERHEAD:
                raise CorruptMessage(
                    f"The record batch at byte {at - start} claims {length} bytes. Its header alone"
                    f" has {BATCH_OVERHEAD}."
                )
            if length > stop - at:
                raise CorruptMessage(
                    f"The record batch at byte {at - start} is cut: it has {length} bytes, "
                    f"{stop - at} are left."
                )
            headers.append(_header_at(p, at, at + <Py_ssize_t>length))
            at += <Py_ssize_t>length
    finally:
        PyBuffer_Release(&view)
    return headers


cdef BatchHeader _header_at(const uint8_t *p, Py_ssize_t start, Py_ssize_t end):
    """The header that begins at `p`. Its constructor would take five times as long."""
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    header.start = start
    header.end = end
    header.base_offset = <int64_t>bh_be64(p)
    header.leader_epoch = <int32_t>bh_be32(p + EPOCH_AT)
    header.magic = <int8_t>p[MAGIC_AT]
    header.crc = bh_be32(p + CRC_AT)
    header.attributes = <int16_t>bh_be16(p + ATTRIBUTES_AT)
    header.last_offset_delta = <int32_t>bh_be32(p + LAST_OFFSET_DELTA_AT)
    header.base_timestamp = <int64_t>bh_be64(p + BASE_TIMESTAMP_AT)
    header.max_timestamp = <int64_t>bh_be64(p + MAX_TIMESTAMP_AT)
    header.producer_id = <int64_t>bh_be64(p + PRODUCER_ID_AT)
    header.producer_epoch = <int16_t>bh_be16(p + PRODUCER_EPOCH_AT)
    header.base_sequence = <int32_t>bh_be32(p + BASE_SEQUENCE_AT)
    header.count = <int32_t>bh_be32(p + COUNT_AT)
    return header


cdef int _check_bounds(BatchHeader header, Py_ssize_t size) except -1:
    if header.start < 0 or header.end > size or header.end - header.start < BATCH_OVERHEAD:
        raise ValueError("the header does not belong to these records")
    return 0


def check_crc(records, BatchHeader header not None):
    """CorruptMessage unless the batch's CRC is right: see _batches.pyi."""
    cdef Py_buffer view
    cdef uint32_t crc
    cdef const uint8_t *p
    cdef size_t n
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        _check_bounds(header, view.len)
        p = <const uint8_t *>view.buf + header.start + ATTRIBUTES_AT
        n = header.end - header.start - ATTRIBUTES_AT
        if n < RELEASE_GIL_BYTES:
            crc = crc_of(p, n)
        else:
            with nogil:
                crc = crc_of(p, n)
    finally:
        PyBuffer_Release(&view)
    if crc != header.crc:
        raise CorruptMessage(
            f"The record batch is damaged: its CRC is {header.crc:#010x}, but its bytes have"
            f" {crc:#010x}."
        )


def stamp_batch(
    records,
    BatchHeader header not None,
    int64_t base_offset,
    int32_t leader_epoch,
    log_append_time_ms,
):
    """A copy of the batch as the log keeps it: see _batches.pyi."""
    cdef Py_buffer view
    cdef uint8_t *p
    cdef size_t n
    cdef bint stamp_time = log_append_time_ms is not None
    cdef int64_t log_append_time = log_append_time_ms if stamp_time else 0
    cdef bytes batch
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        _check_bounds(header, view.len)
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
        bh_put32(p + CRC_AT, crc_of(p + ATTRIBUTES_AT, n - ATTRIBUTES_AT))
    return batch
