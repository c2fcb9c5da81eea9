"""What `_decode_batches.pyx` and `_encode_batches.pyx` use of `_batches.pyx`."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t


cdef enum:
    # Where the fields of a batch's header stand.
    LENGTH_AT = 8
    LENGTH_END = 12  # the length counts from here
    EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21  # the CRC counts from here
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    COUNT_AT = 57
    BATCH_OVERHEAD = 61  # bytes before the first record

    # Bits of its attributes.
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20


cdef class BatchHeader:
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


cdef uint32_t crc_of(const uint8_t *p, size_t n) noexcept nogil
