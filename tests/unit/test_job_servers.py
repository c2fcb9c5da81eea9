"""The servers that a job is given as text."""

import pytest

from brokerhouse.spark_jobs.sql_client import SqlServers


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("0.0.0.0:8123", "http://127.0.0.1:8123"),
        ("[::]:8123", "http://[::1]:8123"),
        ("https://0.0.0.0", "https://127.0.0.1:8443"),
        ("[::1]:9", "http://[::1]:9"),
        ("http://Click.house:8124/", "http://Click.house:8124"),
    ],
)
def test_a_wildcard_address_of_a_server_means_this_machine(text: str, url: str) -> None:
    assert SqlServers.parse(text).urls == (url,)
