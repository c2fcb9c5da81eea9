# cython: language_level=3, cdivision=True
"""Numbers as they are written, without losing a digit: sign, digits and power of ten.

    [+-] digits [. digits] [e [+-] digits]
"""

from libc.math cimport isinf
from libc.stdint cimport int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod, strtof
from libc.string cimport memcmp, memcpy

cdef enum:
    DIGITS_MAX = 400
    TEXT_MAX = 500
    PLAIN_MAX = 200
    EXPONENT_MAX = 100000

cdef struct Number:
    # (-1 if negative) * digits * 10^exponent; no zeros at either end of the digits. Zero has none.
    bint negative
    bint is_plain  # only digits: neither a fraction nor an exponent is written
    int count
    int exponent
    char digits[DIGITS_MAX]


cdef inline bint is_digit(char c) noexcept nogil:
    return c'0' <= c <= c'9'


cdef inline bint parse_number(const char* at, const char* end, Number* number) noexcept nogil:
    """Whether the text is a number of at most `DIGITS_MAX` digits."""
    cdef int exponent = 0, written = 0, shift = 0
    cdef bint seen_point = False, negative_exponent = False
    number.negative = False
    number.is_plain = True
    number.count = 0
    if at < end and (at[0] == c'-' or at[0] == c'+'):
        number.negative = at[0] == c'-'
        at += 1
    while at < end:
        if is_digit(at[0]):
            written += 1
            if seen_point:
                shift -= 1
            if number.count > 0 or at[0] != c'0':
                if number.count == DIGITS_MAX:
                    return False
                number.digits[number.count] = at[0]
                number.count += 1
        elif at[0] == c'.' and not seen_point:
            seen_point = True
            number.is_plain = False
        else:
            break
        at += 1
    if written == 0:
        return False
    if at < end:
        if at[0] != c'e' and at[0] != c'E':
            return False
        number.is_plain = False
        at += 1
        if at < end and (at[0] == c'-' or at[0] == c'+'):
            negative_exponent = at[0] == c'-'
            at += 1
        if at == end:
            return False
        while at < end:
            if not is_digit(at[0]):
                return False
            if exponent < EXPONENT_MAX:
                exponent = exponent * 10 + (at[0] - c'0')
            at += 1
    number.exponent = shift + (-exponent if negative_exponent else exponent)
    while number.count > 0 and number.digits[number.count - 1] == c'0':
        number.count -= 1
        number.exponent += 1
    if number.count == 0:
        number.exponent = 0
    return True


cdef inline bint whole_number(const Number* number, uint64_t* found) noexcept nogil:
    """Whether the number without its sign is a whole one below 2^64."""
    cdef uint64_t total = 0
    cdef uint64_t digit
    cdef int n
    if number.exponent < 0 or number.count + number.exponent > 20:
        return False
    for n in range(number.count + number.exponent):
        digit = number.digits[n] - c'0' if n < number.count else 0
        if total > (<uint64_t>0xFFFFFFFFFFFFFFFF - digit) // 10:
            return False
        total = total * 10 + digit
    found[0] = total
    return True


cdef inline bint scaled(const Number* number, int shift, int64_t factor, int64_t* found) noexcept nogil:
    """Whether number * factor * 10^shift is a whole number of 64 bits."""
    cdef int64_t total = 0
    cdef int n, exponent = number.exponent + shift
    if number.count == 0:
        found[0] = 0
        return True
    if number.count > 19 or exponent > 19 or exponent < -19:
        return False
    for n in range(number.count):
        if total > (<int64_t>0x7FFFFFFFFFFFFFFF - (number.digits[n] - c'0')) // 10:
            return False
        total = total * 10 + (number.digits[n] - c'0')
    if factor > 1:
        if total > <int64_t>0x7FFFFFFFFFFFFFFF // factor:
            return False
        total *= factor
    while exponent > 0:
        if total > <int64_t>0x7FFFFFFFFFFFFFFF // 10:
            return False
        total *= 10
        exponent -= 1
    while exponent < 0:
        if total % 10:
            return False
        total //= 10
        exponent += 1
    found[0] = -total if number.negative else total
    return True


cdef inline int plain_text(const Number* number, char* to) noexcept nogil:
    """Write it without an exponent and without needless zeros. Returns the length, or -1 if that
    is more than `PLAIN_MAX`."""
    cdef int length = 0, whole = number.count + number.exponent, n
    if number.count == 0:
        to[0] = c'0'
        return 1
    if whole > PLAIN_MAX or number.exponent < -PLAIN_MAX or number.count > PLAIN_MAX:
        return -1
    if number.negative:
        to[length] = c'-'
        length += 1
    if whole <= 0:
        to[length] = c'0'
        length += 1
    for n in range(whole):
        to[length] = number.digits[n] if n < number.count else c'0'
        length += 1
    if number.exponent < 0:
        to[length] = c'.'
        length += 1
        for n in range(-whole):
            to[length] = c'0'
            length += 1
        for n in range(max(whole, 0), number.count):
            to[length] = number.digits[n]
            length += 1
    return length


cdef inline bint _is_written_as(const Number* number, const char* text) noexcept nogil:
    """Whether a text, ended by a zero, is the same number."""
    cdef Number other
    cdef const char* end = text
    while end[0] != 0:
        end += 1
    return (
        parse_number(text, end, &other)
        and other.negative == number.negative
        and other.count == number.count
        and other.exponent == number.exponent
        and memcmp(other.digits, number.digits, number.count) == 0
    )


cdef inline bint fit_double(const char* at, const char* end, double* found) noexcept nogil:
    """Whether a number is a double: not beyond its ends, and a whole number with all its digits.

    A fraction is the double next to it. A whole number is kept if the double is it, or if the
    double's shortest text is it.
    """
    cdef Number number
    cdef char text[TEXT_MAX + 1]
    cdef int precision
    if end - at > TEXT_MAX or not parse_number(at, end, &number):
        return False
    memcpy(text, at, end - at)
    text[end - at] = 0
    found[0] = strtod(text, NULL)
    if isinf(found[0]) or (found[0] == 0 and number.count > 0):
        return False
    if not number.is_plain or number.count <= 15:
        return True
    snprintf(text, TEXT_MAX, b"%.0f", found[0])
    if _is_written_as(&number, text):
        return True
    for precision in range(14, 17):
        snprintf(text, TEXT_MAX, b"%.*e", precision, found[0])
        if strtod(text, NULL) == found[0]:
            return _is_written_as(&number, text)
    return False


cdef inline bint fit_float(const char* at, const char* end, float* found) noexcept nogil:
    """As `fit_double`, for 32 bits."""
    cdef Number number
    cdef char text[TEXT_MAX + 1]
    cdef int precision
    if end - at > TEXT_MAX or not parse_number(at, end, &number):
        return False
    memcpy(text, at, end - at)
    text[end - at] = 0
    found[0] = strtof(text, NULL)
    if isinf(found[0]) or (found[0] == 0 and number.count > 0):
        return False
    if not number.is_plain or number.count <= 6:
        return True
    snprintf(text, TEXT_MAX, b"%.0f", <double>found[0])
    if _is_written_as(&number, text):
        return True
    for precision in range(5, 9):
        snprintf(text, TEXT_MAX, b"%.*e", precision, <double>found[0])
        if strtof(text, NULL) == found[0]:
            return _is_written_as(&number, text)
    return False


cdef inline bint parse_double(const char* at, const char* end, Number* number) noexcept nogil:
    """As `parse_number`, of the shortest text of a double: a large one has more digits than that."""
    cdef char text[TEXT_MAX + 1]
    cdef double found
    cdef const char* stop = text
    if not parse_number(at, end, number):
        return False
    if number.is_plain or number.count + number.exponent <= 15 or end - at > TEXT_MAX:
        return True
    memcpy(text, at, end - at)
    text[end - at] = 0
    found = strtod(text, NULL)
    if isinf(found):
        return True
    snprintf(text, TEXT_MAX, b"%.0f", found)
    while stop[0] != 0:
        stop += 1
    if not parse_number(text, stop, number):
        return False
    number.is_plain = False
    return True
