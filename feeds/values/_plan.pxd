# cython: language_level=3, cdivision=True
"""What the scanner knows of a table: which fields it wants, and what it does with their values."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

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


cdef inline int hash_of(const char* name, int length) noexcept nogil:
    cdef uint32_t value = 2166136261
    cdef int n
    for n in range(length):
        value = (value ^ <uint8_t>name[n]) * <uint32_t>16777619
    return <int>(value & 0x7FFFFFFF)


cdef inline int find(const Table* table, const char* name, int length, int guess) noexcept nogil:
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


cdef Table* new_table(dict spec) except NULL
cdef void free_table(Table* table) noexcept
cdef Node* new_node(object spec) except NULL
cdef void free_node(Node* node) noexcept
