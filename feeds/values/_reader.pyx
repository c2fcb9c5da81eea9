# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads JSON and CSV: where in a record the values are that somebody wants.

A record is read once, from its first byte to its last; each byte is checked against the end of the
record. What nobody wants is only skipped. Nesting has a limit, because functions call themselves for it.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from brokerhouse.feeds.values._numbers cimport is_digit
from brokerhouse.feeds.values._plan cimport (
    ARRAY, FALSE_VALUE, FIELD, MISSING, NULL_VALUE, NUMBER, OBJECT, STRING, TRUE_VALUE, Field, Table,
    Value, find, free_table, new_table,
)


cdef class ValueReader:
    """`_row` is called for each object, line or value, with what was found in `_slots`."""

    def __cinit__(self, str kind, list columns, dict table, int slots, bint collects=False):
        self._collects = collects
        self._kept = []
        self._slot_count = slots
        self._slots = <Value*>calloc(max(slots, 1), sizeof(Value))
        if self._slots == NULL:
            raise MemoryError
        self._table = new_table(table)
        names = ", ".join(name for name, _, _, _ in columns)
        not_csv = f"not one line of CSV with the columns {names}".encode("utf-8", "replace")
        self._kept.append(not_csv)
        self._not_csv = <bytes>not_csv
        self._not_csv_bytes = min(len(not_csv), ERROR_BYTES - 1)

    def __dealloc__(self):
        cdef int n
        free(self._slots)
        free_table(self._table)
        free(self._scratch)
        for n in range(self._unknown_count):
            free(self._unknown[n])

    def take_unknown(self):
        cdef int n
        found = []
        for n in range(self._unknown_count):
            found.append(self._unknown[n][: self._unknown_lengths[n]])
            free(self._unknown[n])
        self._unknown_count = 0
        return found

    cdef bint _row(self, int64_t offset) noexcept nogil:
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

    cdef void _skip_blanks(self) noexcept nogil:
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

    cdef bint _skip_digits(self) noexcept nogil:
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
