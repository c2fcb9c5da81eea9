# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""Many small Native blocks as one.

ClickHouse spends 110 to 125 us on each block of an INSERT, however small (measured): 4,000 blocks
of 15 rows cost 0.45 s of CPU, their 60,000 rows in one block 0.036 s.

_merge_blocks.pyi says what each function means. tests/reference/merge_blocks.py is the same in
readable Python; tests compare the two byte for byte. This module turns the types of a table's
columns into a flat list of streams: values of one kind that follow each other. It finds the slice
of each stream in each block, and then copies slice after slice to the end of its stream in the
merged block.

What must hold: the input is untrusted. Every read is checked against the end of the block. Memory
and time grow with the bytes received, never with what a count claims. Values are copied and never
decoded. Only the ends of arrays, which count from the start of a block, and the keys and indexes of
LowCardinality change.

Format: https://clickhouse.com/docs/interfaces/formats/Native, as a server writes and reads it
without client revision: the number of columns and of rows, then each column: its name, its type,
and its values if there are rows.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from brokerhouse.protocol._bytes cimport (
    RELEASE_GIL_BYTES,
    Buf,
    bh_varuint_size,
    put_bytes,
    put_int64,
    put_string,
    read_varuint,
    reserve,
    skip_strings,
    write_bytes,
    write_varuint,
)

from brokerhouse.storage import native_types as native
from brokerhouse.storage.native_types import UnmergeableBlock


cdef uint64_t _version = native.DICTIONARY_VERSION
cdef uint64_t _index_width_mask = native.INDEX_WIDTH_MASK
cdef uint64_t _index_width_max = native.INDEX_WIDTH_MAX
cdef uint64_t _own_keys = native.OWN_KEYS
cdef uint64_t _updated_keys = native.UPDATED_KEYS
cdef uint64_t _columns_max = native.COLUMNS_MAX
cdef size_t _heads_max_bytes = native.HEADS_MAX_BYTES


cdef enum:
    PLANS_MAX = 16  # plans that are remembered
    DICTIONARY_BYTES = 32  # version, flags, number of keys, number of rows


cdef enum StreamKind:
    FIXED
    STRINGS
    LISTS
    DICTIONARY


cdef struct Stream:
    # Values of one kind that follow each other in a block.
    StreamKind kind
    bint nullable  # DICTIONARY: the key at index 0 is null
    uint32_t width  # FIXED: bytes of a value
    uint32_t counted_by  # which count says how many values there are: 0 is that of the rows
    uint32_t counts  # LISTS: which count says how many elements there are. DICTIONARY: which keys


cdef struct Column:
    const uint8_t *head
    size_t head_size
    size_t streams_end  # index after its last stream


cdef struct Shape:
    const Column *columns
    const Stream *streams
    size_t column_count
    size_t stream_count
    size_t count_count
    size_t dictionary_count


cdef struct Slice:
    const uint8_t *data
    size_t size


# --- following a block to its end ---


cdef enum BlockFault:
    OK
    NO_MEMORY
    NO_COUNTS
    OTHER_COLUMNS
    TRAILING
    CUT
    BAD_STRING
    BAD_ENDS
    BAD_DICTIONARY
    BAD_KEY
    BAD_ROWS
    BAD_INDEX


cdef dict _FAULTS = {
    NO_COUNTS: "it does not begin with its numbers of columns and rows",
    TRAILING: "bytes are left over after the last column",
    CUT: "the block ends before its values do",
    BAD_STRING: "a string does not fit into the block",
    BAD_ENDS: "the ends of its arrays do not grow",
    BAD_DICTIONARY: "version or flags of LowCardinality are not supported",
    BAD_KEY: "a key of LowCardinality does not fit into the block",
    BAD_ROWS: "LowCardinality has another number of rows than the block",
    BAD_INDEX: "an index of LowCardinality is not below the number of keys",
}


cdef inline uint64_t _load64(const uint8_t *p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return value


cdef inline uint64_t _load_index(const uint8_t *p, size_t width_log2) noexcept nogil:
    cdef uint32_t four
    cdef uint16_t two
    if width_log2 == 0:
        return p[0]
    if width_log2 == 1:
        memcpy(&two, p, 2)
        return two
    if width_log2 == 2:
        memcpy(&four, p, 4)
        return four
    return _load64(p)


cdef BlockFault _skip_ends(
    const uint8_t **cursor, const uint8_t *end, uint64_t count, uint64_t *elements
) noexcept nogil:
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t last = 0
    cdef uint64_t next
    cdef uint64_t i
    if count > <size_t>(end - p) // 8:
        return CUT
    for i in range(count):
        next = _load64(p)
        p += 8
        if next < last:
            return BAD_ENDS
        last = next
    elements[0] = last
    cursor[0] = p
    return OK


cdef BlockFault _skip_dictionary(
    const uint8_t **cursor, const uint8_t *end, uint64_t rows
) noexcept nogil:
    cdef const uint8_t *p = cursor[0]
    cdef uint64_t flags
    cdef uint64_t keys
    cdef uint64_t width_log2
    cdef uint64_t index
    cdef uint64_t highest = 0
    cdef uint64_t i
    if end - p < 24:
        return CUT
    flags = _load64(p + 8)
    width_log2 = flags & _index_width_mask
    if (
        _load64(p) != _version
        or width_log2 > _index_width_max
        or (flags & ~_updated_keys) != (_own_keys | width_log2)
    ):
        return BAD_DICTIONARY
    keys = _load64(p + 16)
    p += 24
    if not skip_strings(&p, end, keys):
        return BAD_KEY
    if end - p < 8:
        return CUT
    if _load64(p) != rows:
        return BAD_ROWS
    p += 8
    if rows > <size_t>(end - p) >> width_log2:
        return CUT
    for i in range(rows):
        index = _load_index(p, width_log2)
        p += 1 << width_log2
        if index > highest:
            highest = index
    if highest >= keys:
        return BAD_INDEX
    cursor[0] = p
    return OK


cdef BlockFault _follow_streams(
    const Stream *stream,
    const Stream *stop,
    const uint8_t **cursor,
    const uint8_t *end,
    uint64_t *counts,
    Slice *slices,
) noexcept nogil:
    """Moves the cursor after the values of these streams. `slices` may be NULL."""
    cdef const uint8_t *start = cursor[0]
    cdef const uint8_t *p
    cdef BlockFault fault
    cdef uint64_t count
    while stream < stop:
        p = start
        count = counts[stream.counted_by]
        if stream.kind == FIXED:
            if count > <size_t>(end - p) // stream.width:
                return CUT
            p += count * stream.width
        elif stream.kind == STRINGS:
            if not skip_strings(&p, end, count):
                return BAD_STRING
        else:
            if stream.kind == LISTS:
                fault = _skip_ends(&p, end, count, &counts[stream.counts])
            else:
                fault = _skip_dictionary(&p, end, count)
            if fault != OK:
                return fault
        if slices != NULL:
            slices.data = start
            slices.size = p - start
            slices += 1
        start = p
        stream += 1
    cursor[0] = start
    return OK


cdef BlockFault _follow_block(
    const Shape *shape,
    const uint8_t *p,
    const uint8_t *end,
    uint64_t *counts,
    Slice *slices,
    size_t *column,
) noexcept nogil:
    """`counts[0]` becomes the number of rows. `column` is where a fault is."""
    cdef const Column *c = shape.columns
    cdef size_t first = 0
    cdef uint64_t columns = 0
    cdef BlockFault fault
    cdef size_t i
    column[0] = 0
    if not (read_varuint(&p, end, &columns) and read_varuint(&p, end, &counts[0])):
        return NO_COUNTS
    if columns != shape.column_count:
        return OTHER_COLUMNS
    for i in range(shape.column_count):
        column[0] = i
        if c.head_size > <size_t>(end - p) or memcmp(p, c.head, c.head_size) != 0:
            return OTHER_COLUMNS
        p += c.head_size
        if counts[0]:
            fault = _follow_streams(
                shape.streams + first,
                shape.streams + c.streams_end,
                &p,
                end,
                counts,
                NULL if slices == NULL else slices + first,
            )
            if fault != OK:
                return fault
        first = c.streams_end
        c += 1
    return OK if p == end else TRAILING


# --- the columns of a block ---


cdef class _Plan:
    """The columns of a block, as streams."""

    cdef list heads  # keeps what the columns point at
    cdef Buf columns
    cdef Buf streams
    cdef Shape shape

    def __cinit__(self):
        self.heads = []
        self.shape.count_count = 1

    def __dealloc__(self):
        free(self.columns.data)
        free(self.streams.data)

    cdef size_t add_column(self, bytes head, kind) except 0:
        """The index after the last stream of the column."""
        cdef Column column
        self._add_streams(kind, 0)
        self.heads.append(head)
        column.head = <const uint8_t *>PyBytes_AS_STRING(head)
        column.head_size = len(head)
        column.streams_end = self.shape.stream_count
        if not put_bytes(&self.columns, &column, sizeof(Column)):
            raise MemoryError()
        self.shape.columns = <const Column *>self.columns.data
        self.shape.column_count += 1
        return column.streams_end

    cdef _add_streams(self, kind, uint32_t counted_by):
        cdef Stream stream
        if isinstance(kind, native.Several):
            for part in kind.parts:
                self._add_streams(part, counted_by)
            return
        stream.nullable = False
        stream.width = 0
        stream.counted_by = counted_by
        stream.counts = 0
        if isinstance(kind, native.Fixed):
            stream.kind = FIXED
            stream.width = kind.width
        elif isinstance(kind, native.Strings):
            stream.kind = STRINGS
        elif isinstance(kind, native.Lists):
            stream.kind = LISTS
            stream.counts = self.shape.count_count
            self.shape.count_count += 1
        elif isinstance(kind, native.Dictionary):
            stream.kind = DICTIONARY
            stream.nullable = kind.nullable
            stream.counts = self.shape.dictionary_count
            self.shape.dictionary_count += 1
        else:
            raise TypeError(f"no layout: {kind!r}")
        if not put_bytes(&self.streams, &stream, sizeof(Stream)):
            raise MemoryError()
        self.shape.streams = <const Stream *>self.streams.data
        self.shape.stream_count += 1
        if isinstance(kind, native.Lists):
            self._add_streams(kind.element, stream.counts)


cdef list _recent = []  # plans, the one used last first


cdef _Plan _plan_of(bytes block, uint64_t *rows):
    """The plan of a block, after following it to its end. Raises UnmergeableBlock."""
    cdef _Plan plan
    cdef Py_ssize_t i
    cdef list plans = _recent[:]
    for i in range(len(plans)):
        plan = <_Plan>plans[i]
        if _follows(plan, block, rows):
            if i:
                _remember(plan)
            return plan
    plan = _learn(block, rows)
    _remember(plan)
    return plan


cdef _remember(_Plan plan):
    if plan in _recent:
        _recent.remove(plan)
    _recent.insert(0, plan)
    del _recent[PLANS_MAX:]


cdef bint _follows(_Plan plan, bytes block, uint64_t *rows) except -1:
    """Whether the block has these columns. Raises UnmergeableBlock if their values are spoilt."""
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(block)
    cdef const uint8_t *end = p + len(block)
    cdef uint64_t *counts = <uint64_t *>calloc(plan.shape.count_count, sizeof(uint64_t))
    cdef size_t column = 0
    cdef BlockFault fault
    if counts == NULL:
        raise MemoryError()
    if end - p < RELEASE_GIL_BYTES:
        fault = _follow_block(&plan.shape, p, end, counts, NULL, &column)
    else:
        with nogil:
            fault = _follow_block(&plan.shape, p, end, counts, NULL, &column)
    rows[0] = counts[0]
    free(counts)
    if fault == OTHER_COLUMNS:
        return False
    if fault != OK:
        raise UnmergeableBlock(_refusal(fault, column, plan.heads[column]))
    return True


cdef str _refusal(BlockFault fault, size_t column, bytes head):
    if fault == NO_COUNTS or fault == TRAILING:
        return _FAULTS[fault]
    return f"column {column}, {_name_in(head)!r}: {_FAULTS[fault]}"


cdef str _name_in(bytes head):
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(head)
    cdef const uint8_t *p = start
    cdef uint64_t size = 0
    read_varuint(&p, start + len(head), &size)
    return head[p - start : p - start + min(size, <uint64_t>64)].decode(errors="replace")


cdef _Plan _learn(bytes block, uint64_t *rows):
    """The plan of a block whose columns are new. Raises UnmergeableBlock."""
    cdef _Plan plan = _Plan()
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(block)
    cdef const uint8_t *end = p + len(block)
    cdef Py_ssize_t heads_left = _heads_max_bytes
    cdef uint64_t columns = 0
    cdef uint64_t *counts = NULL
    cdef uint64_t i
    cdef size_t first = 0
    cdef size_t stop
    cdef BlockFault fault = OK
    cdef Buf room
    cdef bytes head
    if not (read_varuint(&p, end, &columns) and read_varuint(&p, end, rows)):
        raise UnmergeableBlock(_FAULTS[NO_COUNTS])
    if not 0 < columns <= _columns_max:
        raise UnmergeableBlock(f"it has {columns} columns")
    memset(&room, 0, sizeof(Buf))
    try:
        for i in range(columns):
            head = _read_head(p, end, heads_left)
            heads_left -= len(head)
            p += len(head)
            stop = plan.add_column(head, _layout_in(head, i))
            if rows[0]:
                if not reserve(&room, plan.shape.count_count * sizeof(uint64_t)):
                    raise MemoryError()
                counts = <uint64_t *>room.data
                counts[0] = rows[0]
                if end - p < RELEASE_GIL_BYTES:
                    fault = _follow_streams(
                        plan.shape.streams + first, plan.shape.streams + stop, &p, end, counts, NULL
                    )
                else:
                    with nogil:
                        fault = _follow_streams(
                            plan.shape.streams + first,
                            plan.shape.streams + stop,
                            &p,
                            end,
                            counts,
                            NULL,
                        )
                if fault != OK:
                    raise UnmergeableBlock(_refusal(fault, i, head))
            first = stop
    finally:
        free(room.data)
    if p != end:
        raise UnmergeableBlock(_FAULTS[TRAILING])
    return plan


cdef bytes _read_head(const uint8_t *start, const uint8_t *end, Py_ssize_t size_max):
    """The name and the type of the column that starts here."""
    cdef const uint8_t *p = start
    if not skip_strings(&p, end, 1) or not skip_strings(&p, end, 1):
        raise UnmergeableBlock("the block ends before its columns do")
    if p - start > size_max:
        raise UnmergeableBlock(f"its columns' names and types exceed {_heads_max_bytes} bytes")
    return PyBytes_FromStringAndSize(<const char *>start, p - start)


cdef _layout_in(bytes head, uint64_t column):
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(head)
    cdef const uint8_t *end = p + len(head)
    cdef uint64_t size = 0
    skip_strings(&p, end, 1)
    read_varuint(&p, end, &size)
    try:
        return native.layout(p[:size].decode())
    except (native.UnsupportedType, UnicodeDecodeError) as error:
        raise UnmergeableBlock(f"column {column}, {_name_in(head)!r}: {error}") from None


# --- merging ---


cdef struct Keys:
    # One LowCardinality column of the merged block.
    Buf text  # the keys, as they are written
    Buf merged  # UInt64 for each key of each block: its index among the merged keys
    size_t *starts  # where the indexes of each block begin in `merged`
    uint64_t count
    size_t width_log2


cdef inline uint8_t *_write64(uint8_t *p, uint64_t value) noexcept nogil:
    return write_bytes(p, &value, 8)


cdef inline uint64_t _keys_size(const Slice *slice, uint64_t rows) noexcept nogil:
    """Bytes of the keys in a stream of LowCardinality that has been followed to its end."""
    cdef size_t width_log2 = _load64(slice.data + 8) & _index_width_mask
    return slice.size - DICTIONARY_BYTES - (rows << width_log2)


cdef class _Merge:
    """Blocks with the columns of `plan`, on their way to one block."""

    cdef _Plan plan
    cdef Shape shape
    cdef list blocks
    cdef Buf sources  # a Slice for each block, the whole of it
    cdef Buf slices  # of every stream of every block that has rows, block after block
    cdef Buf rows  # UInt64 for each of these blocks
    cdef uint64_t *counts
    cdef size_t *sizes  # of each stream in the merged block
    cdef uint8_t **cursors  # where the next slice of each stream is copied to
    cdef Keys *keys
    cdef size_t full  # number of blocks that have rows
    cdef size_t last_full  # index of the last one
    cdef uint64_t all_rows

    def __cinit__(self, _Plan plan not None, list blocks not None):
        self.plan = plan
        self.shape = plan.shape
        self.blocks = blocks
        self.counts = <uint64_t *>calloc(plan.shape.count_count, sizeof(uint64_t))
        self.sizes = <size_t *>calloc(plan.shape.stream_count, sizeof(size_t))
        self.cursors = <uint8_t **>calloc(plan.shape.stream_count, sizeof(uint8_t *))
        self.keys = <Keys *>calloc(plan.shape.dictionary_count + 1, sizeof(Keys))
        if not (self.counts and self.sizes and self.cursors and self.keys):
            raise MemoryError()

    def __dealloc__(self):
        cdef size_t i
        if self.keys:
            for i in range(self.shape.dictionary_count):
                free(self.keys[i].text.data)
                free(self.keys[i].merged.data)
                free(self.keys[i].starts)
        free(self.keys)
        free(self.cursors)
        free(self.sizes)
        free(self.counts)
        free(self.rows.data)
        free(self.slices.data)
        free(self.sources.data)

    cdef follow(self):
        """Finds the slices of all blocks. Raises UnmergeableBlock."""
        cdef Slice source
        cdef bytes block
        cdef size_t index = 0
        cdef size_t column = 0
        cdef uint64_t rows
        cdef size_t all_bytes = 0
        cdef BlockFault fault
        if not reserve(&self.sources, len(self.blocks) * sizeof(Slice)):
            raise MemoryError()
        for block in self.blocks:
            source.data = <const uint8_t *>PyBytes_AS_STRING(block)
            source.size = len(block)
            memcpy(self.sources.data + self.sources.len, &source, sizeof(Slice))
            self.sources.len += sizeof(Slice)
            all_bytes += source.size
        if all_bytes < RELEASE_GIL_BYTES:
            fault = self._follow(&index, &column)
        else:
            with nogil:
                fault = self._follow(&index, &column)
        if fault == NO_MEMORY:
            raise MemoryError()
        if fault != OK:
            block = self.blocks[index]
            try:
                if fault == OTHER_COLUMNS:
                    _learn(block, &rows)  # raises if the block is spoilt
                    raise UnmergeableBlock("its columns are not those of block 0")
                raise UnmergeableBlock(_refusal(fault, column, self.plan.heads[column]))
            except UnmergeableBlock as error:
                raise _of_block(index, len(self.blocks), error) from None

    cdef BlockFault _follow(self, size_t *index, size_t *column) noexcept nogil:
        cdef const Slice *source = <const Slice *>self.sources.data
        cdef size_t streams = self.shape.stream_count
        cdef Slice *slices
        cdef BlockFault fault
        cdef size_t i
        cdef size_t s
        for i in range(self.sources.len // sizeof(Slice)):
            index[0] = i
            # Room for one block at a time, so that a block that is too short to have these streams
            # ends the work before it takes memory for them.
            if not reserve(&self.slices, streams * sizeof(Slice)):
                return NO_MEMORY
            slices = <Slice *>(self.slices.data + self.slices.len)
            fault = _follow_block(
                &self.shape,
                source[i].data,
                source[i].data + source[i].size,
                self.counts,
                slices,
                column,
            )
            if fault != OK:
                return fault
            if self.counts[0] == 0:
                continue
            if not put_int64(&self.rows, <int64_t>self.counts[0]):
                return NO_MEMORY
            for s in range(streams):
                self.sizes[s] += slices[s].size
            self.slices.len += streams * sizeof(Slice)
            self.full += 1
            self.last_full = i
            self.all_rows += self.counts[0]
        return OK

    cdef merge_keys(self):
        """Gives each key of the LowCardinality columns one index in the merged block."""
        cdef size_t s
        for s in range(self.shape.stream_count):
            if self.shape.streams[s].kind == DICTIONARY:
                self._merge_keys_of(s, &self.keys[self.shape.streams[s].counts])

    cdef _merge_keys_of(self, size_t stream, Keys *keys):
        cdef bint nullable = self.shape.streams[stream].nullable
        cdef const uint64_t *rows = <const uint64_t *>self.rows.data
        cdef const Slice *slice = <const Slice *>self.slices.data + stream
        cdef const uint8_t *own = NULL
        cdef const uint8_t *p
        cdef uint64_t own_size = 0
        cdef uint64_t size = 0
        cdef uint64_t index
        cdef uint64_t i
        cdef size_t b
        cdef bytes key
        cdef dict known = {} if nullable else {b"": 0}
        keys.starts = <size_t *>calloc(self.full, sizeof(size_t))
        if keys.starts == NULL or not put_string(&keys.text, NULL, 0):
            raise MemoryError()
        keys.count = 1  # the default value, or null
        for b in range(self.full):
            p = slice.data + 16
            size = 8 + _keys_size(slice, rows[b])
            slice += self.shape.stream_count
            if size == own_size and memcmp(p, own, size) == 0:
                keys.starts[b] = keys.starts[b - 1]  # most blocks have the keys of the one before
                continue
            own = p
            own_size = size
            keys.starts[b] = keys.merged.len // sizeof(uint64_t)
            p += 8
            for i in range(_load64(own)):
                read_varuint(&p, own + own_size, &size)
                index = 0
                if i or not nullable:
                    key = PyBytes_FromStringAndSize(<const char *>p, size)
                    index = known.setdefault(key, keys.count)
                    if index == keys.count:
                        if not put_string(&keys.text, p, size):
                            raise MemoryError()
                        keys.count += 1
                if not put_int64(&keys.merged, <int64_t>index):
                    raise MemoryError()
                p += size
        keys.width_log2 = 0 if keys.count <= 0x100 else 1 if keys.count <= 0x10000 else 2
        self.sizes[stream] = DICTIONARY_BYTES + keys.text.len + (self.all_rows << keys.width_log2)

    cdef size_t size(self):
        """Bytes of the merged block."""
        cdef size_t size = bh_varuint_size(self.shape.column_count)
        cdef size_t i
        size += bh_varuint_size(self.all_rows)
        for i in range(self.shape.column_count):
            size += self.shape.columns[i].head_size
        for i in range(self.shape.stream_count):
            size += self.sizes[i]
        return size

    cdef void write(self, uint8_t *p) noexcept nogil:
        cdef const Column *column = self.shape.columns
        cdef const uint64_t *rows = <const uint64_t *>self.rows.data
        cdef const Slice *slice = <const Slice *>self.slices.data
        cdef const Stream *stream
        cdef Keys *keys
        cdef uint8_t **cursor
        cdef size_t i
        cdef size_t s = 0
        p = write_varuint(p, self.shape.column_count)
        p = write_varuint(p, self.all_rows)
        for i in range(self.shape.column_count):
            p = write_bytes(p, column.head, column.head_size)
            while s < column.streams_end:
                self.cursors[s] = p
                if self.shape.streams[s].kind == DICTIONARY:
                    keys = &self.keys[self.shape.streams[s].counts]
                    self.cursors[s] = _write_keys(p, keys, self.all_rows)
                p += self.sizes[s]
                s += 1
            column += 1
        # Block after block, since a block is in the processor's cache once it has been touched.
        memset(self.counts, 0, self.shape.count_count * sizeof(uint64_t))
        for i in range(self.full):
            stream = self.shape.streams
            cursor = self.cursors
            for s in range(self.shape.stream_count):
                if stream.kind == LISTS:
                    cursor[0] = _write_ends(cursor[0], slice, &self.counts[stream.counts])
                elif stream.kind == DICTIONARY:
                    keys = &self.keys[stream.counts]
                    cursor[0] = _write_indexes(cursor[0], slice, keys, keys.starts[i], rows[i])
                else:
                    cursor[0] = write_bytes(cursor[0], slice.data, slice.size)
                stream += 1
                cursor += 1
                slice += 1


cdef uint8_t *_write_ends(uint8_t *p, const Slice *slice, uint64_t *before) noexcept nogil:
    """The ends of lists, `before[0]` elements after those of the blocks before."""
    cdef const uint8_t *from_ = slice.data
    cdef uint64_t base = before[0]
    cdef uint64_t end = base
    cdef size_t i
    for i in range(slice.size // 8):
        end = base + _load64(from_)
        from_ += 8
        p = _write64(p, end)
    before[0] = end
    return p


cdef uint8_t *_write_keys(uint8_t *p, const Keys *keys, uint64_t rows) noexcept nogil:
    """A LowCardinality column up to the indexes of its rows."""
    p = _write64(p, _version)
    p = _write64(p, _own_keys | keys.width_log2)
    p = _write64(p, keys.count)
    p = write_bytes(p, keys.text.data, keys.text.len)
    return _write64(p, rows)


cdef uint8_t *_write_indexes(
    uint8_t *p, const Slice *slice, const Keys *keys, size_t start, uint64_t rows
) noexcept nogil:
    cdef const uint64_t *merged = <const uint64_t *>keys.merged.data + start
    cdef size_t from_log2 = _load64(slice.data + 8) & _index_width_mask
    cdef const uint8_t *from_ = slice.data + slice.size - (rows << from_log2)
    cdef uint64_t index
    cdef uint64_t i
    for i in range(rows):
        index = merged[_load_index(from_, from_log2)]
        from_ += 1 << from_log2
        memcpy(p, &index, 1 << keys.width_log2)
        p += 1 << keys.width_log2
    return p


# --- what Python sees ---


cdef _of_block(size_t index, size_t count, error):
    return UnmergeableBlock(f"block {index} of {count}: {error}")


cdef _merge_of(blocks):
    """A _Merge that is ready to be written, or a block that has the rows of all of them."""
    cdef list all_blocks = list(blocks)
    cdef _Merge merge
    cdef _Plan plan
    cdef uint64_t rows = 0
    if not all_blocks:
        raise ValueError("there are no blocks to merge")
    for block in all_blocks:
        if not PyBytes_Check(block):
            raise TypeError(f"a block is bytes, not {type(block).__name__}")
    try:
        plan = _plan_of(all_blocks[0], &rows)
    except UnmergeableBlock as error:
        raise _of_block(0, len(all_blocks), error) from None
    if len(all_blocks) == 1:
        return all_blocks[0]
    merge = _Merge(plan, all_blocks)
    merge.follow()
    if merge.full <= 1:
        return all_blocks[merge.last_full]
    merge.merge_keys()
    return merge


cdef _write_to(uint8_t *p, size_t size, merge):
    cdef _Merge ready
    if PyBytes_Check(merge):
        memcpy(p, PyBytes_AS_STRING(merge), size)
        return
    ready = merge
    if size < RELEASE_GIL_BYTES:
        ready.write(p)
    else:
        with nogil:
            ready.write(p)


def merge_blocks(blocks):
    """One block with the rows of all `blocks`: see _merge_blocks.pyi."""
    cdef bytes block
    cdef size_t size
    merge = _merge_of(blocks)
    if PyBytes_Check(merge):
        return merge
    size = (<_Merge>merge).size()
    block = PyBytes_FromStringAndSize(NULL, size)
    _write_to(<uint8_t *>PyBytes_AS_STRING(block), size, merge)
    return block


def merge_blocks_into(blocks, room):
    """`merge_blocks`, into the buffer that `room(size)` returns. Returns the size."""
    cdef Py_buffer buffer
    cdef size_t size
    merge = _merge_of(blocks)
    size = len(<bytes>merge) if PyBytes_Check(merge) else (<_Merge>merge).size()
    PyObject_GetBuffer(room(size), &buffer, PyBUF_WRITABLE)
    try:
        if <size_t>buffer.len < size:
            raise ValueError(f"{size} bytes do not fit into a buffer of {buffer.len}")
        _write_to(<uint8_t *>buffer.buf, size, merge)
    finally:
        PyBuffer_Release(&buffer)
    return size


def block_rows(bytes block not None):
    """How many rows a block has: see _merge_blocks.pyi."""
    cdef uint64_t rows = 0
    _plan_of(block, &rows)
    return rows


def block_columns(bytes block not None):
    """Name and type of each column: see _merge_blocks.pyi."""
    cdef uint64_t rows = 0
    return [_column_in(head) for head in _plan_of(block, &rows).heads]


cdef tuple _column_in(bytes head):
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(head)
    cdef const uint8_t *p = start
    cdef uint64_t size = 0
    read_varuint(&p, start + len(head), &size)
    name = head[p - start : p - start + size]
    p += size
    read_varuint(&p, start + len(head), &size)
    return name.decode(errors="replace"), head[p - start :].decode()
