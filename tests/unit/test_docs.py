"""The documentation agrees with the code."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from brokerhouse.broker.cli.main import main
from brokerhouse.broker.settings import config, config_sources
from brokerhouse.common.text_table import word_set
from brokerhouse.storage.topic_configs import TOPIC_CONFIGS

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")]
LINK = re.compile(r"\]\((?!https?://)([^)#]+)[^)]*\)")
LINK_TO_SECTION = re.compile(r"\]\((?!https?://)([^)#]*)#([^)]+)\)")


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


def sections(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_section_leads_to_a_heading(page: Path) -> None:
    links = LINK_TO_SECTION.findall(page.read_text(encoding="utf-8"))
    assert [
        (file, anchor)
        for file, anchor in links
        if anchor not in sections(page.parent / file if file else page)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_environment_variable_in_the_docs_exists(page: Path) -> None:
    # _BROKERHOUSE_COMPLETE is the shell's.
    named = set(re.findall(r"(?<!_)BROKERHOUSE_[A-Z_]+", page.read_text(encoding="utf-8")))
    known = {config_sources.environment_variable(name) for name in config.Settings.model_fields}
    assert named <= known | {
        config_sources.CONFIG_FILE_ENV,
        config_sources.CLICKHOUSE_PASSWORD_ENV,
        config_sources.BOOTSTRAP_ENV,
        "BROKERHOUSE_NAME",
    }


def scripts(page: Path) -> str:
    """What a page has for a shell."""
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.M))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_with_commands_activates_the_environment_exactly_once(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    used = re.search(r"(?:^|[|(;\s])brokerhouse [a-z]", scripts(page)) is not None
    assert text.count("`. .venv/bin/activate`") == used
    assert ".venv/bin/brokerhouse" not in text


OTHER_TOOLS = word_set("""
    --connector --connections --driver-memory --entity-default --entity-type --formatter --profile
    --records --rows --seconds --server --soak
""")
"""Flags of Kafka's tools, Spark, Docker Compose and the benchmarks."""


def flags_of(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from flags_of(found)


def test_every_flag_that_a_page_explains_is_one_of_a_command() -> None:
    known = {*flags_of(main), *OTHER_TOOLS, "--help"}
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    named = {
        (page.name, flag)
        for page in pages
        for flag in re.findall(r"`(--[a-z][a-z-]*)", page.read_text(encoding="utf-8"))
    }
    assert {(page, flag) for page, flag in named if flag not in known} == set()


def test_no_two_pages_create_the_same_topic() -> None:
    created = Counter(
        name
        for page in PAGES
        for name in set(re.findall(r"topics create (?!NAME)([\w.-]+)", scripts(page)))
    )
    assert [name for name, pages in created.items() if pages > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one_that_the_parser_knows(page: Path) -> None:
    joined = scripts(page).replace("\\\n", " ")
    for words in re.findall(r"(?:^|[|(;]|\s)brokerhouse ([a-z][^|;&<>#\n)]*)", joined):
        command: click.Command = main
        rest = words.split()
        while isinstance(command, click.Group) and rest:
            found = command.get_command(click.Context(command), rest.pop(0))
            assert found is not None, words
            command = found
        flags = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
        named = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", re.sub(r"'[^']*'|\"[^\"]*\"", "", words)))
        assert named <= flags, words
