"""The option --watch: draws the output of a command again, at an interval, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from broker.cli.ctrl_c import CtrlC, ctrl_c
from broker.cli.options import if_given
from common.console import console

if TYPE_CHECKING:
    from rich.console import RenderableType

DEFAULT_WATCH_S = "2"
MIN_WATCH_S, MAX_WATCH_S = 0.1, 86_400.0


def _to_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        # The option's value is optional: click reads a group's name that follows it as the value.
        raise click.BadParameter(
            f"{text!r} is not a number of seconds; to give no number, write --watch last"
        ) from None
    if not MIN_WATCH_S <= seconds <= MAX_WATCH_S:
        raise click.BadParameter(f"write {MIN_WATCH_S} to {MAX_WATCH_S:.0f} seconds")
    return seconds


watch_option = click.option(
    "--watch",
    "watch_s",
    metavar="[SECONDS]",
    callback=if_given(_to_seconds),
    is_flag=False,
    flag_value=DEFAULT_WATCH_S,
    help=f"Draw again at this interval ({DEFAULT_WATCH_S} s if not given) until Ctrl-C. "
    "While the broker does not answer, keep retrying.",
)


def show(draw: Callable[[], RenderableType], watch_s: float | None) -> None:
    """Draws once; or, with a time between two drawings, until Ctrl-C."""
    if watch_s is None:
        console().print(draw())
        return
    with suppress(KeyboardInterrupt), ctrl_c() as stop:
        frames = _frames(draw, watch_s, stop)
        if not sys.stdout.isatty():
            for frame in frames:
                console().print(frame, "")
            return
        from rich.live import Live

        with Live(next(frames), console=console(), auto_refresh=False) as live:
            for frame in frames:
                live.update(frame, refresh=True)


def _frames(
    draw: Callable[[], RenderableType], watch_s: float, stop: CtrlC
) -> Iterator[RenderableType]:
    """The first drawing must succeed. When a later one fails, its error is shown instead."""
    from rich.console import Group as Stacked
    from rich.text import Text

    seen = draw()
    while True:
        yield Stacked(Text(datetime.now(UTC).isoformat(timespec="seconds")), seen)
        if stop.wait(watch_s):
            return
        try:
            seen = draw()
        except click.ClickException as error:
            seen = Text(f"{error.message}; retrying")
