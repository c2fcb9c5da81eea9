# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Plans of the scanner, from what Python says (plan.py)."""

from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

_OPS = {
    "text": OP_TEXT, "fixed": OP_FIXED, "raw": OP_RAW, "decimal": OP_DECIMAL, "bool": OP_BOOL,
    "int": OP_INT, "uint": OP_UINT, "float32": OP_FLOAT32, "float64": OP_FLOAT64,
    "days": OP_DAYS, "moment": OP_MOMENT, "array": OP_ARRAY, "map": OP_MAP, "tuple": OP_TUPLE,
    "variant": OP_VARIANT, "optional": OP_OPTIONAL,
}


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
