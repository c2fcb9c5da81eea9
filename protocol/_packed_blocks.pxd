"""What `_decode_batches.pyx` uses of `_packed_blocks.pyx`: the rows of a block, and writing them."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from brokerhouse.protocol._bytes cimport Buf


cdef packed struct Run:
    # What all rows of one batch share. It is repeated for every row only when a block is written.
    # These are the bytes that a packed block has: changing them changes its format. In the middle of
    # a block they are at no multiple of 8, so the compiler must not count on that.
    int64_t base_offset
    int64_t count
    int64_t producer_id
    int64_t transaction_start
    uint32_t topic  # index in the topics of its rows
    int32_t partition
    int32_t leader_epoch
    int32_t base_sequence
    int16_t producer_epoch
    int16_t attributes
    uint32_t unused  # 0
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


cdef struct Rows:
    # Rows that follow each other in a block, with the same time.
    Columns columns
    int64_t count
    int64_t append_time_ms
    const uint32_t *topics  # the index in the block's dictionary of each of their topics


cdef size_t block_size(
    const Rows *parts, size_t part_count, int64_t rows, size_t dictionary_bytes, uint64_t topics
) noexcept nogil

cdef void write_block(
    uint8_t *p,
    const Rows *parts,
    size_t part_count,
    int64_t rows,
    const Buf *dictionary,
    uint64_t topics,
) noexcept nogil

cdef bytes packed(const Rows *rows, uint64_t topics)
