"""Content codings of HTTP bodies: what is encoded is decoded again, in bounded pieces."""

from __future__ import annotations

import random

import pytest

from brokerhouse.common.zstd import zstd
from brokerhouse.sql.http.codings import (
    CODINGS,
    PIECE_BYTES,
    CodingError,
    UnknownCoding,
    choose,
    decoder,
)

RANDOM = random.Random(1).randbytes(3 * PIECE_BYTES)
TEXT = RANDOM + bytes(20 * PIECE_BYTES) + b"end"


def encoded(coding: str, data: bytes) -> bytes:
    encoder = CODINGS[coding].encoder()
    return encoder.compress(data[:1000]) + encoder.compress(data[1000:]) + encoder.finish()


def decoded(coding: str, body: bytes, step: int) -> bytes:
    stream = decoder(coding)
    assert stream is not None
    pieces = [
        piece
        for start in range(0, len(body), step)
        for piece in stream.decompress(body[start : start + step])
    ]
    stream.finish()
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("step", [999, 65_536, 2**30])
@pytest.mark.parametrize("coding", CODINGS)
def test_an_encoded_body_is_decoded_in_pieces_of_limited_size(coding: str, step: int) -> None:
    assert decoded(coding, encoded(coding, TEXT), step) == TEXT


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1])
@pytest.mark.parametrize("coding", CODINGS)
def test_output_that_just_fills_a_piece_is_whole(coding: str, size: int) -> None:
    data = bytes(size)
    assert decoded(coding, encoded(coding, data), 7) == data


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_may_be_several_streams(coding: str) -> None:
    body = encoded(coding, TEXT) + encoded(coding, b"") + encoded(coding, RANDOM)
    assert decoded(coding, body, 65_536) == TEXT + RANDOM


@pytest.mark.parametrize("coding", CODINGS)
def test_a_damaged_body_is_refused(coding: str) -> None:
    body = encoded(coding, TEXT)
    for damaged in (b"SELECT 1" * 100, body[:-1], body[: len(body) // 2], body + b"rubbish"):
        with pytest.raises(CodingError):
            decoded(coding, damaged, 65_536)


def test_a_window_larger_than_zstd_itself_accepts_is_refused() -> None:
    options: dict[int, int] = {
        zstd.CompressionParameter.window_log: 28,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    stream = zstd.ZstdCompressor(options=options)
    body = stream.compress(RANDOM) + stream.flush()
    with pytest.raises(CodingError):
        decoded("zstd", body, 65_536)


@pytest.mark.parametrize("name", ["br", "xz", "bz2", "snappy", "gzip, gzip"])
def test_an_unknown_coding_is_refused(name: str) -> None:
    with pytest.raises(UnknownCoding):
        decoder(name)


@pytest.mark.parametrize("name", ["", "identity", " Identity "])
def test_a_body_without_a_coding_needs_no_decoder(name: str) -> None:
    assert decoder(name) is None


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("", None),
        ("br, xz, bz2, snappy", None),
        ("br, gzip, deflate", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0, GZIP;q=0.5", "gzip"),
        ("gzip; q=0.000", None),
        ("deflate", "deflate"),
    ],
)
def test_an_answer_uses_the_cheapest_coding_that_the_client_accepts(
    accepted: str, chosen: str | None
) -> None:
    assert choose(accepted) == chosen
