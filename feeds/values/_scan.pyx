# cython: language_level=3, embedsignature=True, boundscheck=False, wraparound=False, cdivision=True
"""Values of records as rows of ClickHouse's RowBinary. See `_scan.pyi`.

The reader remembers where the values are that columns want; the columns are written in their order
when the object has ended:

    record -> rows:    _offset Int64 | _error String | column | column | ...
    bad record -> row: _offset Int64 | why           | nothing | nothing | ...
"""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

from brokerhouse.feeds.values._moments cimport Moment, days_since_1970, parse_moment
from brokerhouse.feeds.values._numbers cimport (
    PLAIN_MAX, Number, fit_double, fit_float, is_digit, parse_double, parse_number, plain_text,
    scaled, whole_number,
)
from brokerhouse.feeds.values._plan cimport (
    ARRAY, ARRAYS, BOOLS, FALSE_VALUE, FIELD, MISSING, NULL_VALUE, NUMBER, NUMBERS, OBJECT, OBJECTS,
    OP_ARRAY, OP_BOOL, OP_DAYS, OP_DECIMAL, OP_FIXED, OP_FLOAT32, OP_FLOAT64, OP_INT, OP_MAP,
    OP_MOMENT, OP_OPTIONAL, OP_RAW, OP_TEXT, OP_TUPLE, OP_UINT, OP_VARIANT, STRING, STRINGS,
    TRUE_VALUE, UNIT_DAYS, Node, Value, free_node, new_node,
)
from brokerhouse.feeds.values._reader cimport ERROR_BYTES, ValueReader

cdef int64_t LAST_SECOND_IN_NS = 9223372036

cdef enum:
    MARK_BYTES = 16
    COUNT_BYTES = 5  # a count that is written when its items are


cdef class RowScanner(ValueReader):
    """See `_scan.pyi`."""

    cdef Node** _columns
    cdef char** _labels        # what an error begins with: the column's name
    cdef char** _types
    cdef int _count
    cdef int* _slots_of        # where each column's value is
    cdef bint _texts_are_json  # arrays and objects come as text: CSV and raw
    cdef int _kind             # 0 JSON, 1 CSV, 2 raw
    cdef bint _has_doubles     # numbers with a point or exponent were doubles, not digits
    cdef Value _bad            # what does not fit
    # What is written.
    cdef char* _out
    cdef size_t _used
    cdef size_t _room

    def __cinit__(self, str kind, list columns, dict table, int slots, bint collects=False):
        cdef int n
        self._kind = {"json": 0, "doubles": 0, "csv": 1, "raw": 2}[kind]
        self._has_doubles = kind == "doubles"
        self._texts_are_json = self._kind != 0
        self._count = len(columns)
        self._columns = <Node**>calloc(max(self._count, 1), sizeof(Node*))
        self._labels = <char**>calloc(max(self._count, 1), sizeof(char*))
        self._types = <char**>calloc(max(self._count, 1), sizeof(char*))
        self._slots_of = <int*>calloc(max(self._count, 1), sizeof(int))
        if not (self._columns and self._labels and self._types and self._slots_of):
            raise MemoryError
        for n in range(self._count):
            name, type_text, slot, spec = columns[n]
            self._columns[n] = new_node(spec)
            self._slots_of[n] = slot
            label = name.encode("utf-8", "replace")
            type_label = type_text.encode("utf-8", "replace")
            self._kept += [label, type_label]
            self._labels[n] = <bytes>label
            self._types[n] = <bytes>type_label

    def __dealloc__(self):
        cdef int n
        if self._columns != NULL:
            for n in range(self._count):
                free_node(self._columns[n])
        free(self._columns)
        free(self._labels)
        free(self._types)
        free(self._slots_of)
        free(self._out)

    # --- what Python calls

    def scan_file(self, bytes values not None, bytes mark not None):
        cdef const char* data = values
        cdef const char* end = data + len(values)
        cdef const char* wanted = mark
        cdef bint ok
        if len(mark) != MARK_BYTES:
            raise ValueError("the mark has not 16 bytes")
        with nogil:
            self._used = 0
            ok = self._file(data, end, wanted)
        return self._result(ok)

    def scan_record(self, int64_t offset, bytes value not None):
        cdef const char* data = value
        self._used = 0
        self._record(offset, data, data + len(value))
        return self._result(True)

    def bad_record(self, int64_t offset, str why not None):
        cdef bytes text = why.encode("utf-8", "replace")
        self._used = 0
        self._set_error(text, min(len(text), ERROR_BYTES - 1))
        self._bad_row(offset)
        return self._result(True)

    cdef object _result(self, bint ok):
        if self._no_memory:
            self._no_memory = False
            raise MemoryError("no memory for the rows of a block")
        if not ok:
            raise ValueError("the file of values is not what ClickHouse writes")
        rows = self._out[: self._used] if self._used else b""
        if self._room > (1 << 20):
            free(self._out)
            self._out = NULL
            self._room = 0
        self._used = 0
        return rows

    # --- records

    cdef bint _file(self, const char* at, const char* end, const char* mark) noexcept nogil:
        """Rows of (mark FixedString(16), offset Int64, value String); others are of old files."""
        cdef int64_t offset
        cdef uint64_t length
        cdef int shift
        cdef bint is_mine
        while at < end:
            if end - at < MARK_BYTES + 9:
                return False
            memcpy(&offset, at + MARK_BYTES, 8)
            is_mine = memcmp(at, mark, MARK_BYTES) == 0
            at += MARK_BYTES + 8
            length = shift = 0
            while True:
                if at == end or shift > 56:
                    return False
                length |= (<uint64_t>(<uint8_t>at[0] & 0x7F)) << shift
                shift += 7
                at += 1
                if <uint8_t>((at - 1)[0]) < 0x80:
                    break
            if length > <uint64_t>(end - at):
                return False
            if is_mine:
                self._record(offset, at, at + length)
            at += length
        return True

    cdef void _record(self, int64_t offset, const char* at, const char* end) noexcept nogil:
        cdef size_t before = self._used
        cdef bint ok
        self._begin = self._at = at
        self._end = end
        self._depth = 0
        self._error_bytes = 0
        if not self._make_scratch(2 * (end - at) + 64):
            return
        if self._kind == 0:
            ok = self._json(offset)
        elif self._kind == 1:
            ok = self._csv(offset)
        else:
            self._slots[0].kind = STRING
            self._slots[0].escaped = False
            self._slots[0].start = at
            self._slots[0].end = end
            ok = self._row(offset)
        if not ok:
            self._used = before
            self._bad_row(offset)

    cdef void _bad_row(self, int64_t offset) noexcept nogil:
        cdef int n
        self._put(<const char*>&offset, 8)
        self._put_text(self._error, self._error_bytes)
        for n in range(self._count):
            self._put_missing(self._columns[n])

    cdef bint _row(self, int64_t offset) noexcept nogil:
        cdef int n
        self._put(<const char*>&offset, 8)
        self._put_byte(0)
        for n in range(self._count):
            if not self._write_column(self._columns[n], &self._slots[self._slots_of[n]]):
                self._misfit(n)
                return False
        return True

    cdef void _misfit(self, int column) noexcept nogil:
        """`_bad` does not fit a column."""
        cdef int length = 0
        while self._labels[column][length] != 0:
            length += 1
        self._error_bytes = 0
        self._add_error(self._labels[column], min(length, 80))
        self._add_error(b": ", 2)
        self._add_shown(&self._bad)
        self._add_error(b" does not fit ", 14)
        length = 0
        while self._types[column][length] != 0:
            length += 1
        self._add_error(self._types[column], min(length, 80))

    cdef bint _room_for(self, size_t size) noexcept nogil:
        cdef size_t room
        cdef char* larger
        if self._room - self._used >= size:
            return True
        room = max(2 * self._room, self._used + size + 4096)
        larger = <char*>realloc(self._out, room)
        if larger == NULL:
            self._no_memory = True
            return False
        self._out = larger
        self._room = room
        return True

    cdef inline void _put(self, const char* data, size_t size) noexcept nogil:
        if self._room_for(size):
            memcpy(self._out + self._used, data, size)
            self._used += size

    cdef inline void _put_byte(self, uint8_t byte) noexcept nogil:
        if self._room_for(1):
            self._out[self._used] = <char>byte
            self._used += 1

    cdef inline void _put_count(self, uint64_t count) noexcept nogil:
        while count >= 0x80:
            self._put_byte(<uint8_t>(count & 0x7F) | 0x80)
            count >>= 7
        self._put_byte(<uint8_t>count)

    cdef inline void _put_text(self, const char* text, size_t length) noexcept nogil:
        self._put_count(length)
        self._put(text, length)

    cdef size_t _begin_items(self) noexcept nogil:
        """Room for a count that is known later. Returns its place."""
        cdef size_t place = self._used
        if self._room_for(COUNT_BYTES):
            self._used += COUNT_BYTES
        return place

    cdef void _end_items(self, size_t place, uint32_t count) noexcept nogil:
        """A count with bytes that could be left out, which is the same number."""
        cdef int n
        if self._no_memory:
            return
        for n in range(COUNT_BYTES):
            self._out[place + n] = <char>((count & 0x7F) | (0x80 if n < COUNT_BYTES - 1 else 0))
            count >>= 7

    cdef void _put_missing(self, Node* node) noexcept nogil:
        cdef int n
        if node.op == OP_ARRAY or node.op == OP_MAP or node.op == OP_OPTIONAL:
            self._put_byte(0)
        elif node.op == OP_TUPLE or node.op == OP_VARIANT:
            for n in range(node.count):
                self._put_missing(node.children[n])
        else:
            self._put_byte(1)
            if node.op == OP_MOMENT and not node.is_utc:
                self._put_byte(1)

    # --- values

    cdef bint _write_column(self, Node* node, Value* value) noexcept nogil:
        """What a record has for a column; nothing and null are its default, as in ClickHouse."""
        cdef bint is_null = value.kind == NULL_VALUE
        if node.op == OP_OPTIONAL:
            if value.kind == MISSING or (is_null and not node.children[0].nullable):
                self._put_byte(0)
                return True
            self._put_byte(1)
            return self._write(node.children[0], value)
        if value.kind == MISSING or (is_null and not node.op == OP_RAW):
            self._put_missing(node)
            return True
        return self._write(node, value)

    cdef bint _fail(self, const Value* value) noexcept nogil:
        self._bad = value[0]
        return False

    cdef bint _write(self, Node* node, const Value* value) noexcept nogil:
        """False if it does not fit; `_bad` is what does not."""
        if value.kind == MISSING:
            self._put_missing(node)
            return True
        if value.kind == NULL_VALUE and node.op != OP_RAW and node.op != OP_VARIANT:
            if not node.nullable:
                return self._fail(value)
            self._put_missing(node)
            return True
        if node.op == OP_TEXT:
            return self._write_text(value)
        if node.op == OP_INT or node.op == OP_UINT:
            return self._write_whole(node, value)
        if node.op == OP_FLOAT64 or node.op == OP_FLOAT32:
            return self._write_float(node, value)
        if node.op == OP_MOMENT or node.op == OP_DAYS:
            return self._write_moment(node, value)
        if node.op == OP_DECIMAL:
            return self._write_decimal(value)
        if node.op == OP_BOOL:
            return self._write_bool(value)
        if node.op == OP_FIXED:
            return self._write_fixed(node, value)
        if node.op == OP_VARIANT:
            return self._write_variant(node, value)
        return self._write_nested(node, value)

    cdef bint _text_of(self, const Value* value, Value* text) noexcept nogil:
        text[0] = value[0]
        return self._decode(text) if text.escaped else True

    cdef bint _write_text(self, const Value* value) noexcept nogil:
        """Of a string its text, of anything else how it is written."""
        cdef Value text
        cdef size_t before = self._scratch_used
        if not self._text_of(value, &text):
            return self._fail(value)
        self._put_byte(0)
        self._put_text(text.start, text.end - text.start)
        self._scratch_used = before
        return True

    cdef bint _write_fixed(self, Node* node, const Value* value) noexcept nogil:
        cdef Value text
        cdef size_t before = self._scratch_used
        cdef int length, n
        if not self._text_of(value, &text) or text.end - text.start > node.size:
            return self._fail(value)
        length = text.end - text.start
        self._put_byte(0)
        self._put(text.start, length)
        for n in range(node.size - length):
            self._put_byte(0)
        self._scratch_used = before
        return True

    cdef bint _is_number(self, const Value* value, Value* text) noexcept nogil:
        """Whether it may be one: `text` is how it is written, without blanks around it in CSV."""
        if value.kind != NUMBER and value.kind != STRING and value.kind != FIELD:
            return False
        text[0] = value[0]
        if value.escaped and not self._decode(text):
            return False
        if value.kind == FIELD:
            while text.start < text.end and (text.start[0] == c' ' or text.start[0] == c'\t'):
                text.start += 1
            while text.start < text.end and ((text.end - 1)[0] == c' ' or (text.end - 1)[0] == c'\t'):
                text.end -= 1
        return text.start < text.end

    cdef bint _number(self, const Value* text, Number* number) noexcept nogil:
        if self._has_doubles and text.kind == NUMBER:
            return parse_double(text.start, text.end, number)
        return parse_number(text.start, text.end, number)

    cdef bint _write_whole(self, Node* node, const Value* value) noexcept nogil:
        cdef Value text
        cdef Number number
        cdef uint64_t size = 0
        cdef const char* at
        cdef bint negative
        cdef size_t before = self._scratch_used
        if not self._is_number(value, &text):
            return self._fail(value)
        at = text.start
        negative = at[0] == c'-'
        if negative:
            at += 1
        if at < text.end and text.end - at <= 18:
            while at < text.end and is_digit(at[0]):
                size = size * 10 + (at[0] - c'0')
                at += 1
        if at < text.end or (text.end - 1)[0] == c'-':
            if not self._number(&text, &number):
                return self._fail(value)
            if not whole_number(&number, &size):
                return self._fail(value)
            negative = number.negative
        self._scratch_used = before
        return self._write_integer(node, size, negative) or self._fail(value)

    cdef bint _write_integer(self, Node* node, uint64_t size, bint negative) noexcept nogil:
        """In the bytes of the column's type; False if it is out of its range."""
        cdef int64_t signed
        if node.op == OP_UINT:
            if (negative and size) or size > node.high:
                return False
        else:
            if size > node.high + <uint64_t>negative:
                return False
            if negative:
                size = ~size + 1
        self._put_byte(0)
        self._put(<const char*>&size, node.size)
        return True

    cdef bint _write_float(self, Node* node, const Value* value) noexcept nogil:
        cdef Value text
        cdef double large
        cdef float small
        cdef bint fits
        cdef size_t before = self._scratch_used
        if not self._is_number(value, &text):
            return self._fail(value)
        fits = self._not_finite(&text, &large)
        if node.op == OP_FLOAT64:
            if not fits and not fit_double(text.start, text.end, &large):
                return self._fail(value)
            self._put_byte(0)
            self._put(<const char*>&large, 8)
        else:
            if fits:
                small = <float>large
            elif not fit_float(text.start, text.end, &small):
                return self._fail(value)
            self._put_byte(0)
            self._put(<const char*>&small, 4)
        self._scratch_used = before
        return True

    cdef bint _not_finite(self, const Value* text, double* found) noexcept nogil:
        cdef const char* at = text.start
        cdef bint negative = at[0] == c'-'
        if at[0] == c'-' or at[0] == c'+':
            at += 1
        if at < text.end and is_digit(at[0]):
            return False
        if _is_word(at, text.end, b"nan", 3) and at == text.start:
            found[0] = NAN
            return True
        if _is_word(at, text.end, b"inf", 3) or _is_word(at, text.end, b"infinity", 8):
            found[0] = -INFINITY if negative else INFINITY
            return True
        return False

    cdef bint _write_decimal(self, const Value* value) noexcept nogil:
        """Its digits without exponent and needless zeros: as ClickHouse writes what it has read."""
        cdef Value text
        cdef Number number
        cdef char plain[2 * PLAIN_MAX + 8]
        cdef int length
        cdef size_t before = self._scratch_used
        if not self._is_number(value, &text) or not self._number(&text, &number):
            return self._fail(value)
        length = plain_text(&number, plain)
        if length < 0:
            return self._fail(value)
        self._put_byte(0)
        self._put_text(plain, length)
        self._scratch_used = before
        return True

    cdef bint _write_bool(self, const Value* value) noexcept nogil:
        cdef Value text
        cdef Number number
        cdef uint64_t size
        cdef bint truth
        cdef size_t before = self._scratch_used
        if value.kind == TRUE_VALUE or value.kind == FALSE_VALUE:
            truth = value.kind == TRUE_VALUE
        elif not self._is_number(value, &text):
            return self._fail(value)
        elif _is_word(text.start, text.end, b"true", 4):
            truth = True
        elif _is_word(text.start, text.end, b"false", 5):
            truth = False
        elif not self._number(&text, &number):
            return self._fail(value)
        elif not whole_number(&number, &size) or size > 1 or (number.negative and size):
            return self._fail(value)
        else:
            truth = size == 1
        self._scratch_used = before
        self._put_byte(0)
        self._put_byte(truth)
        return True

    # --- dates and times

    cdef bint _write_moment(self, Node* node, const Value* value) noexcept nogil:
        """A value of the type; where texts may have no zone, `Tuple(Nullable(type), Nullable(String))`:
        SQL reads the time of the column's zone in the text."""
        cdef Value text
        cdef size_t before = self._scratch_used
        cdef bint ok
        if not self._is_number(value, &text):
            return self._fail(value)
        if self._is_moment_as_number(node, value, &text):
            ok = self._write_ticks_of(node, &text)
        else:
            ok = self._write_date(node, &text)
        self._scratch_used = before
        return ok or self._fail(value)

    cdef bint _is_moment_as_number(
        self, Node* node, const Value* value, const Value* text
    ) noexcept nogil:
        cdef Number number
        if value.kind == NUMBER:
            return True
        if value.kind == STRING and not node.has_unit:
            return False
        if not self._number(text, &number):
            return False
        # In CSV, 20240101 may be a day or a number: nobody knows.
        return node.has_unit or not _is_compact_date(text)

    cdef bint _write_ticks_of(self, Node* node, const Value* text) noexcept nogil:
        cdef Number number
        cdef int64_t ticks, seconds
        cdef int unit = node.unit
        if not self._number(text, &number):
            return False
        if node.op == OP_DAYS:
            if unit == UNIT_DAYS:
                return scaled(&number, 0, 1, &ticks) and self._write_ticks(node, ticks)
            if not scaled(&number, -unit, 1, &seconds) or seconds % 86400:
                return False
            return self._write_ticks(node, seconds // 86400)
        if not number.is_plain and not node.has_unit:
            unit = 0  # 1704067200.5: seconds, as ClickHouse has it
        if unit == UNIT_DAYS:
            return scaled(&number, node.scale, 86400, &ticks) and self._write_ticks(node, ticks)
        return scaled(&number, node.scale - unit, 1, &ticks) and self._write_ticks(node, ticks)

    cdef bint _write_ticks(self, Node* node, int64_t ticks) noexcept nogil:
        if ticks < node.low or ticks > <int64_t>node.high:
            return False
        self._put_byte(0)
        self._put(<const char*>&ticks, node.size)
        if node.op == OP_MOMENT and not node.is_utc:
            self._put_byte(1)
        return True

    cdef bint _write_date(self, Node* node, const Value* text) noexcept nogil:
        cdef Moment moment
        cdef int64_t days, ticks, unit = 1
        cdef int n
        if node.has_unit or text.kind == FIELD:
            if _is_compact_date(text):
                return False
        if not parse_moment(text.start, text.end, &moment):
            return False
        days = days_since_1970(moment.year, moment.month, moment.day)
        if node.op == OP_DAYS:
            if moment.second_of_day or moment.fraction or moment.zone_s or moment.fraction_is_cut:
                return False
            return self._write_ticks(node, days)
        for n in range(9 - node.scale):
            unit *= 10
        if moment.fraction_is_cut or moment.fraction % unit:
            return False
        if not -30000 < days < 130000:
            return False  # far from any range
        ticks = days * 86400 + moment.second_of_day - moment.zone_s
        if node.scale == 9 and (
            ticks > LAST_SECOND_IN_NS or (ticks == LAST_SECOND_IN_NS and moment.fraction > 854775807)
        ):
            return False  # it would not fit 64 bits; every other scale does
        if not moment.has_zone and not node.is_utc and not -25568 <= days <= 120530:
            return False  # a day beyond the years 1900 to 2299; SQL knows the exact moment
        for n in range(node.scale):
            ticks *= 10
        ticks += moment.fraction // unit
        if moment.has_zone or node.is_utc:
            return self._write_ticks(node, ticks)
        return self._write_local(node, &moment)

    cdef bint _write_local(self, Node* node, const Moment* moment) noexcept nogil:
        """As ClickHouse writes it, so that it can be compared with what was read."""
        cdef char text[32]
        cdef int length = 19
        cdef int64_t fraction = moment.fraction
        cdef int n
        _put_digits(text, moment.year, 4)
        text[4] = text[7] = c'-'
        _put_digits(text + 5, moment.month, 2)
        _put_digits(text + 8, moment.day, 2)
        text[10] = c' '
        _put_digits(text + 11, moment.second_of_day // 3600, 2)
        text[13] = text[16] = c':'
        _put_digits(text + 14, moment.second_of_day // 60 % 60, 2)
        _put_digits(text + 17, moment.second_of_day % 60, 2)
        if node.scale > 0:
            text[19] = c'.'
            for n in range(9 - node.scale):
                fraction //= 10
            _put_digits(text + 20, fraction, node.scale)
            length = 20 + node.scale
        self._put_byte(1)
        self._put_byte(0)
        self._put_text(text, length)
        return True

    # --- values with others in them

    cdef bint _write_nested(self, Node* node, const Value* value) noexcept nogil:
        """`_at` goes through the value again, and back to where it was."""
        cdef const char* at = self._at
        cdef const char* end = self._end
        cdef Value inside = value[0]
        cdef bint ok
        if self._texts_are_json and (value.kind == STRING or value.kind == FIELD):
            self._at, self._end = value.start, value.end
            ok = self._read_value(&inside)
            self._skip_blanks()
            ok = ok and self._at == self._end
            if not ok and node.op != OP_RAW:
                self._at, self._end = at, end
                return self._fail(value)
            if not ok:
                inside = value[0]
        if node.op == OP_RAW:
            ok = self._write_raw(&inside)
        elif inside.kind == NULL_VALUE and node.nullable:
            self._put_missing(node)
            ok = True
        else:
            self._at, self._end = inside.start, inside.end
            self._depth += 1
            if node.op == OP_ARRAY:
                ok = self._write_array(node, &inside)
            elif node.op == OP_MAP:
                ok = self._write_map(node, &inside)
            else:
                ok = self._write_tuple(node, &inside)
            self._depth -= 1
        self._at, self._end = at, end
        return ok

    cdef bint _write_array(self, Node* node, const Value* value) noexcept nogil:
        cdef Value item
        cdef size_t place
        cdef uint32_t count = 0
        if value.kind != ARRAY:
            return self._fail(value)
        place = self._begin_items()
        self._at += 1
        self._skip_blanks()
        while self._at[0] != c']':
            if not self._read_value(&item) or not self._write(node.children[0], &item):
                return False
            count += 1
            self._skip_blanks()
            if self._at[0] == c',':
                self._at += 1
        self._end_items(place, count)
        return True

    cdef bint _write_map(self, Node* node, const Value* value) noexcept nogil:
        cdef Value name, item
        cdef size_t place
        cdef uint32_t count = 0
        if value.kind != OBJECT:
            return self._fail(value)
        place = self._begin_items()
        self._at += 1
        self._skip_blanks()
        while self._at[0] != c'}':
            if not self._read_name(&name) or not self._read_value(&item):
                return False
            if not self._write(node.children[0], &name):
                return False
            if not self._write(node.children[1], &item):
                return False
            count += 1
            self._skip_blanks()
            if self._at[0] == c',':
                self._at += 1
        self._end_items(place, count)
        return True

    cdef bint _write_tuple(self, Node* node, const Value* value) noexcept nogil:
        cdef int n
        for n in range(node.count):
            node.slots[n].kind = MISSING
        if value.kind == OBJECT and node.table != NULL:
            self._stamp += 1
            if not self._read_object(node.table, node.slots, self._stamp):
                return self._fail(value)
        elif value.kind != ARRAY or not self._read_items(node):
            return self._fail(value)
        for n in range(node.count):
            if not self._write(node.children[n], &node.slots[n]):
                return False
        return True

    cdef bint _read_items(self, Node* node) noexcept nogil:
        """Of an array that is a tuple: as many as it has elements."""
        cdef int count = 0
        self._at += 1
        self._skip_blanks()
        while self._at[0] != c']':
            if count == node.count or not self._read_value(&node.slots[count]):
                return False
            count += 1
            self._skip_blanks()
            if self._at[0] == c',':
                self._at += 1
        return count == node.count

    cdef bint _write_variant(self, Node* node, const Value* value) noexcept nogil:
        """For each alternative the value, if it can be one: SQL takes the first that fits."""
        cdef int n, kind
        cdef size_t before
        cdef bint some = value.kind == NULL_VALUE
        cdef Number number
        if value.kind == STRING:
            kind = STRINGS
        elif value.kind == FIELD:
            kind = NUMBERS if parse_number(value.start, value.end, &number) else STRINGS
        elif value.kind == NUMBER:
            kind = NUMBERS
        elif value.kind == OBJECT:
            kind = OBJECTS
        else:
            kind = ARRAYS if value.kind == ARRAY else BOOLS
        for n in range(node.count):
            before = self._used
            if value.kind == NULL_VALUE or not node.children[n].kinds & kind:
                self._put_byte(0)
                continue
            self._put_byte(1)
            if self._write(node.children[n].children[0], value):
                some = True
            else:
                self._used = before
                self._put_byte(0)
        return True if some else self._fail(value)

    cdef bint _write_raw(self, const Value* value) noexcept nogil:
        """As JSON: for types whose values may be anything."""
        cdef size_t before
        self._put_byte(0)
        if value.kind == STRING and not self._texts_are_json:
            self._put_text(value.start - 1, value.end - value.start + 2)
        elif value.kind == STRING or value.kind == FIELD:
            self._put_quoted(value)
        else:
            self._put_text(value.start, value.end - value.start)
        return True

    cdef void _put_quoted(self, const Value* value) noexcept nogil:
        """Text that is no JSON, as a JSON string."""
        cdef const char* at = value.start
        cdef const char* hex = b"0123456789abcdef"
        cdef uint64_t length = 2
        while at < value.end:
            if at[0] == c'"' or at[0] == c'\\':
                length += 2
            else:
                length += 6 if <uint8_t>at[0] < 0x20 else 1
            at += 1
        self._put_count(length)
        self._put_byte(c'"')
        at = value.start
        while at < value.end:
            if at[0] == c'"' or at[0] == c'\\':
                self._put_byte(c'\\')
            if <uint8_t>at[0] < 0x20:
                self._put(b"\\u00", 4)
                self._put_byte(hex[<uint8_t>at[0] >> 4])
                self._put_byte(hex[at[0] & 15])
            else:
                self._put_byte(<uint8_t>at[0])
            at += 1
        self._put_byte(c'"')


cdef void _put_digits(char* to, int64_t number, int count) noexcept nogil:
    cdef int n
    for n in range(count - 1, -1, -1):
        to[n] = c'0' + <char>(number % 10)
        number //= 10


cdef bint _is_compact_date(const Value* text) noexcept nogil:
    """Eight or fourteen digits, and nothing else."""
    cdef const char* at = text.start
    while at < text.end and is_digit(at[0]):
        at += 1
    return at == text.end and (text.end - text.start == 8 or text.end - text.start == 14)


cdef bint _is_word(const char* at, const char* end, const char* word, int length) noexcept nogil:
    """In letters of any size."""
    cdef int n
    if end - at != length:
        return False
    for n in range(length):
        if (at[n] | 0x20) != word[n]:
            return False
    return True
