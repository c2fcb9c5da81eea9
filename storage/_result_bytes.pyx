# cython: language_level=3, embedsignature=True
"""The bytes of a result of chDB, without a copy."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer


@cython.no_gc  # it refers to nothing that refers to it, and must not be cleared while it is used
cdef class ResultBytes:
    """A buffer that keeps its result alive. chDB's own views do not: the memory is freed first."""

    cdef object _wrapper
    cdef Py_buffer _bytes

    def __cinit__(self, result not None):
        self._wrapper = result.get_memview()
        PyObject_GetBuffer(self._wrapper.view(), &self._bytes, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self._bytes)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._bytes.buf, self._bytes.len, 1, flags)


def result_bytes(result not None):
    """See `_result_bytes.pyi`."""
    return memoryview(ResultBytes(result))
