"""Every API key is found by its name: its file, what the file says first, its sample, the docs."""

import re
from importlib import import_module
from pathlib import Path
from uuid import UUID

import pytest

from brokerhouse.broker.api import APIS
from brokerhouse.broker.api.context import Api
from tests.support import samples
from tests.support.messages import Target

PROJECT = Path(__file__).resolve().parents[2]
EVERY_API = [pytest.param(api, id=api.key.name) for api in APIS.values()]


def shown_versions(api: Api) -> str:
    first, last = api.versions
    return f"{first}" if first == last else f"{first} to {last}"


@pytest.mark.parametrize("api", EVERY_API)
def test_an_api_key_lies_in_the_file_of_its_name(api: Api) -> None:
    file = import_module(f"brokerhouse.broker.api.{samples.file_of(api.key)}")
    assert file.API is api
    assert file.__doc__ is not None
    assert re.match(
        rf"{api.key.name} \({int(api.key)}\), versions? {shown_versions(api)}: ", file.__doc__
    )


@pytest.mark.parametrize("api", EVERY_API)
def test_an_api_key_has_a_sample(api: Api) -> None:
    request = samples.sample(api.key, api.max_version, Target("topic", UUID(int=1)))
    assert isinstance(request, api.request)


def test_no_two_files_declare_the_same_key() -> None:
    declared = [
        path.stem
        for path in (PROJECT / "broker/api").glob("*.py")
        if re.search(r"^API = Api\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert sorted(declared) == sorted(samples.file_of(api.key) for api in APIS.values())


def test_the_clients_page_lists_every_key_with_its_versions() -> None:
    page = (PROJECT / "docs/clients.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\d+) \| (\w+) \| ([\d to]+) \|", page, re.MULTILINE)
    expected = [(str(int(api.key)), api.key.name, shown_versions(api)) for api in APIS.values()]
    assert found == expected
