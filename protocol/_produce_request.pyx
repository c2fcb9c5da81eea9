# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, nonecheck=False, embedsignature=True
"""Decodes Produce requests, all versions from 3 on. A busy broker gets thousands of them a second.

The decoders of other requests are generated from kafka-python's schemas (protocol/decoder.py). This
one makes the same checks, and tests/unit/test_produce_request.py compares the two, but it takes a
tenth of the time, and leaves the record batches where they are, in the frame.

What must hold: the input is untrusted. Every read is checked against the end of the frame, and
`ELEMENTS_MAX` bounds the objects that are made.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from brokerhouse.protocol._bytes cimport bh_be16, bh_be32

from uuid import UUID

from brokerhouse.protocol.decoder import ELEMENTS_MAX, STRING_MAX, MalformedMessage


cdef enum:
    FLEXIBLE_SINCE = 9
    TOPIC_IDS_SINCE = 13
    UUID_BYTES = 16
    IDS_KEPT = 1000

cdef int64_t _elements_max = ELEMENTS_MAX
cdef int64_t _string_max = STRING_MAX
cdef dict _ids = {}  # topic ids that were decoded, by their bytes: making one takes 1 us


cdef class ProducePartition:
    """The records for one partition: `frame[start:end]`, which is empty if they are null."""

    cdef readonly int32_t index
    cdef readonly bytes frame
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end

    @property
    def records(self):
        return self.frame[self.start:self.end]


cdef class ProduceTopic:
    """`key` is the topic's name, from version 13 on its id."""

    cdef readonly object key
    cdef readonly list partition_data


cdef class ProduceMessage:
    """A Produce request; `transactional_id` may be None."""

    cdef readonly object transactional_id
    cdef readonly int16_t acks
    cdef readonly int32_t timeout_ms
    cdef readonly list topic_data


cdef class _Reader:
    cdef bytes frame
    cdef const uint8_t *data
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef bint flexible
    cdef int64_t room  # elements that are still allowed

    cdef const uint8_t *take(self, int64_t size) except NULL:
        """The next `size` bytes."""
        cdef const uint8_t *p = self.data + self.at
        if size > self.end - self.at:
            raise MalformedMessage("the request ends too early")
        self.at += size
        return p

    cdef int64_t varint(self) except -1:
        """At most 5 bytes, at most 32 bits."""
        cdef uint64_t value = 0
        cdef int shift
        cdef uint8_t byte
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (<uint64_t>(byte & 0x7F)) << shift
            if byte < 0x80:
                if value > <uint64_t>0xFFFFFFFF:
                    break
                return <int64_t>value
        raise MalformedMessage("a varint has more than 32 bits")

    cdef int64_t size(self, int width, str name) except -2:
        """A length or a count; -1 is null. It has `width` bytes unless the version is flexible."""
        cdef int64_t size
        if self.flexible:
            return self.varint() - 1
        if width == 2:
            size = <int16_t>bh_be16(self.take(2))
        else:
            size = <int32_t>bh_be32(self.take(4))
        if size < -1:
            raise MalformedMessage(f"{name} has a negative length")
        return size

    cdef str text(self, str name):
        """None is null."""
        cdef int64_t size = self.size(2, name)
        if size < 0:
            return None
        if size > _string_max:
            raise MalformedMessage(f"the text {name} is too long")
        if size > self.end - self.at:
            raise MalformedMessage(f"{name} reaches beyond the frame")
        return PyUnicode_DecodeUTF8(<const char *>self.take(size), size, NULL)

    cdef object uuid(self):
        cdef bytes raw = (<const char *>self.take(UUID_BYTES))[:UUID_BYTES]
        found = _ids.get(raw)
        if found is None:
            if len(_ids) >= IDS_KEPT:
                _ids.clear()
            found = _ids[raw] = UUID(bytes=raw)
        return found

    cdef int64_t count(self, int smallest, str name) except -1:
        """Of an array whose elements have at least `smallest` bytes."""
        cdef int64_t count = self.size(4, name)
        if count < 0:
            raise MalformedMessage(f"{name} is null")
        if count * smallest > self.end - self.at:
            raise MalformedMessage(f"{name} counts more elements than it has bytes")
        self.room -= count
        if self.room < 0:
            raise MalformedMessage("it has more elements than a request may have")
        return count

    cdef int skip_tags(self) except -1:
        """Tagged fields; none of them is known."""
        cdef int64_t count
        if not self.flexible:
            return 0
        count = self.varint()
        while count > 0:
            self.varint()
            self.take(self.varint())
            count -= 1
        return 0


def decode_produce_request(bytes frame not None, Py_ssize_t position, int version):
    """(message, position after it). Raises `MalformedMessage` and `UnicodeDecodeError`."""
    cdef _Reader reader = _Reader.__new__(_Reader)
    cdef ProduceMessage message = ProduceMessage.__new__(ProduceMessage)
    cdef int64_t i
    reader.frame = frame
    reader.data = <const uint8_t *>PyBytes_AS_STRING(frame)
    reader.at = position
    reader.end = PyBytes_GET_SIZE(frame)
    reader.flexible = version >= FLEXIBLE_SINCE
    reader.room = _elements_max
    message.transactional_id = reader.text("transactional_id")
    message.acks = <int16_t>bh_be16(reader.take(2))
    message.timeout_ms = <int32_t>bh_be32(reader.take(4))
    message.topic_data = []
    for i in range(reader.count(_smallest_topic(version), "topic_data")):
        message.topic_data.append(_topic(reader, version))
    reader.skip_tags()
    return message, reader.at


cdef int _smallest_topic(int version) noexcept:
    if version >= TOPIC_IDS_SINCE:
        return UUID_BYTES + 2
    return 3 if version >= FLEXIBLE_SINCE else 6


cdef ProduceTopic _topic(_Reader reader, int version):
    cdef ProduceTopic topic = ProduceTopic.__new__(ProduceTopic)
    cdef int64_t i
    if version >= TOPIC_IDS_SINCE:
        topic.key = reader.uuid()
    else:
        topic.key = reader.text("name")
        if topic.key is None:
            raise MalformedMessage("name is null")
    topic.partition_data = []
    for i in range(reader.count(6 if reader.flexible else 8, "partition_data")):
        topic.partition_data.append(_partition(reader))
    reader.skip_tags()
    return topic


cdef ProducePartition _partition(_Reader reader):
    cdef ProducePartition partition = ProducePartition.__new__(ProducePartition)
    cdef int64_t size
    partition.index = <int32_t>bh_be32(reader.take(4))
    size = reader.size(4, "records")
    if size > reader.end - reader.at:
        raise MalformedMessage("records reaches beyond the frame")
    partition.frame = reader.frame
    partition.start = reader.at
    if size > 0:
        reader.take(size)
    partition.end = reader.at
    reader.skip_tags()
    return partition
