"""Where settings come from: flags, environment variables, a TOML file, defaults.

The first of these that has a value wins: the flag, the environment variable `BROKERHOUSE_<NAME>`,
the TOML file, the default. `load` reads all four and remembers the source of each value. It raises
`ConfigError` with one sentence that says what to change.
"""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from brokerhouse.broker.settings.config import ConfigError, Settings, as_text, unit
from brokerhouse.common.environment import BOOTSTRAP_VARIABLE, ENV_PREFIX

CONFIG_FILE_ENV = ENV_PREFIX + "CONFIG"
"""Names the TOML file when there is no flag `--config`."""

CLICKHOUSE_PASSWORD_ENV = ENV_PREFIX + "CLICKHOUSE_PASSWORD"
"""The password for a cluster's servers when the file has none."""

BOOTSTRAP_ENV = ENV_PREFIX + BOOTSTRAP_VARIABLE
"""The brokers that commands and jobs connect to. A broker does not read it."""

_NO_SETTINGS = frozenset({CONFIG_FILE_ENV, CLICKHOUSE_PASSWORD_ENV, BOOTSTRAP_ENV})


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings, and the source of each: `flag`, `env`, the path of the file, or `default`."""

    settings: Settings
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as a person sees it: `value` and `default` as text, secrets masked."""

    name: str
    value: str
    default: str
    unit: str
    description: str
    source: str


def load(
    flags: Mapping[str, object] | None = None,
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Configuration:
    """The settings from all sources. `flags` that are None were not given. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    if config_file is None:
        config_file = config_file_of_environment(environ)
    layers: list[tuple[str, Mapping[str, object]]] = [
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
        ("env", _from_environment(environ)),
    ]
    if config_file is not None:
        layers.append((str(config_file), _from_file(config_file)))
    values: dict[str, object] = {}
    sources = dict.fromkeys(Settings.model_fields, "default")
    for source, layer in reversed(layers):
        values |= layer
        sources |= dict.fromkeys(layer, source)
    try:
        settings = Settings(**values)  # type: ignore[arg-type]  # checked by pydantic, value by value
    except ValidationError as error:
        raise ConfigError(_sentence(error, sources)) from None
    return Configuration(settings, sources)


def config_file_of_environment(environ: Mapping[str, str] | None = None) -> Path | None:
    """The TOML file that the environment variable names."""
    name = (os.environ if environ is None else environ).get(CONFIG_FILE_ENV)
    return Path(name) if name else None


def rows(configuration: Configuration) -> Iterator[SettingRow]:
    """Every setting in the order of the class."""
    for name, field in Settings.model_fields.items():
        yield SettingRow(
            name=name,
            value=as_text(getattr(configuration.settings, name)),
            default=as_text(field.default),
            unit=unit(field),
            description=field.description or "",
            source=configuration.sources[name],
        )


def environment_variable(name: str) -> str:
    """The environment variable that sets `name`."""
    return ENV_PREFIX + name.upper()


def _from_environment(environ: Mapping[str, str]) -> dict[str, object]:
    """The BROKERHOUSE_* variables. An empty one counts as not set: Compose passes such ones."""
    values: dict[str, object] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in _NO_SETTINGS:
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name not in Settings.model_fields or not variable.isupper():
            raise ConfigError(
                f"environment variable {variable} sets nothing: "
                + _suggestion(name, environment_variable)
            )
        if value:
            values[name] = value
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises ConfigError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: it is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _from_file(path: Path) -> dict[str, object]:
    values = read_toml(path)
    values.pop("cluster", None)  # a separate table, read by broker/cluster/config.py
    for name in values:
        if name not in Settings.model_fields:
            raise ConfigError(f"{path} has the unknown key {name!r}: {_suggestion(name, str)}")
    return values


def _suggestion(name: str, spelling: Callable[[str], str]) -> str:
    """What to do about a name that is not a setting; `spelling` is how the user writes a name."""
    nearest = difflib.get_close_matches(name.lower(), Settings.model_fields, n=1)
    if nearest:
        return f"did you mean {spelling(nearest[0])}?"
    return "remove it; `brokerhouse config` prints the names of all settings"


def advice(error: ErrorDetails) -> str:
    """How to correct this error of pydantic."""
    context = error.get("ctx", {})
    match error["type"]:
        case "value_error":
            return str(context["error"])
        case "int_parsing" | "int_type" | "int_from_float":
            return "it must be a whole number"
        case "bool_parsing" | "bool_type":
            return "it must be true or false"
        case "greater_than_equal":
            return f"it must be at least {context['ge']}"
        case "less_than_equal":
            return f"it must be at most {context['le']}"
        case "literal_error":
            return f"it must be {context['expected']}"
        case _:
            return error["msg"][:1].lower() + error["msg"][1:]


def _sentence(error: ValidationError, sources: Mapping[str, str]) -> str:
    """The first error: where it was written, and how to correct it."""
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        return advice(first)
    name = str(first["loc"][0])
    secret = Settings.model_fields[name].annotation == SecretStr | None
    shown = "" if secret else f" = {first['input']!r}"
    return f"{name}{shown} ({_origin(name, sources[name])}) cannot be used: {advice(first)}"


def _origin(name: str, source: str) -> str:
    match source:
        case "flag":
            return "flag --" + name.replace("_", "-")
        case "env":
            return environment_variable(name)
        case _:
            return source
