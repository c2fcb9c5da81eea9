# cython: language_level=3, cdivision=True
"""Reads JSON and CSV: where in a record the values are that somebody wants."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from brokerhouse.feeds.values._plan cimport Table, Value

cdef enum:
    DEPTH_MAX = 500
    SHOWN_BYTES = 100
    ERROR_BYTES = 400
    UNKNOWN_MAX = 1000


cdef class ValueReader:
    cdef Table* _table
    cdef Value* _slots
    cdef int _slot_count
    cdef uint64_t _stamp
    cdef const char* _not_csv  # why a line is no row
    cdef int _not_csv_bytes
    cdef list _kept            # what pointers to text of Python point to
    # The value that is read now.
    cdef const char* _begin
    cdef const char* _at
    cdef const char* _end
    cdef int _depth
    # Text that is not in the record as it is: without escapes.
    cdef char* _scratch
    cdef size_t _scratch_used
    cdef size_t _scratch_room
    cdef bint _no_memory
    # Why a record is no row.
    cdef char _error[ERROR_BYTES]
    cdef int _error_bytes
    # Fields that no column has.
    cdef bint _collects
    cdef char* _unknown[UNKNOWN_MAX]
    cdef int _unknown_lengths[UNKNOWN_MAX]
    cdef int _unknown_count

    cdef bint _row(self, int64_t offset) noexcept nogil
    cdef bint _json(self, int64_t offset) noexcept nogil
    cdef bint _json_row(self, int64_t offset) noexcept nogil
    cdef bint _json_ends(self) noexcept nogil
    cdef bint _no_rows(self) noexcept nogil
    cdef bint _not_json(self) noexcept nogil
    cdef void _skip_blanks(self) noexcept nogil
    cdef bint _read_string(self, Value* value) noexcept nogil
    cdef bint _read_number(self, Value* value) noexcept nogil
    cdef bint _skip_digits(self) noexcept nogil
    cdef bint _read_word(self, const char* word, int length) noexcept nogil
    cdef bint _read_value(self, Value* value) noexcept nogil
    cdef bint _skip_nested(self, char opened) noexcept nogil
    cdef bint _deeper(self) noexcept nogil
    cdef bint _read_name(self, Value* name) noexcept nogil
    cdef bint _read_object(self, Table* table, Value* slots, uint64_t stamp) noexcept nogil
    cdef bint _comes_twice(self, const Value* name) noexcept nogil
    cdef void _note_unknown(self, const char* name, int length) noexcept nogil
    cdef bint _csv(self, int64_t offset) noexcept nogil
    cdef bint _csv_field(self, Value* value) noexcept nogil
    cdef bint _halve_quotes(self, Value* value) noexcept nogil
    cdef bint _no_csv(self) noexcept nogil
    cdef bint _make_scratch(self, size_t room) noexcept nogil
    cdef char* _scratch_for(self, size_t size) noexcept nogil
    cdef bint _decode(self, Value* value) noexcept nogil
    cdef bint _hex(self, const char* at, const char* end, uint32_t* code) noexcept nogil
    cdef int _utf8(self, uint32_t code, char* to) noexcept nogil
    cdef void _set_error(self, const char* text, int length) noexcept nogil
    cdef void _add_error(self, const char* text, int length) noexcept nogil
    cdef void _add_shown(self, const Value* value) noexcept nogil
