# cython: language_level=3, embedsignature=True, boundscheck=False, wraparound=False, cdivision=True
"""Values of records as rows of ClickHouse's RowBinary. See `_scan.pyi`.

A record is read once. What is found for each column is remembered as a place in the record, and the
columns are written in their order when the object has ended:

    record -> rows:    _offset Int64 | _error String | column | column | ...
    bad record -> row: _offset Int64 | why           | nothing | nothing | ...

What no column wants is only skipped. Sizes are checked against the end of the value at each byte;
nesting has a limit, because functions call themselves for it.
"""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from coordinator.feeds.values._moments cimport Moment, days_since_1970, parse_moment
from coordinator.feeds.values._numbers cimport (
    PLAIN_MAX,
    Number,
    fit_double,
    fit_float,
    is_digit,
    parse_number,
    plain_text,
    scaled,
    whole_number,
)

cdef enum:
    DEPTH_MAX = 500
    SHOWN_BYTES = 100
    ERROR_BYTES = 400
    UNKNOWN_MAX = 1000
    MARK_BYTES = 16
    COUNT_BYTES = 5  # a count that is written when its items are

cdef enum Kind:
    MISSING, NULL_VALUE, STRING, NUMBER, TRUE_VALUE, FALSE_VALUE, OBJECT, ARRAY, FIELD

cdef struct Value:
    # A STRING without its quotes. A FIELD is one of CSV that is not in quotes.
    int kind
    bint escaped
    const char* start
    const char* end

cdef enum Op:
    OP_TEXT, OP_FIXED, OP_RAW, OP_DECIMAL, OP_BOOL, OP_INT, OP_UINT, OP_FLOAT32, OP_FLOAT64,
    OP_DAYS, OP_MOMENT, OP_ARRAY, OP_MAP, OP_TUPLE, OP_VARIANT, OP_OPTIONAL

_OPS = {
    "text": OP_TEXT, "fixed": OP_FIXED, "raw": OP_RAW, "decimal": OP_DECIMAL, "bool": OP_BOOL,
    "int": OP_INT, "uint": OP_UINT, "float32": OP_FLOAT32, "float64": OP_FLOAT64,
    "days": OP_DAYS, "moment": OP_MOMENT, "array": OP_ARRAY, "map": OP_MAP, "tuple": OP_TUPLE,
    "variant": OP_VARIANT, "optional": OP_OPTIONAL,
}

cdef int64_t LAST_SECOND_IN_NS = 9223372036

cdef enum:
    UNIT_DAYS = 100  # others are the power of ten that a second has

cdef enum:
    NUMBERS = 1, STRINGS = 2, BOOLS = 4, OBJECTS = 8, ARRAYS = 16

cdef struct Field:
    char* name
    int length
    int slot         # where the value goes; -1: only what is in it is wanted
    uint64_t stamp   # of the object in which it came last
    Table* table     # what is wanted of an object in it; NULL: nothing

cdef struct Table:
    int count
    Field* fields
    int* places  # a hash table of numbers of fields; -1 is free
    int mask

cdef struct Node:
    int op
    bint nullable
    int size       # bytes of an integer, a date, a FixedString
    int64_t low
    uint64_t high
    int scale      # of a DateTime64
    int unit       # of numbers: a power of ten, or UNIT_DAYS
    bint has_unit  # somebody has said so: digits in a text have it, too
    bint is_utc    # a text without a zone is UTC
    int kinds      # of JSON that an alternative of a Variant takes
    int count
    Node** children
    Table* table   # of a Tuple with names
    Value* slots   # of a Tuple


cdef int hash_of(const char* name, int length) noexcept nogil:
    cdef uint32_t value = 2166136261
    cdef int n
    for n in range(length):
        value = (value ^ <uint8_t>name[n]) * <uint32_t>16777619
    return <int>(value & 0x7FFFFFFF)


cdef int find(const Table* table, const char* name, int length, int guess) noexcept nogil:
    """The number of a field; -1 if the table has none of this name. `guess`: looked at first."""
    cdef int place, number
    if guess < table.count:
        if table.fields[guess].length == length:
            if memcmp(table.fields[guess].name, name, length) == 0:
                return guess
    place = hash_of(name, length) & table.mask
    while True:
        number = table.places[place]
        if number < 0:
            return -1
        if table.fields[number].length == length:
            if memcmp(table.fields[number].name, name, length) == 0:
                return number
        place = (place + 1) & table.mask


cdef Table* new_table(dict spec) except NULL:
    """`spec`: slot or -1, and such a dictionary or None, by name."""
    cdef Table* table = <Table*>calloc(1, sizeof(Table))
    cdef int size = 4, place, number = 0
    cdef bytes encoded
    if table == NULL:
        raise MemoryError
    while size < 2 * len(spec) + 2:
        size *= 2
    table.mask = size - 1
    table.fields = <Field*>calloc(max(len(spec), 1), sizeof(Field))
    table.places = <int*>malloc(size * sizeof(int))
    if table.fields == NULL or table.places == NULL:
        raise MemoryError
    memset(table.places, 0xFF, size * sizeof(int))
    for name, (slot, below) in spec.items():
        encoded = name.encode("utf-8", "surrogateescape")
        table.fields[number].name = <char*>malloc(max(len(encoded), 1))
        if table.fields[number].name == NULL:
            raise MemoryError
        memcpy(table.fields[number].name, <const char*>encoded, len(encoded))
        table.fields[number].length = len(encoded)
        table.fields[number].slot = slot
        table.fields[number].table = new_table(below) if below is not None else NULL
        table.count = number + 1
        place = hash_of(table.fields[number].name, len(encoded)) & table.mask
        while table.places[place] >= 0:
            place = (place + 1) & table.mask
        table.places[place] = number
        number += 1
    return table


cdef void free_table(Table* table) noexcept:
    cdef int n
    if table == NULL:
        return
    for n in range(table.count):
        free(table.fields[n].name)
        free_table(table.fields[n].table)
    free(table.fields)
    free(table.places)
    free(table)


cdef Node* new_node(object spec) except NULL:
    """`spec`: a `ScanNode`."""
    cdef Node* node = <Node*>calloc(1, sizeof(Node))
    cdef int n
    if node == NULL:
        raise MemoryError
    node.op = _OPS[spec.op]
    node.nullable = spec.nullable
    node.size = spec.size
    node.low = spec.low
    node.high = spec.high
    node.scale = spec.scale
    node.unit = spec.unit
    node.has_unit = spec.has_unit
    node.is_utc = spec.is_utc
    node.kinds = spec.kinds
    node.count = len(spec.children)
    node.children = <Node**>calloc(max(node.count, 1), sizeof(Node*))
    if node.children == NULL:
        raise MemoryError
    for n in range(node.count):
        node.children[n] = new_node(spec.children[n])
    if node.op == OP_TUPLE:
        node.slots = <Value*>calloc(max(node.count, 1), sizeof(Value))
        if node.slots == NULL:
            raise MemoryError
        if spec.names:
            node.table = new_table({name: (place, None) for place, name in enumerate(spec.names)})
    return node


cdef void free_node(Node* node) noexcept:
    cdef int n
    if node == NULL:
        return
    for n in range(node.count):
        free_node(node.children[n])
    free(node.children)
    free(node.slots)
    free_table(node.table)
    free(node)


cdef class RowScanner:
    """See `_scan.pyi`."""

    cdef Node** _columns
    cdef char** _labels      # what an error begins with: the column's name
    cdef char** _types
    cdef int _count
    cdef int* _slots_of      # where each column's value is
    cdef Value* _slots
    cdef int _slot_count
    cdef Table* _table
    cdef uint64_t _stamp
    cdef bint _texts_are_json  # arrays and objects come as text: CSV and raw
    cdef bint _collects
    cdef int _kind           # 0 JSON, 1 CSV, 2 raw
    cdef list _kept          # what the pointers to names point to
    cdef const char* _not_csv
    cdef int _not_csv_bytes
    # The value that is read now.
    cdef const char* _begin
    cdef const char* _at
    cdef const char* _end
    cdef int _depth
    # What is written.
    cdef char* _out
    cdef size_t _used
    cdef size_t _room
    cdef bint _no_memory
    cdef char* _scratch
    cdef size_t _scratch_used
    cdef size_t _scratch_room
    cdef char _error[ERROR_BYTES]
    cdef int _error_bytes
    cdef Value _bad
    cdef char* _unknown[UNKNOWN_MAX]
    cdef int _unknown_lengths[UNKNOWN_MAX]
    cdef int _unknown_count

    def __cinit__(self, str kind, list columns, dict table, int slots, bint collects=False):
        cdef int n
        self._kind = {"json": 0, "csv": 1, "raw": 2}[kind]
        self._texts_are_json = self._kind != 0
        self._collects = collects
        self._kept = []
        self._count = len(columns)
        self._columns = <Node**>calloc(max(self._count, 1), sizeof(Node*))
        self._labels = <char**>calloc(max(self._count, 1), sizeof(char*))
        self._types = <char**>calloc(max(self._count, 1), sizeof(char*))
        self._slots_of = <int*>calloc(max(self._count, 1), sizeof(int))
        self._slot_count = slots
        self._slots = <Value*>calloc(max(slots, 1), sizeof(Value))
        if not (self._columns and self._labels and self._types and self._slots_of
                and self._slots):
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
        names = ", ".join(name for name, _, _, _ in columns)
        not_csv = f"not one line of CSV with the columns {names}".encode("utf-8", "replace")
        self._kept.append(not_csv)
        self._not_csv = <bytes>not_csv
        self._not_csv_bytes = min(len(not_csv), ERROR_BYTES - 1)
        self._table = new_table(table)

    def __dealloc__(self):
        cdef int n
        if self._columns != NULL:
            for n in range(self._count):
                free_node(self._columns[n])
        free(self._columns)
        free(self._labels)
        free(self._types)
        free(self._slots_of)
        free(self._slots)
        free_table(self._table)
        free(self._out)
        free(self._scratch)
        for n in range(self._unknown_count):
            free(self._unknown[n])

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

    def take_unknown(self):
        cdef int n
        found = []
        for n in range(self._unknown_count):
            found.append(self._unknown[n][: self._unknown_lengths[n]])
            free(self._unknown[n])
        self._unknown_count = 0
        return found

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

    # --- JSON

    cdef bint _json(self, int64_t offset) noexcept nogil:
        cdef Value other
        if self._end - self._at >= 3 and memcmp(self._at, b"\xef\xbb\xbf", 3) == 0:
            self._at += 3
        self._skip_blanks()
        if self._at < self._end and self._at[0] == c'{':
            return self._json_row(offset) and self._json_ends()
        if self._at == self._end or self._at[0] != c'[':
            return self._read_value(&other) and self._json_ends() and self._no_rows()
        self._at += 1
        self._skip_blanks()
        if self._at < self._end and self._at[0] == c']':
            self._at += 1
            return self._json_ends()
        while True:
            self._skip_blanks()
            if self._at < self._end and self._at[0] != c'{':
                return self._read_value(&other) and self._no_rows()
            if not self._json_row(offset):
                return False
            self._skip_blanks()
            if self._at == self._end:
                return self._not_json()
            if self._at[0] == c']':
                self._at += 1
                return self._json_ends()
            if self._at[0] != c',':
                return self._not_json()
            self._at += 1

    cdef bint _json_row(self, int64_t offset) noexcept nogil:
        cdef int n
        for n in range(self._slot_count):
            self._slots[n].kind = MISSING
        self._stamp += 1
        return self._read_object(self._table, self._slots, self._stamp) and self._row(offset)

    cdef bint _json_ends(self) noexcept nogil:
        self._skip_blanks()
        return True if self._at == self._end else self._not_json()

    cdef bint _no_rows(self) noexcept nogil:
        self._set_error(b"neither an object nor an array of objects", 41)
        return False

    cdef bint _not_json(self) noexcept nogil:
        cdef char text[64]
        cdef int length = 0, n, digits = 0
        cdef long place = self._at - self._begin
        cdef long rest = place
        if self._at >= self._end:
            self._set_error(b"not valid JSON: it ends too early", 33)
            return False
        memcpy(text, b"not valid JSON at byte ", 23)
        while True:
            digits += 1
            rest //= 10
            if rest == 0:
                break
        for n in range(digits):
            text[23 + digits - 1 - n] = c'0' + <char>(place % 10)
            place //= 10
        self._set_error(text, 23 + digits)
        return False

    cdef inline void _skip_blanks(self) noexcept nogil:
        while self._at < self._end and (
            self._at[0] == c' ' or self._at[0] == c'\n' or self._at[0] == c'\t'
            or self._at[0] == c'\r'
        ):
            self._at += 1

    cdef bint _read_string(self, Value* value) noexcept nogil:
        """At a quote. Afterwards behind the one that ends the string."""
        self._at += 1
        value.kind = STRING
        value.escaped = False
        value.start = self._at
        while self._at < self._end:
            if self._at[0] == c'"':
                value.end = self._at
                self._at += 1
                return True
            if self._at[0] == c'\\':
                value.escaped = True
                self._at += 1
                if self._at == self._end:
                    break
            self._at += 1
        self._at = self._end
        return self._not_json()

    cdef bint _read_number(self, Value* value) noexcept nogil:
        value.kind = NUMBER
        value.start = self._at
        if self._at[0] == c'-':
            self._at += 1
            if self._at < self._end and self._at[0] == c'I':
                if not self._read_word(b"Infinity", 8):
                    return False
                value.end = self._at
                return True
        if self._at == self._end or not is_digit(self._at[0]):
            return self._not_json()
        if self._at[0] == c'0':
            self._at += 1
        else:
            self._skip_digits()
        if self._at < self._end and self._at[0] == c'.':
            self._at += 1
            if not self._skip_digits():
                return self._not_json()
        if self._at < self._end and (self._at[0] == c'e' or self._at[0] == c'E'):
            self._at += 1
            if self._at < self._end and (self._at[0] == c'+' or self._at[0] == c'-'):
                self._at += 1
            if not self._skip_digits():
                return self._not_json()
        value.end = self._at
        return True

    cdef inline bint _skip_digits(self) noexcept nogil:
        cdef const char* start = self._at
        while self._at < self._end and is_digit(self._at[0]):
            self._at += 1
        return self._at > start

    cdef bint _read_word(self, const char* word, int length) noexcept nogil:
        if self._end - self._at < length or memcmp(self._at, word, length) != 0:
            return self._not_json()
        self._at += length
        return True

    cdef bint _read_value(self, Value* value) noexcept nogil:
        """Of any kind; of an array or object, its place and that it is whole."""
        cdef char c
        self._skip_blanks()
        if self._at == self._end:
            return self._not_json()
        c = self._at[0]
        if c == c'"':
            return self._read_string(value)
        if c == c'-' or is_digit(c):
            return self._read_number(value)
        value.escaped = False
        value.start = self._at
        if c == c'{' or c == c'[':
            value.kind = OBJECT if c == c'{' else ARRAY
            if not self._skip_nested(c):
                return False
        elif c == c't':
            value.kind = TRUE_VALUE
            if not self._read_word(b"true", 4):
                return False
        elif c == c'f':
            value.kind = FALSE_VALUE
            if not self._read_word(b"false", 5):
                return False
        elif c == c'N' or c == c'I':  # as Python writes them
            value.kind = NUMBER
            if not (self._read_word(b"NaN", 3) if c == c'N' else self._read_word(b"Infinity", 8)):
                return False
        else:
            value.kind = NULL_VALUE
            if not self._read_word(b"null", 4):
                return False
        value.end = self._at
        return True

    cdef bint _skip_nested(self, char opened) noexcept nogil:
        cdef char closes = c'}' if opened == c'{' else c']'
        cdef Value inside
        if not self._deeper():
            return False
        self._at += 1
        self._skip_blanks()
        if self._at < self._end and self._at[0] == closes:
            self._at += 1
            self._depth -= 1
            return True
        while True:
            if opened == c'{' and not self._read_name(&inside):
                return False
            if not self._read_value(&inside):
                return False
            self._skip_blanks()
            if self._at == self._end:
                return self._not_json()
            if self._at[0] == closes:
                self._at += 1
                self._depth -= 1
                return True
            if self._at[0] != c',':
                return self._not_json()
            self._at += 1

    cdef bint _deeper(self) noexcept nogil:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._set_error(b"nested more than 500 times", 26)
            return False
        return True

    cdef bint _read_name(self, Value* name) noexcept nogil:
        """A field's name and the colon behind it."""
        self._skip_blanks()
        if self._at == self._end or self._at[0] != c'"':
            return self._not_json()
        if not self._read_string(name):
            return False
        self._skip_blanks()
        if self._at == self._end or self._at[0] != c':':
            return self._not_json()
        self._at += 1
        return True

    cdef bint _read_object(self, Table* table, Value* slots, uint64_t stamp) noexcept nogil:
        """Remember the places of what is wanted of the object that begins here."""
        cdef Value name, value
        cdef Field* field
        cdef int number, guess = 0
        cdef size_t before
        if not self._deeper():
            return False
        self._at += 1
        self._skip_blanks()
        if self._at < self._end and self._at[0] == c'}':
            self._at += 1
            self._depth -= 1
            return True
        while True:
            if not self._read_name(&name):
                return False
            before = self._scratch_used
            if name.escaped and not self._decode(&name):
                number = -1  # half of a surrogate pair is in no column's name
            else:
                number = find(table, name.start, name.end - name.start, guess)
                self._scratch_used = before
            if number < 0:
                if self._collects and table == self._table and not name.escaped:
                    self._note_unknown(name.start, name.end - name.start)
                if not self._read_value(&value):
                    return False
            else:
                guess = number + 1
                field = &table.fields[number]
                if field.stamp == stamp:
                    return self._comes_twice(&name)
                field.stamp = stamp
                self._skip_blanks()
                if field.table != NULL and self._at < self._end and self._at[0] == c'{':
                    value.kind = OBJECT
                    value.escaped = False
                    value.start = self._at
                    if not self._read_object(field.table, slots, stamp):
                        return False
                    value.end = self._at
                elif not self._read_value(&value):
                    return False
                if field.slot >= 0:
                    slots[field.slot] = value
            self._skip_blanks()
            if self._at == self._end:
                return self._not_json()
            if self._at[0] == c'}':
                self._at += 1
                self._depth -= 1
                return True
            if self._at[0] != c',':
                return self._not_json()
            self._at += 1

    cdef bint _comes_twice(self, const Value* name) noexcept nogil:
        self._error_bytes = 0
        self._add_error(b"the field ", 10)
        self._add_shown(name)
        self._add_error(b" comes twice", 12)
        return False

    cdef void _note_unknown(self, const char* name, int length) noexcept nogil:
        cdef int n
        for n in range(self._unknown_count):
            if self._unknown_lengths[n] == length and memcmp(self._unknown[n], name, length) == 0:
                return
        if self._unknown_count == UNKNOWN_MAX:
            return
        self._unknown[self._unknown_count] = <char*>malloc(max(length, 1))
        if self._unknown[self._unknown_count] == NULL:
            return
        memcpy(self._unknown[self._unknown_count], name, length)
        self._unknown_lengths[self._unknown_count] = length
        self._unknown_count += 1

    # --- CSV

    cdef bint _csv(self, int64_t offset) noexcept nogil:
        """One line: as many fields as there are columns."""
        cdef int n = 0
        cdef Value* value
        if self._end > self._at and (self._end - 1)[0] == c'\n':
            self._end -= 1
            if self._end > self._at and (self._end - 1)[0] == c'\r':
                self._end -= 1
        while True:
            if n == self._slot_count:
                return self._no_csv()
            value = &self._slots[n]
            if not self._csv_field(value):
                return self._no_csv()
            n += 1
            if self._at == self._end:
                break
            if self._at[0] != c',':
                return self._no_csv()
            self._at += 1
        return self._row(offset) if n == self._slot_count else self._no_csv()

    cdef bint _csv_field(self, Value* value) noexcept nogil:
        cdef const char* start = self._at
        cdef bint doubled = False
        value.escaped = False
        while self._at < self._end and (self._at[0] == c' ' or self._at[0] == c'\t'):
            self._at += 1
        if self._at < self._end and self._at[0] == c'"':
            self._at += 1
            value.kind = STRING
            value.start = self._at
            while True:
                while self._at < self._end and self._at[0] != c'"':
                    self._at += 1
                if self._at == self._end:
                    return False
                if self._at + 1 < self._end and self._at[1] == c'"':
                    doubled = True
                    self._at += 2
                    continue
                break
            value.end = self._at
            self._at += 1
            while self._at < self._end and (self._at[0] == c' ' or self._at[0] == c'\t'):
                self._at += 1
            return self._halve_quotes(value) if doubled else True
        self._at = start
        while self._at < self._end and self._at[0] != c',':
            if self._at[0] == c'\n' or self._at[0] == c'\r':
                return False
            self._at += 1
        value.kind = FIELD
        value.start = start
        value.end = self._at
        if value.start == value.end:
            value.kind = MISSING
        elif value.end - value.start == 2 and memcmp(value.start, b"\\N", 2) == 0:
            value.kind = NULL_VALUE
        return True

    cdef bint _halve_quotes(self, Value* value) noexcept nogil:
        cdef const char* at = value.start
        cdef char* to = self._scratch_for(value.end - value.start)
        if to == NULL:
            return False
        value.start = to
        while at < value.end:
            to[0] = at[0]
            to += 1
            at += 2 if at[0] == c'"' else 1
        value.end = to
        return True

    cdef bint _no_csv(self) noexcept nogil:
        self._set_error(self._not_csv, self._not_csv_bytes)
        return False

    # --- text

    cdef bint _make_scratch(self, size_t room) noexcept nogil:
        """Memory for text that is not in the record as it is: at most twice as long."""
        self._scratch_used = 0
        if self._scratch_room < room or self._scratch_room > room + (1 << 20):
            free(self._scratch)
            self._scratch = <char*>malloc(room)
            self._scratch_room = room
            if self._scratch == NULL:
                self._scratch_room = 0
                self._no_memory = True
                return False
        return True

    cdef char* _scratch_for(self, size_t size) noexcept nogil:
        cdef char* place = self._scratch + self._scratch_used
        if self._scratch_room - self._scratch_used < size:
            return NULL
        self._scratch_used += size
        return place

    cdef bint _decode(self, Value* value) noexcept nogil:
        """A JSON string without its escapes. False for half of a surrogate pair."""
        cdef const char* at = value.start
        cdef uint32_t code, second
        cdef char c
        cdef char* start = self._scratch_for(value.end - value.start)
        cdef char* to = start
        if start == NULL:
            return False
        while at < value.end:
            if at[0] != c'\\':
                to[0] = at[0]
                to += 1
                at += 1
                continue
            c = at[1]
            at += 2
            if c == c'u':
                if not self._hex(at, value.end, &code):
                    return False
                at += 4
                if 0xD800 <= code < 0xE000:
                    if code >= 0xDC00 or value.end - at < 6 or at[0] != c'\\' or at[1] != c'u':
                        return False
                    if not self._hex(at + 2, value.end, &second) or not 0xDC00 <= second < 0xE000:
                        return False
                    code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00)
                    at += 6
                to += self._utf8(code, to)
                continue
            if c == c'n':
                c = c'\n'
            elif c == c't':
                c = c'\t'
            elif c == c'r':
                c = c'\r'
            elif c == c'b':
                c = 8
            elif c == c'f':
                c = 12
            elif c != c'"' and c != c'\\' and c != c'/':
                return False
            to[0] = c
            to += 1
        value.start = start
        value.end = to
        value.escaped = False
        return True

    cdef bint _hex(self, const char* at, const char* end, uint32_t* code) noexcept nogil:
        cdef int n
        cdef char c
        code[0] = 0
        if end - at < 4:
            return False
        for n in range(4):
            c = at[n]
            if is_digit(c):
                code[0] = code[0] * 16 + (c - c'0')
            elif c'a' <= c <= c'f':
                code[0] = code[0] * 16 + (c - c'a' + 10)
            elif c'A' <= c <= c'F':
                code[0] = code[0] * 16 + (c - c'A' + 10)
            else:
                return False
        return True

    cdef int _utf8(self, uint32_t code, char* to) noexcept nogil:
        if code < 0x80:
            to[0] = <char>code
            return 1
        if code < 0x800:
            to[0] = <char>(0xC0 | (code >> 6))
            to[1] = <char>(0x80 | (code & 0x3F))
            return 2
        if code < 0x10000:
            to[0] = <char>(0xE0 | (code >> 12))
            to[1] = <char>(0x80 | ((code >> 6) & 0x3F))
            to[2] = <char>(0x80 | (code & 0x3F))
            return 3
        to[0] = <char>(0xF0 | (code >> 18))
        to[1] = <char>(0x80 | ((code >> 12) & 0x3F))
        to[2] = <char>(0x80 | ((code >> 6) & 0x3F))
        to[3] = <char>(0x80 | (code & 0x3F))
        return 4

    # --- errors

    cdef void _set_error(self, const char* text, int length) noexcept nogil:
        self._error_bytes = 0
        self._add_error(text, length)

    cdef void _add_error(self, const char* text, int length) noexcept nogil:
        length = min(length, ERROR_BYTES - self._error_bytes)
        memcpy(self._error + self._error_bytes, text, length)
        self._error_bytes += length

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

    cdef void _add_shown(self, const Value* value) noexcept nogil:
        """The beginning of a value, as text that is valid UTF-8."""
        cdef Value shown = value[0]
        cdef const char* at
        cdef const char* end
        cdef int length, n, cut = 0
        if shown.kind == MISSING:
            self._add_error(b"nothing", 7)
            return
        if shown.kind == STRING and shown.escaped:
            self._decode(&shown)  # or as it is
        at = shown.start
        end = shown.end
        while at < end and cut < SHOWN_BYTES:
            length = _utf8_length(at, end)
            if length == 0:
                self._add_error(b"?", 1)
                at += 1
            else:
                self._add_error(at, length)
                at += length
            cut += 1

    # --- what is written

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
            if not parse_number(text.start, text.end, &number):
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
        if not self._is_number(value, &text) or not parse_number(text.start, text.end, &number):
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
        elif not parse_number(text.start, text.end, &number):
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
        if not parse_number(text.start, text.end, &number):
            return False
        # In CSV, 20240101 may be a day or a number: nobody knows.
        return node.has_unit or not _is_compact_date(text)

    cdef bint _write_ticks_of(self, Node* node, const Value* text) noexcept nogil:
        cdef Number number
        cdef int64_t ticks, seconds
        cdef int unit = node.unit
        if not parse_number(text.start, text.end, &number):
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
        if value.kind == STRING or value.kind == FIELD:
            kind = STRINGS
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


cdef int _utf8_length(const char* at, const char* end) noexcept nogil:
    """Bytes of the character there; 0 if there is none."""
    cdef uint8_t first = <uint8_t>at[0]
    cdef uint8_t second
    cdef int length, n
    if first < 0x80:
        return 1
    length = 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4 if 0xF0 <= first < 0xF5 else 0
    if length == 0 or end - at < length:
        return 0
    second = <uint8_t>at[1]
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return 0
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0
    for n in range(1, length):
        if <uint8_t>at[n] & 0xC0 != 0x80:
            return 0
    return length
