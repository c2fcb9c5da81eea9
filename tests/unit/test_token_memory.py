"""Which deduplication tokens are known: against a plain set, through bytes, and at the limit."""

from __future__ import annotations

import random

import pytest

from brokerhouse.storage.token_memory import TokenMemory

SENDERS = ("17-3-", "17-30-", "17-", "5b5e8a-rows-", "")


@pytest.mark.parametrize("seed", range(20))
def test_a_token_memory_knows_the_same_tokens_as_a_set(seed: int) -> None:
    chance = random.Random(seed)
    memory, known = TokenMemory(), set[tuple[str, str]]()
    for _ in range(500):
        table = chance.choice(("messages", "consumer_offsets"))
        token = f"{chance.choice(SENDERS)}{chance.randrange(60)}"
        assert memory.has(table, token) == ((table, token) in known)
        if chance.random() < 0.5:
            memory.add(table, token)
            known.add((table, token))
        if chance.random() < 0.02:
            memory = memory.copy()
    assert all(memory.has(*one) for one in known)
    assert memory.to_bytes() == memory.copy().to_bytes()


@pytest.mark.parametrize(
    ("token", "another"),
    [
        ("17-3-7", "17-3-07"),
        ("17-3-7", "17-3-+7"),
        ("17-3-7", "17-3-7 "),
        ("17-3-1", "17-3-\u0661"),  # a digit that is not ASCII
        ("17-3-0", "17-3-"),
        ("17-3-", "17-3"),
        ("17--1", "17-"),
        ("-7", "7"),
        ("a-999999999999999999", "a-1000000000000000000"),
        ("a-9223372036854775808", "a-9223372036854775807"),
    ],
)
def test_similar_tokens_are_told_apart(token: str, another: str) -> None:
    for one, other in ((token, another), (another, token)):
        memory = TokenMemory()
        memory.add("messages", one)
        assert memory.has("messages", one)
        assert not memory.has("messages", other)
        assert not memory.has("consumer_offsets", one)


def test_the_consecutive_tokens_of_a_lane_take_almost_no_memory() -> None:
    memory = TokenMemory(ranges_max=10)
    for lane in range(8):
        for number in range(1, 10_000):
            memory.add("messages", f"17-{lane}-{number}")
    assert all(memory.has("messages", f"17-{lane}-1") for lane in range(8))
    assert len(memory.to_bytes()) < 500


def test_a_full_token_memory_forgets_the_sender_that_was_silent_longest() -> None:
    memory = TokenMemory(ranges_max=3)
    for token in ("1-1-1", "2-1-1", "3-1-1", "1-1-2", "4-1-1"):
        memory.add("messages", token)
    assert [memory.has("messages", f"{n}-1-1") for n in range(1, 5)] == [True, False, True, True]
    for number in range(10, 20, 2):
        memory.add("messages", f"5-1-{number}")
    assert [number for number in range(10, 20) if memory.has("messages", f"5-1-{number}")] == [
        14,
        16,
        18,
    ]


def test_numbers_without_a_hole_are_one_range_whatever_their_order() -> None:
    memory, numbers = TokenMemory(), list(range(100))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        memory.add("messages", f"17-3-{number}")
    assert len(memory.to_bytes()) < 50
