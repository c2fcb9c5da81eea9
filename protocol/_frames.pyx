# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""Cuts a byte stream into frames: a 4-byte big-endian length, then that many bytes.

The length is only a claim. Memory grows with the bytes that were received, never with the length
that was claimed, and a length above the limit ends the connection before any of the frame is read.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from brokerhouse.protocol._bytes cimport bh_be32


cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **bytes, Py_ssize_t size) except -1
    object PyMemoryView_FromMemory(char *start, Py_ssize_t size, int flags)
    void Py_CLEAR(PyObject *reference)


cdef enum:
    LENGTH_BYTES = 4
    FIRST_BYTES = 4096  # of a frame that arrives in parts; later GROWTH times of what is there
    GROWTH = 4  # pages that nothing was written to take no memory
    PLACE_MIN_BYTES = 65536  # for less than this, a place of its own is not worth its object


class FrameError(Exception):
    """The stream cannot come from a Kafka client; nothing after this point can be trusted."""


cdef class FrameReader:
    """Collects received bytes and returns whole frames, in order.

    A frame that arrives in parts is put together in the object that is returned. It grows with what
    has arrived, so a claimed length takes no memory.
    """

    cdef int64_t _max_bytes
    cdef uint8_t[LENGTH_BYTES] _head  # of the next frame
    cdef Py_ssize_t _head_bytes
    cdef PyObject *_frame  # NULL: no frame has begun
    cdef Py_ssize_t _length
    cdef Py_ssize_t _filled

    def __init__(self, int64_t max_bytes):
        """`max_bytes` is the longest frame accepted (Kafka's `socket.request.max.bytes`)."""
        self._max_bytes = max_bytes

    def __dealloc__(self):
        Py_XDECREF(self._frame)

    @property
    def buffered(self):
        """Bytes of a frame that is not complete yet."""
        return self._head_bytes + (0 if self._frame == NULL else LENGTH_BYTES + self._filled)

    def place(self, Py_ssize_t max_bytes):
        """Where what comes next may be received, for `received`; None if anywhere, for `feed`.

        It has `max_bytes` at most, and nobody may write to it after the next call of a method here.
        """
        cdef Py_ssize_t size
        if self._frame == NULL:
            return None
        self._reserve(self._filled + 1)
        size = min(max_bytes, self._room())
        if size < PLACE_MIN_BYTES:
            return None
        return PyMemoryView_FromMemory(
            PyBytes_AS_STRING(<object>self._frame) + self._filled, size, PyBUF_WRITE
        )

    def received(self, Py_ssize_t size):
        """So many bytes are in the `place`. The frame that they complete, if they do, in a list."""
        cdef list frames = []
        if self._frame == NULL or not 0 <= size <= self._room():
            raise ValueError("these bytes were not received in the place")
        self._filled += size
        if self._filled == self._length:
            frames.append(self._taken())
        return frames

    def feed(self, data, size=None):
        """The frames that `data`, or its first `size` bytes, completes. Raises `FrameError`.

        `data` may change afterwards.
        """
        cdef Py_buffer view
        cdef Py_ssize_t n
        cdef list frames = []
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            n = view.len if size is None else size
            if not 0 <= n <= view.len:
                raise ValueError("the data has fewer bytes")
            self._feed(<const uint8_t *>view.buf, n, frames)
        finally:
            PyBuffer_Release(&view)
        return frames

    cdef int _feed(self, const uint8_t *p, Py_ssize_t size, list frames) except -1:
        cdef Py_ssize_t n
        cdef int64_t length
        while size:
            if self._frame == NULL:
                n = min(size, LENGTH_BYTES - self._head_bytes)
                memcpy(&self._head[self._head_bytes], p, n)
                self._head_bytes += n
                p += n
                size -= n
                if self._head_bytes < LENGTH_BYTES:
                    return 0
                length = <int32_t>bh_be32(self._head)
                if not 0 <= length <= self._max_bytes:
                    raise FrameError(
                        f"a request has {length} bytes, at most {self._max_bytes} are allowed"
                    )
                self._head_bytes = 0
                if size >= length:  # as a rule
                    frames.append(PyBytes_FromStringAndSize(<const char *>p, length))
                    p += length
                    size -= length
                    continue
                self._begin(length)
            n = min(size, self._length - self._filled)
            self._reserve(self._filled + n)
            memcpy(PyBytes_AS_STRING(<object>self._frame) + self._filled, p, n)
            self._filled += n
            p += n
            size -= n
            if self._filled == self._length:
                frames.append(self._taken())
        return 0

    cdef Py_ssize_t _room(self):
        return PyBytes_GET_SIZE(<object>self._frame) - self._filled

    cdef int _begin(self, Py_ssize_t length) except -1:
        cdef object frame = PyBytes_FromStringAndSize(NULL, min(length, FIRST_BYTES))
        Py_INCREF(frame)
        self._frame = <PyObject *>frame
        self._length = length
        self._filled = 0
        return 0

    cdef int _reserve(self, Py_ssize_t needed) except -1:
        """Make the frame large enough for so many bytes. It has not been returned yet."""
        if PyBytes_GET_SIZE(<object>self._frame) < needed:
            _PyBytes_Resize(&self._frame, min(self._length, GROWTH * needed))
        return 0

    cdef object _taken(self):
        """The frame, which is complete."""
        cdef object frame = <object>self._frame
        Py_CLEAR(self._frame)
        return frame
