# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""What every request begins with: its API key, version, correlation id and client id.

What must hold: the input is untrusted. Every read is checked against the end of the frame.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, uint8_t

from brokerhouse.protocol._bytes cimport bh_be16, bh_be32

from brokerhouse.protocol.decoder import MalformedMessage


cdef enum:
    FIXED_BYTES = 10  # key, version, correlation id, length of the client id


cdef class RequestHeader:
    """What every request begins with. `client_id` may be None."""

    cdef readonly int16_t api_key
    cdef readonly int16_t api_version
    cdef readonly int32_t correlation_id
    cdef readonly object client_id

    def __init__(
        self, int16_t api_key, int16_t api_version, int32_t correlation_id, client_id
    ):
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def _fields(self):
        return self.api_key, self.api_version, self.correlation_id, self.client_id

    def __eq__(self, other):
        if not isinstance(other, RequestHeader):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return "RequestHeader{!r}".format(self._fields())


def decode_head(bytes frame not None):
    """(`RequestHeader`, position after it). Raises `MalformedMessage` and `UnicodeDecodeError`."""
    cdef RequestHeader header = RequestHeader.__new__(RequestHeader)
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(frame)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(frame)
    cdef Py_ssize_t position = FIXED_BYTES
    cdef int16_t name_bytes
    if size < FIXED_BYTES:
        raise MalformedMessage("its header is cut")
    header.api_key = <int16_t>bh_be16(p)
    header.api_version = <int16_t>bh_be16(p + 2)
    header.correlation_id = <int32_t>bh_be32(p + 4)
    name_bytes = <int16_t>bh_be16(p + 8)
    if name_bytes >= 0:
        if name_bytes > size - FIXED_BYTES:
            raise MalformedMessage("the client id reaches beyond the frame")
        header.client_id = PyUnicode_DecodeUTF8(<const char *>p + FIXED_BYTES, name_bytes, NULL)
        position += name_bytes
    return header, position
