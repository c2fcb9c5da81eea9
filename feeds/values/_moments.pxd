# cython: language_level=3, cdivision=True
"""Dates and times as text. Nothing is guessed: each has a day, a month and a year of four digits.

    date    YYYY-MM-DD  YYYY/MM/DD  YYYYMMDD                ISO 8601 and what SQL makes of it
            DD-MM-YYYY  DD/MM/YYYY  DD.MM.YYYY              the day first, as ClickHouse reads it
            [Www,] DD Mon YYYY                              RFC 5322: Tue, 24 Nov 2026
    moment  date (T | blanks) hh:mm [:ss [(. | ,) digits]] [blanks] [zone]
            YYYYMMDDhhmmss [zone]
    zone    Z  UTC  GMT  +hh  +hhmm  +hh:mm
"""

from libc.stdint cimport int64_t

from brokerhouse.feeds.values._numbers cimport is_digit

cdef struct Moment:
    int year, month, day
    bint has_time
    int second_of_day
    int64_t fraction      # in 10^-9 s
    bint fraction_is_cut  # there are more digits than that, and not all are zeros
    bint has_zone
    int zone_s            # east of UTC


cdef inline int64_t days_since_1970(int year, int month, int day) noexcept nogil:
    """Of the Gregorian calendar, https://howardhinnant.github.io/date_algorithms.html."""
    cdef int64_t shifted = year - (1 if month <= 2 else 0)
    cdef int64_t era = (shifted if shifted >= 0 else shifted - 399) // 400
    cdef int64_t of_era = shifted - era * 400
    cdef int64_t of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef inline int days_of_month(int year, int month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef inline int _digits(const char** at, const char* end, int most, int* found) noexcept nogil:
    """How many digits there are, of `most`."""
    cdef int count = 0
    found[0] = 0
    while at[0] < end and count < most and is_digit(at[0][0]):
        found[0] = found[0] * 10 + (at[0][0] - c'0')
        at[0] += 1
        count += 1
    return count


cdef inline bint _word(const char** at, const char* end, char one, char two, char three) noexcept nogil:
    if end - at[0] < 3 or at[0][0] != one or at[0][1] != two or at[0][2] != three:
        return False
    at[0] += 3
    return True


cdef inline bint _zone(const char** at, const char* end, Moment* moment) noexcept nogil:
    """False if what is there is no zone."""
    cdef int hours, minutes = 0
    cdef bint west
    moment.zone_s = 0
    moment.has_zone = True
    if at[0][0] == c'Z' or at[0][0] == c'z':
        at[0] += 1
        return True
    if _word(at, end, c'U', c'T', c'C') or _word(at, end, c'G', c'M', c'T'):
        return True
    if at[0][0] != c'+' and at[0][0] != c'-':
        return False
    west = at[0][0] == c'-'
    at[0] += 1
    if _digits(at, end, 2, &hours) != 2:
        return False
    if at[0] < end:
        if at[0][0] == c':':
            at[0] += 1
        if _digits(at, end, 2, &minutes) != 2:
            return False
    if hours > 18 or minutes > 59:
        return False
    moment.zone_s = (hours * 3600 + minutes * 60) * (-1 if west else 1)
    return True


cdef inline bint _time(const char** at, const char* end, bint with_colons, Moment* moment) noexcept nogil:
    cdef int hour, minute = 0, second = 0, count = 0
    if _digits(at, end, 2, &hour) != 2:
        return False
    if with_colons:
        if at[0] == end or at[0][0] != c':':
            return False
        at[0] += 1
    if _digits(at, end, 2, &minute) != 2:
        return False
    if not with_colons or (at[0] < end and at[0][0] == c':'):
        if with_colons:
            at[0] += 1
        if _digits(at, end, 2, &second) != 2:
            return False
    if hour > 23 or minute > 59 or second > 59:
        return False
    moment.has_time = True
    moment.second_of_day = hour * 3600 + minute * 60 + second
    if at[0] < end and (at[0][0] == c'.' or at[0][0] == c','):
        at[0] += 1
        while at[0] < end and is_digit(at[0][0]):
            if count < 9:
                moment.fraction = moment.fraction * 10 + (at[0][0] - c'0')
            elif at[0][0] != c'0':
                moment.fraction_is_cut = True
            count += 1
            at[0] += 1
        if count == 0:
            return False
        while count < 9:
            moment.fraction *= 10
            count += 1
    return True


cdef inline int _month(const char* at, const char* end) noexcept nogil:
    """By its three letters; 0 if they are none."""
    cdef const char* names = b"janfebmaraprmayjunjulaugsepoctnovdec"
    cdef int n
    if end - at < 3:
        return 0
    for n in range(12):
        if (
            (at[0] | 0x20) == names[3 * n]
            and (at[1] | 0x20) == names[3 * n + 1]
            and (at[2] | 0x20) == names[3 * n + 2]
        ):
            return n + 1
    return 0


cdef inline void _blanks(const char** at, const char* end) noexcept nogil:
    while at[0] < end and at[0][0] == c' ':
        at[0] += 1


cdef inline bint _date(const char** at, const char* end, Moment* moment) noexcept nogil:
    """Without a check whether there is such a day."""
    cdef const char* start
    cdef char separator
    cdef int count, first
    if end - at[0] > 4 and at[0][3] == c',' and not is_digit(at[0][0]):
        at[0] += 4  # Tue,
        _blanks(at, end)
    start = at[0]
    while at[0] < end and is_digit(at[0][0]):
        at[0] += 1
    count = at[0] - start
    at[0] = start
    if count == 8 or count == 14:
        _digits(at, end, 4, &moment.year)
        _digits(at, end, 2, &moment.month)
        _digits(at, end, 2, &moment.day)
        return True
    if (count > 2 and count != 4) or count == 0 or at[0] + count == end:
        return False
    _digits(at, end, 4, &first)
    separator = at[0][0]
    at[0] += 1
    if separator == c' ' and count <= 2:
        moment.day = first
        moment.month = _month(at[0], end)
        if moment.month == 0:
            return False
        at[0] += 3
        if at[0] == end or at[0][0] != c' ':
            return False
        at[0] += 1
        return _digits(at, end, 4, &moment.year) == 4
    if separator != c'-' and separator != c'/' and (separator != c'.' or count == 4):
        return False
    if _digits(at, end, 2, &moment.month) == 0 or at[0] == end or at[0][0] != separator:
        return False
    at[0] += 1
    if count == 4:
        moment.year = first
        return _digits(at, end, 2, &moment.day) > 0
    moment.day = first
    return _digits(at, end, 4, &moment.year) == 4


cdef inline bint parse_moment(const char* at, const char* end, Moment* moment) noexcept nogil:
    cdef const char* start = at
    moment.has_time = False
    moment.second_of_day = 0
    moment.fraction = 0
    moment.fraction_is_cut = False
    moment.has_zone = False
    moment.zone_s = 0
    if not _date(&at, end, moment):
        return False
    if moment.year == 0 or not 1 <= moment.month <= 12:
        return False
    if not 1 <= moment.day <= days_of_month(moment.year, moment.month):
        return False
    if at - start == 8 and at < end and is_digit(at[0]):
        if not _time(&at, end, False, moment):
            return False
    elif at < end and (at[0] == c'T' or at[0] == c't' or at[0] == c' '):
        if at[0] == c' ':
            _blanks(&at, end)
        else:
            at += 1
        if not _time(&at, end, True, moment):
            return False
    _blanks(&at, end)
    if at < end and (not moment.has_time or not _zone(&at, end, moment)):
        return False
    return at == end
