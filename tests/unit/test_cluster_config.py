"""The table `[cluster]` of the settings file: allowed values, and errors about wrong ones."""

import tomllib
from pathlib import Path

import pytest

from brokerhouse.broker.cluster.config import ClusterConfig, load_cluster
from brokerhouse.broker.settings.config import ConfigError
from brokerhouse.broker.settings.config_sources import CLICKHOUSE_PASSWORD_ENV, load

TWO_SHARDS = """
[cluster]
name = "prod"
slots = 8

[[cluster.shards]]
name = "a"
slots = "0-2,7"
replicas = ["http://ch-1a:8123", "http://ch-1b"]

[[cluster.shards]]
name = "b"
slots = "3-6"
replicas = ["https://ch-2a", "https://[::1]:9443/"]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


def loaded(tmp_path: Path, text: str, **environ: str) -> ClusterConfig:
    config = load_cluster(write(tmp_path, text), environ)
    assert config is not None
    return config


def refusal(tmp_path: Path, text: str, **environ: str) -> str:
    """The sentence, without the path of the file."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_cluster(path, environ)
    return str(refused.value).replace(str(path), "FILE")


def changed(old: str, new: str) -> str:
    assert TWO_SHARDS.count(old) == 1
    return TWO_SHARDS.replace(old, new)


def test_a_settings_file_without_a_cluster_table_configures_no_cluster(tmp_path: Path) -> None:
    assert load_cluster(write(tmp_path, "node_id = 3\n"), {}) is None


def test_shards_have_slots_and_replicas_in_order(tmp_path: Path) -> None:
    config = loaded(tmp_path, TWO_SHARDS)
    assert config.name == "prod"
    assert [slot.shards for slot in config.first_map().slots] == [(name,) for name in "aaabbbba"]
    first, second = config.shards
    assert first.replicas == ("http://ch-1a:8123", "http://ch-1b:8123")
    assert second.replicas == ("https://ch-2a:8443", "https://[::1]:9443")
    assert config.shard("b") == second
    assert config.shard("c") is None


def test_settings_of_the_broker_are_read_from_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, f"node_id = 3\n{TWO_SHARDS}")
    assert load({}, path, {}).settings.node_id == 3
    config = load_cluster(path, {})
    assert config is not None
    assert config.slots == 8


def test_the_defaults_of_a_cluster_suit_replicated_servers(tmp_path: Path) -> None:
    config = loaded(tmp_path, TWO_SHARDS)
    assert (config.replicated, config.distributed) == (True, True)
    assert (config.quorum, config.quorum_min) == (2, 1)
    assert config.user == "default"


@pytest.mark.parametrize(
    ("old", "new"),
    [(', "http://ch-1b"', ""), ("slots = 8\n", "slots = 8\nreplicated = false\n")],
    ids=["a shard with one replica", "nothing replicated"],
)
def test_the_default_quorum_is_one_where_a_shard_has_one_replica(
    tmp_path: Path, old: str, new: str
) -> None:
    assert loaded(tmp_path, changed(old, new)).quorum == 1


def test_a_shard_that_was_added_later_has_no_slots(tmp_path: Path) -> None:
    later = '\n[[cluster.shards]]\nname = "c"\nreplicas = ["http://ch-3a"]\n'
    config = loaded(tmp_path, TWO_SHARDS + later)
    assert config.shards[2].slots == ()
    assert all(slot.shards != ("c",) for slot in config.first_map().slots)


def test_the_password_is_the_first_line_of_the_file_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("tiger\r\n\n")
    config = loaded(tmp_path, changed("slots = 8\n", 'slots = 8\npassword_file = "secret"\n'))
    assert config.password.get_secret_value() == "tiger"
    assert "tiger" not in repr(config)


def test_the_password_comes_from_the_environment(tmp_path: Path) -> None:
    text = changed("slots = 8\n", 'slots = 8\npassword_env = "CH"\n')
    assert loaded(tmp_path, text, CH="tiger").password.get_secret_value() == "tiger"
    config = loaded(tmp_path, TWO_SHARDS, **{CLICKHOUSE_PASSWORD_ENV: "lion"})
    assert config.password.get_secret_value() == "lion"


def test_a_password_in_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    text = changed("slots = 8\n", 'slots = 8\npassword = "tiger"\n')
    config = loaded(tmp_path, text, **{CLICKHOUSE_PASSWORD_ENV: "lion"})
    assert config.password.get_secret_value() == "tiger"


def test_a_password_of_the_wrong_type_is_not_printed(tmp_path: Path) -> None:
    text = changed("slots = 8\n", "slots = 8\npassword = 12345\n")
    assert refusal(tmp_path, text) == (
        "cluster.password (FILE) cannot be used: it must be text in quotes"
    )


REFUSED = tomllib.loads((Path(__file__).parent / "cases/refused_clusters.toml").read_text())


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_mistake_in_a_cluster_file_is_reported_in_one_sentence(
    tmp_path: Path, case: dict[str, str]
) -> None:
    text = changed(case["replaces"], case["text"]) if "replaces" in case else case["text"]
    told = refusal(tmp_path, text)
    assert told == case["told"] or (case["told"][-2:] == ": " and told.startswith(case["told"]))


@pytest.mark.parametrize("key", ["password_file", "tls_ca"])
def test_a_missing_file_is_named_in_the_error(tmp_path: Path, key: str) -> None:
    told = refusal(tmp_path, changed("slots = 8", f'slots = 8\n{key} = "gone"'))
    assert f"{key} {tmp_path / 'gone'}" in told
    assert "\n" not in told
