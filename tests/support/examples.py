"""How many examples hypothesis tries: a fifth in `make test`, all in `make test-all`.

No example has a deadline, and none may be called slow: both would measure how busy the machine is.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

FEW, ALL = 20, 100
"""Of a test that does not say how many it needs."""


def choose_how_many(*, everything: bool) -> None:
    """Before the tests are imported."""
    settings.register_profile(
        "brokerhouse",
        max_examples=ALL if everything else FEW,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("brokerhouse")


def up_to(count: int) -> int:
    """`count` examples in `make test-all`, a fifth of them in `make test`."""
    assert settings.default is not None
    return count * settings.default.max_examples // ALL
