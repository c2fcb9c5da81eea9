"""The documentation agrees with the code."""

import re
from pathlib import Path

import pytest

from broker import config, config_sources
from storage.topic_configs import TOPIC_CONFIGS

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)[^)]*\)")


def settings_lines() -> list[str]:
    """The rows of the table in docs/configuration.md, as they should be."""
    return [
        f"| `{row.name}` | {f'`{row.default}`' if row.default else ''} | {row.unit} "
        f"| {row.description} |"
        for row in config_sources.rows(config_sources.load(environ={}))
    ]


def test_the_settings_page_holds_every_setting_as_the_code_has_it() -> None:
    page = (PROJECT / "docs/configuration.md").read_text(encoding="utf-8")
    table = page.partition("## Topic configs")[0]
    found = [line for line in table.splitlines() if line.startswith("| `")]
    assert found == settings_lines(), "put this there:\n" + "\n".join(settings_lines())


def test_the_settings_page_names_the_topic_configs_that_have_an_effect() -> None:
    page = (PROJECT / "docs/configuration.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([a-z.]+)` \|", page.partition("## Topic configs")[2], re.MULTILINE)
    assert set(named) == {name for name, known in TOPIC_CONFIGS.items() if known.has_effect}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_environment_variable_that_is_named_sets_something(page: Path) -> None:
    # _BROKERHOUSE_COMPLETE is the shell's.
    named = set(re.findall(r"(?<!_)BROKERHOUSE_[A-Z_]+", page.read_text(encoding="utf-8")))
    known = {config_sources.environment_variable(name) for name in config.Settings.model_fields}
    assert named <= known | {
        config_sources.CONFIG_FILE_ENV,
        config_sources.CLICKHOUSE_PASSWORD_ENV,
        "BROKERHOUSE_NAME",
    }
