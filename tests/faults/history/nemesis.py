"""The faults of a cluster while clients work: a schedule that depends only on a seed.

A fault is injected, lasts for a time, and is healed; there is a pause between two faults, and the
last one is healed before `play` returns. Here a fault is a name and two functions; the cluster says
how each fault is made. Two faults at once are a fault as well (`both`)."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """`heal` is also called if `inject` raised or was never called."""

    name: str
    inject: Callable[[], None]
    heal: Callable[[], None]
    lasts_s: tuple[float, float]
    weight: int = 1
    brokers: frozenset[str] = frozenset()
    """Which brokers' processes it ends or stops."""


def both(one: Fault, other: Fault) -> Fault:
    """Healed in an order in which a broker finds what it needs to start."""
    first, second = sorted((one, other), key=lambda fault: bool(fault.brokers))

    def inject() -> None:
        second.inject()
        first.inject()

    def heal() -> None:
        first.heal()
        second.heal()

    lasts_s = (max(one.lasts_s[0], other.lasts_s[0]), max(one.lasts_s[1], other.lasts_s[1]))
    name = f"{second.name} and {first.name}"
    return Fault(name, inject, heal, lasts_s, brokers=one.brokers | other.brokers)


@dataclass(frozen=True, slots=True)
class Step:
    """After `peace_s` without a fault: this one, for `lasts_s`."""

    peace_s: float
    fault: Fault
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.peace_s:.1f} s, then {self.fault.name} for {self.lasts_s:.1f} s"


def schedule(
    faults: Sequence[Fault], seed: int, total_s: float, peace_s: tuple[float, float] = (0.5, 3.0)
) -> list[Step]:
    """Faults for about `total_s`; the same seed and faults give the same schedule."""
    chance = random.Random(seed)
    steps: list[Step] = []
    left_s = total_s
    while left_s > 0:
        fault = chance.choices(faults, [fault.weight for fault in faults])[0]
        step = Step(chance.uniform(*peace_s), fault, chance.uniform(*fault.lasts_s))
        left_s -= step.peace_s + step.lasts_s
        steps.append(step)
    return steps


def play(
    steps: Sequence[Step], tell: Callable[[str], None], ended: threading.Event | None = None
) -> None:
    """`tell` is called when a fault begins and when it ends. Set `ended` to stop early."""
    ended = ended or threading.Event()
    for step in steps:
        if ended.wait(step.peace_s):
            return
        tell(step.fault.name)
        try:
            step.fault.inject()
            ended.wait(step.lasts_s)
        finally:
            step.fault.heal()
            tell(f"end of {step.fault.name}")
