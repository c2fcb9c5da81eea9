"""Options of commands whose value an environment variable can give too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from common.environment import ENV_PREFIX

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def environment_option(
    name: str, variable: str, purpose: str | None = None, **more: Any
) -> Callable[[CommandT], CommandT]:
    """An option, or the variable `ENV_PREFIX` + `variable`; `more` is click's."""
    return click.option(name, envvar=ENV_PREFIX + variable, show_envvar=True, help=purpose, **more)


def server_option(
    name: str, metavar: str, default: str, variable: str, read: Callable[..., Any], purpose: str
) -> Callable[[CommandT], CommandT]:
    """The address of the server, as `read`, a click callback, returns it."""
    return environment_option(
        name, variable, purpose, metavar=metavar, default=default, callback=read, show_default=True
    )
