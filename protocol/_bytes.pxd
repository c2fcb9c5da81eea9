"""What the compiled modules share: growable buffers, big-endian numbers, varints.

Everything here is inline C of a few lines. Numbers in a record batch are big-endian; a ClickHouse
Native block is little-endian, as the processors are that these modules compile for.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "a Native block is little-endian, and so is this module"
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
    uint64_t bh_be64(const uint8_t *p) noexcept nogil
    uint32_t bh_be32(const uint8_t *p) noexcept nogil
    uint16_t bh_be16(const uint8_t *p) noexcept nogil
    void bh_put64(uint8_t *p, uint64_t v) noexcept nogil
    void bh_put32(uint8_t *p, uint32_t v) noexcept nogil
    void bh_put16(uint8_t *p, uint16_t v) noexcept nogil
    unsigned int bh_varuint_size(uint64_t v) noexcept nogil
    uint64_t bh_zigzag(int64_t v) noexcept nogil


cdef enum:
    # With less work than this the GIL is kept: to get it back can cost a switch interval (5 ms)
    # when other threads want it.
    RELEASE_GIL_BYTES = 16384


# --- growable buffers: 0 is returned when there is no memory, and then nothing has changed ---


cdef struct Buf:
    uint8_t *data
    size_t len
    size_t cap


cdef inline int grow(Buf *b, size_t extra) noexcept nogil:
    cdef size_t cap = b.cap + (b.cap >> 1)
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


cdef inline int reserve(Buf *b, size_t extra) noexcept nogil:
    """Makes room for `extra` more bytes."""
    return 1 if b.cap - b.len >= extra else grow(b, extra)


cdef inline int put_byte(Buf *b, uint8_t v) noexcept nogil:
    if not reserve(b, 1):
        return 0
    b.data[b.len] = v
    b.len += 1
    return 1


cdef inline int put_int64(Buf *b, int64_t v) noexcept nogil:
    if not reserve(b, 8):
        return 0
    memcpy(b.data + b.len, &v, 8)
    b.len += 8
    return 1


cdef inline int put_bytes(Buf *b, const void *data, size_t n) noexcept nogil:
    if not reserve(b, n):
        return 0
    memcpy(b.data + b.len, data, n)
    b.len += n
    return 1


cdef inline int put_string(Buf *b, const uint8_t *s, size_t n) noexcept nogil:
    """A ClickHouse String: a varint length, then the bytes."""
    cdef uint8_t *p
    if not reserve(b, n + 10):
        return 0
    p = write_varuint(b.data + b.len, n)
    if n:
        memcpy(p, s, n)
    b.len = (p - b.data) + n
    return 1


# --- writing at a place that has room; the place behind what was written is returned ---


cdef inline uint8_t *write_bytes(uint8_t *p, const void *data, size_t n) noexcept nogil:
    if n:
        memcpy(p, data, n)
    return p + n


cdef inline uint8_t *write_varuint(uint8_t *p, uint64_t v) noexcept nogil:
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        p += 1
        v >>= 7
    p[0] = <uint8_t>v
    return p + 1


# --- reading varints: 0 is returned, and the cursor stays, when one is cut or too long ---


cdef inline int _read_varuint(
    const uint8_t **cursor, const uint8_t *end, int last_shift, uint8_t last_max, uint64_t *out
) noexcept nogil:
    """The byte at `last_shift`, the last one that there may be, is `last_max` at most."""
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t value = 0
    cdef uint64_t byte
    cdef int shift = 0
    while True:
        if p == end:
            return 0
        byte = p[0]
        p += 1
        if shift == last_shift and byte > last_max:
            return 0
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    cursor[0] = p
    out[0] = value
    return 1


cdef inline int read_varuint(
    const uint8_t **cursor, const uint8_t *end, uint64_t *out
) noexcept nogil:
    """A varint of at most 10 bytes and 64 bits."""
    return _read_varuint(cursor, end, 63, 0x01, out)


cdef inline int skip_strings(
    const uint8_t **cursor, const uint8_t *end, uint64_t count
) noexcept nogil:
    """Skips ClickHouse Strings: a varint length, then the bytes, each. 0: one of them is cut."""
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t n = 0
    cdef uint64_t i
    if count > <uint64_t>(end - p):
        return 0
    for i in range(count):
        if p < end and p[0] < 0x80:
            n = p[0]
            p += 1
        elif not read_varuint(&p, end, &n):
            return 0
        if n > <uint64_t>(end - p):
            return 0
        p += n
    cursor[0] = p
    return 1


ctypedef fused zigzagged:
    int32_t
    int64_t


cdef inline int read_zigzag(
    const uint8_t **cursor, const uint8_t *end, zigzagged *out
) noexcept nogil:
    """A zigzag varint: of at most 5 bytes and 32 bits, or of at most 10 bytes and 64 bits."""
    cdef uint64_t value = 0
    if zigzagged is int32_t:
        if not _read_varuint(cursor, end, 28, 0x0F, &value):
            return 0
    elif not _read_varuint(cursor, end, 63, 0x01, &value):
        return 0
    out[0] = <zigzagged>((value >> 1) ^ (0 - (value & 1)))
    return 1


cdef inline void point_at(list texts, const uint8_t **starts, size_t *sizes):
    """Where each of these `bytes` objects starts, and its size. The list must outlive that."""
    cdef Py_ssize_t i
    for i in range(len(texts)):
        starts[i] = <const uint8_t *>PyBytes_AS_STRING(texts[i])
        sizes[i] = len(texts[i])
